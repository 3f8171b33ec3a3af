"""Simulation of a stream of samples through one placement."""
