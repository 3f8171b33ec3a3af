"""Mirhoseini et al. 2018: grouper and placer learned together."""
