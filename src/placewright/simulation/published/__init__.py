"""Execution models that others have published, reproduced to the last digit."""
