"""A trained list scheduler for graphs that it has never seen."""
