"""Commands in this process, as for the tests of the command line."""

from cli.conftest import cli

__all__ = ["cli"]
