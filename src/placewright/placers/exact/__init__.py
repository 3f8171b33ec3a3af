"""Placers that prove bounds and optima: constraint and integer programs."""
