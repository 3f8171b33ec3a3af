"""Placers for throughput by dynamic programs over ideals and stages."""
