"""`explain` and `diff`: why an op is where it is, and what moved between two plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.command import plain_command
from placewright.cli.output import print_json, print_line, print_table

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan.json.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(explain)
    app.command()(diff)


@plain_command
def explain(
    plan_file: PlanFile,
    op: Annotated[str, typer.Argument(metavar="OP", help="Name of an op.")],
    searched: opt.Searched = False,
    model_file: opt.ModelOfPlan = None,
    as_json: opt.Json = False,
) -> None:
    """Why OP of PLAN is where it is: each other device, what decides, what it waits for."""
    from placewright.report.explain import explain as explained
    from placewright.session.plans import read_plan

    found = explained(read_plan(plan_file, searched=searched, model=model_file), op)
    if as_json:
        print_json(found.data())
        return
    for line in found.lines():
        print_line(line)
    columns = ["device", "own time", "transfers", "plan then takes", "what decides"]
    print_table("Devices", columns, found.rows())


@plain_command
def diff(
    plan_file: PlanFile,
    other_file: Annotated[Path, typer.Argument(metavar="OTHER", help="Another plan.json.")],
    model_file: opt.ModelOfPlan = None,
    as_json: opt.Json = False,
) -> None:
    """What moved from PLAN to OTHER, and what each move gains and loses."""
    from placewright.report.difference import DEVICE_COLUMNS, GROUP_COLUMNS, difference_of
    from placewright.session.plans import read_plan

    plans = [read_plan(path, model=model_file) for path in (plan_file, other_file)]
    found = difference_of(*plans)
    if as_json:
        print_json(found.data())
        return
    for line in found.lines():
        print_line(line)
    print_table("Devices", DEVICE_COLUMNS, found.device_rows())
    if found.groups:
        print_table("Moved", GROUP_COLUMNS, found.group_rows()[:30])
