"""Runs the function of a benchmark as a command line, with the options that several share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from placewright.cli.options import message_of
from placewright.cli.output import print_note
from placewright.cli.overwriting import Writes
from placewright.errors import PlacewrightError
from placewright.io.written import write_text

_WRONG_INPUT = 2

Models = Annotated[str, typer.Option(help="Comma-separated models.")]
ModelsOrZoo = Annotated[
    str | None, typer.Option(help="Comma-separated models; every zoo model without.")
]
PartsOfNames = Annotated[
    str | None, typer.Option(help="Comma-separated parts of names; all models without.")
]
Results = Annotated[
    Path,
    typer.Option("--results", help="Results file; other rows in it stay."),
    Writes(),
]
ResultsIfAny = Annotated[
    Path | None, typer.Option("--results", help="Results file; none without."), Writes()
]
Plot = Annotated[Path | None, typer.Option(help="SVG file for a picture of the results."), Writes()]


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


def write_results(path: Path | None, text: str) -> None:
    """Write a file and print its name, if there is a path."""
    if path is not None:
        write_text(path, text)
        print_note(f"wrote {path}")
