"""Placeto: message passing, one node a step, incremental rewards."""
