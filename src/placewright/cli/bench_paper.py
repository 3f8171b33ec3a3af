"""`placewright bench paper`: the experiments of HSDAG, Post and Placeto."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.command import command
from placewright.cli.output import Report, print_json, print_line, print_note, progress
from placewright.cli.overwriting import Writes
from placewright.cli.spread import spread
from placewright.session.request import SPREAD, Request


def _beside(results: Path) -> Iterable[Path]:
    """All that may be written with a results file."""
    for name in ("hsdag", "post", "placeto"):
        yield from (report_of(results, name), picture_of(results, name))
    yield picture_of(results, "placeto-unseen")


def report_of(results: Path, name: str) -> Path:
    """The report of a paper, beside the results file."""
    return results.with_name(f"{results.stem}-{name}.md")


def picture_of(results: Path, name: str) -> Path:
    """The figure of a paper, beside the results file."""
    return results.with_name(f"{results.stem}-{name}.svg")


@command(*SPREAD, model=None)
def paper(
    request: Request,
    name: Annotated[str, typer.Argument(help="hsdag, post or placeto.")],
    seeds: Annotated[
        int, typer.Option(help="Runs per placer at most; some stages make fewer.")
    ] = 5,
    unseen: Annotated[
        bool, typer.Option(help="placeto: also train on a family and place its unseen graphs.")
    ] = True,
    run: Annotated[
        bool, typer.Option(help="--no-run writes report and figure of the rows that are there.")
    ] = True,
    results: Annotated[
        Path,
        typer.Option("--results", help="Results file; runs in it are not repeated."),
        Writes(_beside),
    ] = Path("paper.json"),
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """A paper's experiment: its figures, ours under its rules, ours with equal budgets.

    Writes a report and a figure beside --results.
    """
    from placewright.files.text import write_text
    from placewright.suites.learned import read_runs
    from placewright.suites.papers.catalogue import paper_suite
    from placewright.suites.papers.report import draw_suite, suite_report
    from placewright.suites.papers.suite import run_suite

    suite = paper_suite(name)
    with progress(f"paper {name}", hidden=quiet or as_json) as report:
        if run:
            with spread(request) as workers:
                run_suite(suite, results, seeds=seeds, workers=workers, progress=report)
        tested = _unseen(results, make=run, report=report) if name == "placeto" and unseen else ""
    problems = {case.name for case in suite.cases}
    rows = [row for row in read_runs(results) if row.problem in problems]
    text = suite_report(suite, rows, picture_of(results, name).name) + tested
    write_text(report_of(results, name), text)
    draw_suite(suite, rows, picture_of(results, name))
    print_note(f"wrote {report_of(results, name)} and {picture_of(results, name)}")
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        print_line(text)


def _unseen(results: Path, *, make: bool, report: Report) -> str:
    """Run and draw the transfer to unseen graphs; its part of the report."""
    import platformdirs

    from placewright.suites.learned import read_runs
    from placewright.suites.papers.generalisation import LABELS, TransferRuns, run_transfer
    from placewright.suites.papers.report import draw_transfer, transfer_report

    if make:
        policies = Path(platformdirs.user_cache_dir("placewright")) / "policies"
        run_transfer(TransferRuns(), results, policies, report)
    rows = [row for row in read_runs(results) if row.placer in LABELS]
    if not rows:
        return ""
    picture = picture_of(results, "placeto-unseen")
    draw_transfer(rows, picture)
    return transfer_report(rows, picture.name)
