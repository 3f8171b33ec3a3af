"""Placers that hand a weighted undirected graph to a partitioner."""
