"""Timelines as text and as traces."""
