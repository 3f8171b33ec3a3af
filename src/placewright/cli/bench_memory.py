"""`placewright bench memory`: models that fit no device, placed, run, and read from allocators."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.derived import takes_request
from placewright.cli.output import print_json, print_note, print_shown
from placewright.cli.overwriting import Writes
from placewright.session.request import Request


@takes_request(
    "devices", "runtime", "objective", "optimizer", "placer", "budget", "seed",
    model=None, devices="cpu:0,cpu:1", runtime="torch", objective="training", budget="20s",
)  # fmt: skip
def memory(
    request: Request,
    models: Annotated[str, typer.Option(help="Comma-separated models.")] = (
        "zoo:gnmt,zoo:rnnlm,zoo:bert_base,zoo:resnet50"
    ),
    share: Annotated[
        float, typer.Option(help="Limit of each device: this part of what the model takes on one.")
    ] = 0.6,
    results: Annotated[
        Path, typer.Option("--results", help="Results file; other models stay in it."), Writes()
    ] = Path("memory.json"),
    as_json: opt.Json = False,
) -> None:
    """Models that fit no device: placed under a limit, run, predicted beside measured peaks."""
    from placewright.benchmarks.memory import add_row, read_memory, run_memory_benchmark
    from placewright.report.benchmark_tables import memory_table
    from placewright.session.parsing import parse_names
    from placewright.session.session import Session

    read_memory(results)  # a file of another kind is refused before the long work
    rows = []
    for name in parse_names(models):
        print_note(f"{name}: reading, measuring, placing, running")
        session = Session(request, model=name, calibrate=False)
        row = run_memory_benchmark(
            name,
            session.problem,
            session.loaded,
            share=share,
            placer=str(request.placer),
            budget=request.limit,
            seed=request.seed,
            runtime=str(request.runtime),
        )
        add_row(results, row)
        rows.append(row)
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        print_shown(memory_table(rows))
    if not all(row.equal for row in rows):
        raise typer.Exit(1)
