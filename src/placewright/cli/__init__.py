"""The command line: parse, wire, print. One module per group of commands."""

from placewright.cli.app import main

__all__ = ["main"]
