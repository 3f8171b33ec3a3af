"""Suites that reproduce published tables and check the tool's own claims."""
