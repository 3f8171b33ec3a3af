"""Compiling, running and timing of segments of PyTorch programs."""
