"""Measurement of this machine: its devices as a cluster, and costs of a model on them."""
