"""Arguments and options that mean the same in every command and are not fields of a request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placewright.cli.overwriting import Writes

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan.json.")]
Searched = Annotated[
    bool,
    typer.Option("--searched", help="Take the searched placement if the plan recommends another."),
]
ModelOfPlan = Annotated[
    Path | None,
    typer.Option("--model", help="Read the plan's model from this file, if it has moved."),
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write to this file."), Writes()
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress on standard error.")]
