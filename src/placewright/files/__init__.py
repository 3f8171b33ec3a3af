"""Our file formats: clusters, graphs, problems, plans, workloads, results."""
