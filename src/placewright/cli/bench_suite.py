"""`placewright bench suite` and `bench auto`: every placer on a fixed set of problems."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.command import command
from placewright.cli.output import print_json, print_note, print_shown
from placewright.cli.overwriting import Writes
from placewright.cli.spread import spread
from placewright.report.time_left import Counted
from placewright.session.request import SPREAD, Request

if TYPE_CHECKING:
    from placewright.suites.suite.runs import SuiteRow

Data = Annotated[
    Path | None, typer.Option("--data", help="Folder with the Tarnawski workloads; adds them.")
]
Problems = Annotated[
    str, typer.Option(help="Comma-separated names, or parts of names; empty for all.")
]
Seconds = Annotated[float, typer.Option(help="Budget of each run.")]
Results = Annotated[
    Path, typer.Option("--results", help="Results file; runs in it are not repeated."), Writes()
]
Picture = Annotated[Path | None, typer.Option(help="SVG file: performance profiles."), Writes()]
OverTime = Annotated[
    Path | None, typer.Option(help="SVG file: value and bound against time."), Writes()
]


def register(group: typer.Typer) -> None:
    """Add the commands of this module to `bench`."""
    group.command()(suite)
    group.command()(auto)


@command(*SPREAD, model=None)
def suite(
    request: Request,
    data: Data = None,
    problems: Problems = "",
    placers: Annotated[
        str, typer.Option(help="Comma-separated; empty for all that need no training.")
    ] = "",
    seconds: Seconds = 60.0,
    seeds: Annotated[int, typer.Option(help="Runs per placer, seeds 0 .. N-1.")] = 1,
    results: Results = Path("suite.json"),
    profile: Picture = None,
    over_time: OverTime = None,
    as_json: opt.Json = False,
) -> None:
    """Every placer on every problem of the suite, with performance profiles; resumable."""
    from placewright.report.benchmark_tables import profiles_table
    from placewright.report.pictures import pyplot
    from placewright.session.parsing import parse_names
    from placewright.suites.suite.pictures import draw_over_time, draw_profiles
    from placewright.suites.suite.problems import chosen_problems, suite_problems
    from placewright.suites.suite.profiles import profiles
    from placewright.suites.suite.runs import run_suite
    from placewright.suites.tarnawski import untrained_methods

    if profile is not None or over_time is not None:
        pyplot()  # before the long work
    chosen = chosen_problems(suite_problems(data), parse_names(problems) if problems else [])
    names = parse_names(placers) if placers else untrained_methods()
    counted, note = _notes()
    with spread(request, apart=True) as workers:
        rows = run_suite(
            chosen,
            names,
            seconds,
            results,
            seeds=range(seeds),
            on_row=note,
            on_ahead=counted.ahead,
            workers=workers,
        )
    if profile is not None:
        draw_profiles(rows, profile)
    if over_time is not None:
        draw_over_time(rows, over_time)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_shown(profiles_table(profiles(rows)))


@command("seed", *SPREAD, model=None)
def auto(
    request: Request,
    problems: Problems = "",
    placers: Annotated[
        str, typer.Option(help="Comma-separated, in place of the usual rivals.")
    ] = "",
    seconds: Seconds = 20.0,
    results: Results = Path("auto.json"),
    as_json: opt.Json = False,
) -> None:
    """`auto` beside the best of the others on 24 problems: the figures that are promised of it."""
    from placewright.report.benchmark_tables import promises_table, rivals_table
    from placewright.session.parsing import parse_names
    from placewright.suites.suite.against_auto import (
        AUTO,
        EXACT,
        RIVALS,
        comparisons,
        figures,
    )
    from placewright.suites.suite.problems import OF_AUTO, chosen_problems, suite_problems
    from placewright.suites.suite.runs import run_suite

    chosen = chosen_problems(suite_problems(), parse_names(problems) if problems else OF_AUTO)
    rivals = parse_names(placers) if placers else [*RIVALS, *EXACT]
    names = [AUTO, *(name for name in rivals if name != AUTO)]
    counted, note = _notes()
    with spread(request, apart=True) as workers:
        rows = run_suite(
            chosen,
            names,
            seconds,
            results,
            seeds=(request.seed,),
            on_row=note,
            on_ahead=counted.ahead,
            workers=workers,
        )
    found = comparisons(rows)
    promised = figures(found, len(chosen))
    if as_json:
        print_json(
            {
                "comparisons": [asdict(one) for one in found],
                "figures": [asdict(f) for f in promised],
            }
        )
        return
    print_shown(rivals_table(found))
    print_shown(promises_table(promised))


def _notes() -> tuple[Counted, Callable[[SuiteRow], None]]:
    """Counts rows, and tells of each one with the time left."""
    counted = Counted()

    def note(row: SuiteRow) -> None:
        value = row.status if math.isnan(row.value) else f"{row.value:.6g}"
        print_note(counted.told(f"{row.problem}, {row.placer}, seed {row.seed}: {value}"))

    return counted, note
