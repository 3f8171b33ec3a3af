"""Options that mean the same in every command, and are no fields of a request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placewright.cli.overwriting import Writes

Searched = Annotated[
    bool,
    typer.Option(
        "--searched", help="Take what the search found, where the plan holds a simpler placement."
    ),
]
ModelOfPlan = Annotated[
    Path | None,
    typer.Option("--model", help="Where the plan's model is now, with the same content."),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="File to write."), Writes()]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")]
