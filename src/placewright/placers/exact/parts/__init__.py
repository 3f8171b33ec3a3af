"""Bounds and search by the parts of a graph between its articulation units."""
