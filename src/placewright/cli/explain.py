"""The commands `explain` (why an op is on its device) and `diff` (moves between two plans)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.command import plain_command
from placewright.cli.output import print_json, print_line, print_table


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(explain)
    app.command()(diff)


@plain_command
def explain(
    plan_file: opt.PlanFile,
    op: Annotated[str, typer.Argument(metavar="OP", help="Name of an op.")],
    searched: opt.Searched = False,
    model_file: opt.ModelOfPlan = None,
    as_json: opt.Json = False,
) -> None:
    """Explain why OP is on its device in PLAN.

    For every other device: the value of the plan with OP there, and the reason for the difference.
    """
    from placewright.report.explain import explain as explained
    from placewright.session.plans import read_plan

    explanation = explained(read_plan(plan_file, searched=searched, model=model_file), op)
    if as_json:
        print_json(explanation.data())
        return
    for line in explanation.lines():
        print_line(line)
    columns = ["device", "own time", "transfers", "plan then takes", "what decides"]
    print_table("Devices", columns, explanation.rows())


@plain_command
def diff(
    plan_file: opt.PlanFile,
    other_file: Annotated[Path, typer.Argument(metavar="OTHER", help="Another plan.json.")],
    model_file: opt.ModelOfPlan = None,
    as_json: opt.Json = False,
) -> None:
    """Show what moved from PLAN to OTHER, and what that gained."""
    from placewright.report.difference import DEVICE_COLUMNS, GROUP_COLUMNS, difference_of
    from placewright.session.plans import read_plan

    plans = [read_plan(path, model=model_file) for path in (plan_file, other_file)]
    difference = difference_of(*plans)
    if as_json:
        print_json(difference.data())
        return
    for line in difference.lines():
        print_line(line)
    print_table("Devices", DEVICE_COLUMNS, difference.device_rows())
    if difference.groups:
        print_table("Moved", GROUP_COLUMNS, difference.group_rows()[:30])
