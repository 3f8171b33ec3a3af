"""`--report FILE.html`: a page beside what a command prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli.output import print_note
from placewright.cli.overwriting import Writes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.core.plan import Plan

ReportFile = Annotated[
    Path | None,
    typer.Option("--report", help="Write a self-contained page, FILE.html, too."),
    Writes(),
]


def write_plan_report(path: Path | None, title: str, plan: Plan, file: Path) -> None:
    """The page of a plan in a file; nothing without a path."""
    if path is None:
        return
    from placewright.files.text import write_text
    from placewright.report.page.html import page_text
    from placewright.report.page.plans import plans_document

    write_text(path, page_text(plans_document((title, plan), file=str(file))))
    print_note(f"wrote {path}")


def write_tables_report(path: Path | None, title: str, shown: Sequence[Any]) -> None:
    """The page of what was printed; nothing without a path."""
    if path is None:
        return
    from placewright.files.text import write_text
    from placewright.report.page.tables import tables_page

    write_text(path, tables_page(title, shown))
    print_note(f"wrote {path}")
