"""Placers that improve placements step by step."""
