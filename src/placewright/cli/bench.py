"""`placewright bench`: reproduce published tables and our own figures."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import bench_learned, bench_paper, bench_suite
from placewright.cli import options as opt
from placewright.cli.command import plain_command
from placewright.cli.output import print_json, print_note, print_shown, recorded
from placewright.cli.overwriting import Writes
from placewright.cli.report_option import ReportFile, write_tables_report
from placewright.errors import InputError
from placewright.report.time_left import Counted

Results = Annotated[
    Path, typer.Option("--results", help="Results file; runs in it are kept."), Writes()
]
Plot = Annotated[Path | None, typer.Option(help="SVG file to draw the results into."), Writes()]


def register(app: typer.Typer) -> None:
    """Add the `bench` group."""
    group = typer.Typer(help="Reproduce tables and figures.", no_args_is_help=True)
    group.callback()(_reported)
    group.command()(tarnawski)
    bench_learned.register(group)
    group.command()(bench_paper.paper)
    bench_suite.register(group)
    app.add_typer(group, name="bench")


def _reported(context: typer.Context, report_file: ReportFile = None) -> None:
    """Reproduce tables and figures; `bench --report FILE.html SUITE` keeps them as a page."""
    if report_file is None:
        return
    shown = context.with_resource(recorded())
    title = f"bench {context.invoked_subcommand}"
    context.call_on_close(lambda: write_tables_report(report_file, title, shown))


@plain_command
def tarnawski(
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder with throughput/, latency/, experts/.")
    ] = None,
    fetch: Annotated[
        Path | None, typer.Option("--fetch", help="Download the workloads into this folder first.")
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Comma-separated placers.")] = None,
    workloads: Annotated[str | None, typer.Option(help="Comma-separated parts of names.")] = None,
    seconds: Annotated[float, typer.Option(help="Budget of each run.")] = 60.0,
    results: Results = Path("tarnawski.json"),
    as_json: opt.Json = False,
) -> None:
    """Every method on every workload of Tarnawski et al. 2020: value, bound, gap, time, memory."""
    from placewright.report.benchmark_tables import tarnawski_table
    from placewright.session.parsing import parse_names
    from placewright.suites.tarnawski import fetch_workloads, run_tarnawski_benchmark

    folder = fetch_workloads(fetch) if fetch is not None else data
    if folder is None:
        raise InputError("give --data FOLDER, or --fetch FOLDER to download the workloads")
    counted = Counted()
    rows = run_tarnawski_benchmark(
        folder,
        methods=parse_names(methods) if methods else None,
        workloads=parse_names(workloads) if workloads else None,
        seconds_per_run=seconds,
        results_path=results,
        on_row=lambda row: print_note(counted.told(f"{row.workload} {row.method}: {row.value}")),
        on_ahead=counted.ahead,
    )
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_shown(tarnawski_table(rows))
