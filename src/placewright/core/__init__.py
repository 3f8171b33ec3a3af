"""Pure data: graph, cluster, costs, problem, placement, solution, grouping, model source."""
