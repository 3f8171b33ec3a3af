"""Moves of the local search."""
