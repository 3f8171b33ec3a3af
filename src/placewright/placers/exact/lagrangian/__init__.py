"""Lagrangian relaxation of memory for problems under `sequential` that are narrow chains."""
