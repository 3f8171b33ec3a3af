"""Bounds that hold for every placement of a problem, and proofs that none exists."""
