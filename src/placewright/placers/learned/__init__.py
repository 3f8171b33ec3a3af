"""Placers that learn, one folder per system, and shared features, networks and training."""
