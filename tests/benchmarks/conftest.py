"""Benchmarks and commands in this process, as for the tests of the command line."""

from cli.conftest import benchmark, cli

__all__ = ["benchmark", "cli"]
