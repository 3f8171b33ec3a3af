"""Suites that reproduce published tables and compare placers: `placewright bench`."""
