"""Latency of atomic accelerator subgraphs: arithmetic, search and the integer program."""
