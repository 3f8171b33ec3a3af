"""Runs the function of a benchmark as a command line of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from placewright.cli.wording import message_of
from placewright.errors import PlacewrightError

_WRONG_INPUT = 2


def run(command: Callable[..., None]) -> None:
    """Read the options of `command` from the command line and call it.

    An error of the package ends the process with code 2 and its message.
    """
    program = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    program.command()(command)
    try:
        program()
    except PlacewrightError as error:
        sys.stderr.write(f"{message_of(error)}\n")
        sys.exit(_WRONG_INPUT)
