"""The commands `compare` (placers, by one evaluator and budget) and `replay` (plans of others)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.command import command, plain_command
from placewright.cli.output import (
    print_all,
    print_json,
    print_lines,
    print_note,
    print_table,
    progress,
    tell_warning,
)
from placewright.cli.report import ReportFile, write_tables_report
from placewright.session.request import COMPARED, Request


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(compare)
    app.command()(replay)


@command(*COMPARED)
def compare(
    request: Request,
    placers: Annotated[
        str, typer.Option(help="Comma-separated placers; `placewright placers` lists them.")
    ] = "heft,local-search,random",
    seeds: Annotated[
        int, typer.Option(help="Run each placer N times, with seeds 0 to N-1; there is no --seed.")
    ] = 1,
    pareto: Annotated[
        int | None,
        typer.Option(help="Also search N points of the Pareto front of latency and energy."),
    ] = None,
    output: opt.Output = None,
    report_file: ReportFile = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Compare placers on MODEL with one evaluator and equal budgets.

    The table has a lower bound, which is computed once, within the seconds of one run. With
    --seeds, it has the median, the best and the spread of each placer. With --pareto, a second
    table shows placements that no other one found beats in latency and energy. If no run has a
    placement, the exit code is 1.
    """
    from placewright.core.quantities import counted
    from placewright.report.plan_text import limit_warning
    from placewright.report.tables import ShownTable
    from placewright.session.comparison import (
        FRONT_COLUMNS,
        ParetoPoint,
        charged_by_energy,
        front_data,
        front_rows,
        pareto_front,
    )
    from placewright.session.parsing import parse_names
    from placewright.session.session import Session

    with progress("compare", hidden=quiet or as_json) as report:
        session = Session(request, report)
        if pareto is not None:
            charged_by_energy(session.problem, pareto)  # refused before any search
        table = session.compare(parse_names(placers), seeds=seeds, results=output)
        front: tuple[ParetoPoint, ...] = ()
        if pareto is not None:
            limit, seed = request.limit, request.seed
            front = pareto_front(session.problem, limit, points=pareto, seed=seed, report=report)
    tell_warning(limit_warning(session.problem))
    if output is not None:
        print_note(f"wrote {output}")
    title = f"{request.name}, {counted(seeds, 'seed')}"
    shown: list[str | ShownTable] = [
        table.headline,
        ShownTable(title, table.columns, tuple(map(tuple, table.text_rows()))),
        *([ShownTable("Pareto front", FRONT_COLUMNS, front_rows(front))] if front else []),
        *table.legend,
        *table.settings_lines(),
    ]
    write_tables_report(report_file, title, shown)
    if as_json:
        print_json({**table.data(), **({"pareto": front_data(front)} if front else {})})
    else:
        print_all(shown)
    if not table.has_placement:
        raise typer.Exit(1)


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
