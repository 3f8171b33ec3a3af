"""Placement algorithms, one file or folder each; `registry` lists them by name."""
