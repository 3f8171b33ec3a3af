"""The files we read and write: cluster YAML, graph, problem and plan files, all atomically."""
