"""The command `replay`: predicted beside measured values of somebody else's plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.command import plain_command
from placewright.cli.output import print_json, print_lines, print_table


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(replay)


@plain_command
def replay(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Measurements of other hardware, as JSON.")
    ],
    copies: Annotated[
        str | None,
        typer.Option(
            help="Who computes nothing while bytes move: nobody, receiver, sender or both."
        ),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Predict plans that others have measured, and show the errors.

    DATA has operator times, copies, and plans with their measured latency.
    """
    from placewright.report.replay_text import GROUP_COLUMNS, PLAN_COLUMNS, RULE_COLUMNS
    from placewright.suites.replay import replay as replayed

    found = replayed(data, copies)
    if as_json:
        print_json(found.data())
        return
    print_lines(found.lines())
    if found.has_split:
        print_table("Rules about copies", RULE_COLUMNS, found.rule_rows())
    print_table("Errors by group", GROUP_COLUMNS, found.group_rows())
    print_table("Plans", PLAN_COLUMNS, found.plan_rows())
