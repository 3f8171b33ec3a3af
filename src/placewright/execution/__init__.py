"""Segments that run for real: the concurrent runner and what it asks of a framework."""
