"""`placewright bench`: reproduce published tables and our own figures."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import (
    bench_endurance,
    bench_foreign,
    bench_learned,
    bench_memory,
    bench_paper,
    bench_streams,
    bench_suite,
    bench_workers,
)
from placewright.cli import options as opt
from placewright.cli.derived import takes_request
from placewright.cli.output import print_json, print_note, print_shown, recorded
from placewright.cli.overwriting import Writes
from placewright.cli.report_option import ReportFile, write_tables_report
from placewright.errors import InputError
from placewright.report.time_left import Counted
from placewright.session.request import Request

Results = Annotated[
    Path, typer.Option("--results", help="Results file; runs in it are kept."), Writes()
]
Plot = Annotated[Path | None, typer.Option(help="SVG file to draw the results into."), Writes()]


def register(app: typer.Typer) -> None:
    """Add the `bench` group."""
    group = typer.Typer(help="Reproduce tables and figures.", no_args_is_help=True)
    group.callback()(_reported)
    group.command()(tarnawski)
    group.command()(kernel)
    group.command()(incremental)
    group.command()(equality)
    group.command()(accuracy)
    group.command()(bench_memory.memory)
    group.command()(bench_workers.workers)
    group.command()(bench_workers.hosts)
    bench_learned.register(group)
    group.command()(bench_paper.paper)
    bench_suite.register(group)
    bench_streams.register(group)
    bench_foreign.register(group)
    bench_endurance.register(group)
    app.add_typer(group, name="bench")


def _reported(context: typer.Context, report_file: ReportFile = None) -> None:
    """Reproduce tables and figures; `bench --report FILE.html SUITE` keeps them as a page."""
    if report_file is None:
        return
    shown = context.with_resource(recorded())
    title = f"bench {context.invoked_subcommand}"
    context.call_on_close(lambda: write_tables_report(report_file, title, shown))


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
    from placewright.benchmarks.tarnawski import fetch_workloads, run_tarnawski_benchmark
    from placewright.report.benchmark_tables import tarnawski_table
    from placewright.session.parsing import parse_names

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


@takes_request("seed", model=None)
def kernel(
    request: Request,
    sizes: Annotated[str, typer.Option(help="Comma-separated numbers of ops.")] = (
        "1000,10000,100000"
    ),
    devices: Annotated[str, typer.Option(help="Comma-separated numbers of devices.")] = "4",
    inputs: Annotated[str, typer.Option(help="Comma-separated numbers of inputs of an op.")] = "2",
    results: Annotated[
        Path | None, typer.Option(help="Results file; rows of other problems stay in it."), Writes()
    ] = None,
    plot: Plot = None,
    as_json: opt.Json = False,
) -> None:
    """Rate of the event kernel on one core, beside a plain-Python simulator of the same rules."""
    from placewright.benchmarks.kernel import add_results, growth, run_kernel_benchmark
    from placewright.report.benchmark_tables import kernel_table
    from placewright.report.pictures import draw_kernel_rates, pyplot

    if plot is not None:
        pyplot()  # before the long work
    numbers = [
        _numbers(*said)
        for said in (("--sizes", sizes), ("--devices", devices), ("--inputs", inputs))
    ]
    counted = Counted()
    counted.ahead(math.prod(map(len, numbers)))
    rows = run_kernel_benchmark(
        numbers[0],
        numbers[1],
        inputs=numbers[2],
        seed=request.seed,
        on_row=lambda row: print_note(
            counted.told(f"{row.ops} ops x {row.devices} devices: {row.seconds * 1e3:.3f} ms")
        ),
    )
    known = add_results(rows, results) if results is not None else rows
    if plot is not None:
        draw_kernel_rates(known, plot)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_shown(kernel_table(rows))
    for kind in dict.fromkeys((row.devices, row.inputs) for row in rows):
        exponent = growth([row for row in rows if (row.devices, row.inputs) == kind])
        if not math.isnan(exponent):
            print_note(
                f"{kind[0]} devices, {kind[1]} inputs: seconds grow like (n log n)^{exponent:.2f}"
            )


@takes_request("seed", model=None)
def incremental(
    request: Request,
    sizes: Annotated[str, typer.Option(help="Comma-separated numbers of ops.")] = "1000,10000",
    devices: Annotated[int, typer.Option(help="Number of devices.")] = 4,
    as_json: opt.Json = False,
) -> None:
    """Re-evaluation after moving one unit, beside a full evaluation; the values must be equal."""
    from placewright.benchmarks.incremental import run_incremental_benchmark
    from placewright.report.benchmark_tables import incremental_table

    rows = run_incremental_benchmark(_numbers("--sizes", sizes), devices, seed=request.seed)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_shown(incremental_table(rows))


def _numbers(option: str, text: str) -> list[int]:
    from placewright.session.parsing import parse_names

    try:
        numbers = [int(part) for part in parse_names(text)]
    except ValueError:
        numbers = [0]
    if min(numbers, default=0) < 1:
        raise InputError(f"{option} expects numbers such as 1000,10000, got '{text}'")
    return numbers


@takes_request("devices", "runtime", "objective", "optimizer", "seed", devices="cores")
def equality(
    request: Request,
    placements: Annotated[int, typer.Option(help="Random placements to run.")] = 200,
    as_json: opt.Json = False,
) -> None:
    """Run random placements of MODEL and compare all outputs with the unsplit model's.

    Of a training step every updated tensor is compared, too.
    """
    from placewright.benchmarks.equality import run_equality_benchmark
    from placewright.report.benchmark_tables import equality_table
    from placewright.session.session import Session

    session = Session(request, calibrate=False)
    found = run_equality_benchmark(
        session.problem, session.loaded, placements, seed=request.seed, on_done=print_note
    )
    if as_json:
        print_json(asdict(found))
    else:
        print_shown(equality_table(request.name, found))
    if found.equal < found.placements:
        raise typer.Exit(1)


@takes_request("devices", "runtime", "objective", "seed", "remeasure", model=None, devices="cores")
def accuracy(
    request: Request,
    models: Annotated[
        str, typer.Option(help="Comma-separated models.")
    ] = "zoo:inception_v3,zoo:resnet50,zoo:bert_base",
    placements: Annotated[int, typer.Option(help="Measured placements of each model.")] = 30,
    results: Results = Path("accuracy.json"),
    plot: Plot = None,
    as_json: opt.Json = False,
) -> None:
    """Predicted against measured latency: random, heuristic and near-best placements."""
    from placewright.benchmarks.accuracy import run_accuracy_benchmark
    from placewright.report.accuracy import VISITS, summaries
    from placewright.report.benchmark_tables import accuracy_table
    from placewright.report.pictures import draw_accuracy, pyplot
    from placewright.session.parsing import parse_names
    from placewright.session.session import Session

    if plot is not None:
        pyplot()  # before the long work
    rows, counted = [], Counted()
    for name in parse_names(models):
        session = Session(request, model=name)
        rows += run_accuracy_benchmark(
            name,
            session.problem,
            session.loaded,
            placements,
            seed=request.seed,
            results_path=results,
            on_row=lambda row: print_note(
                counted.told(
                    f"{row.model} {row.origin}: {row.error:.1%} (visit {row.n_visits} of {VISITS})"
                )
            ),
            on_ahead=counted.ahead,
        )
    found = summaries(rows)
    if plot is not None:
        draw_accuracy(rows, plot)
    if as_json:
        print_json({"rows": [asdict(row) for row in rows], "summary": [asdict(s) for s in found]})
        return
    print_shown(accuracy_table(found))
