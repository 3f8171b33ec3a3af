"""`report`: one page about a plan, or about two."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.command import plain_command
from placewright.cli.output import print_json, print_line, print_note
from placewright.cli.overwriting import Writes


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(report)


@plain_command
def report(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan.json.")],
    other_file: Annotated[
        Path | None, typer.Argument(metavar="[OTHER]", help="A plan to compare it with.")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write."), Writes()] = Path(
        "report.html"
    ),
    searched: opt.Searched = False,
    model_file: opt.ModelOfPlan = None,
    as_json: opt.Json = False,
) -> None:
    """One self-contained page: what was placed where, why, and what would change it."""
    from placewright.files.text import write_text
    from placewright.report.page.html import page_text
    from placewright.report.page.plans import plans_document
    from placewright.session.plans import read_plan

    files = [path for path in (plan_file, other_file) if path is not None]
    plans = [(path.name, read_plan(path, searched=searched, model=model_file)) for path in files]
    document = plans_document(*plans, file=str(plan_file))
    write_text(output, page_text(document))
    if as_json:
        print_json(document)
        return
    print_line(document["plan"]["verdict"]["sentence"])
    print_line(f"Next: {document['plan']['verdict']['next']}")
    print_note(f"wrote {output}")
