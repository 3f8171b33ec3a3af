"""The placements of human experts, by family of the graph."""
