"""Segments of a PyTorch program, compiled, run and timed."""
