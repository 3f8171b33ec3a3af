"""`placewright bench memory`: models that fit no device, placed, run, and read from allocators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.output import print_json, print_note, print_table
from placewright.cli.overwriting import Writes

if TYPE_CHECKING:
    from placewright.benchmarks.memory import MemoryRow


def memory(
    models: Annotated[str, typer.Option(help="Comma-separated models.")] = (
        "zoo:gnmt,zoo:rnnlm,zoo:bert_base,zoo:resnet50"
    ),
    device_names: opt.Devices = "cpu:0,cpu:1",
    runtime: opt.RuntimeName = "torch",
    objective: opt.ObjectiveName = "training",
    optimizer: opt.Optimizer = "sgd",
    share: Annotated[
        float, typer.Option(help="Limit of each device: this part of what the model takes on one.")
    ] = 0.6,
    placer: opt.PlacerName = "auto",
    budget: opt.BudgetText = "20s",
    seed: opt.Seed = 0,
    results: Annotated[
        Path, typer.Option("--results", help="Results file; other models stay in it."), Writes()
    ] = Path("memory.json"),
    as_json: opt.Json = False,
) -> None:
    """Models that fit no device: placed under a limit, run, predicted beside measured peaks."""
    from placewright.benchmarks.memory import add_row, read_memory, run_memory_benchmark
    from placewright.session.parsing import parse_budget, parse_names
    from placewright.session.session import Session

    read_memory(results)  # a file of another kind is refused before the long work
    rows = []
    for name in parse_names(models):
        print_note(f"{name}: reading, measuring, placing, running")
        session = Session(
            name,
            devices=device_names,
            runtime=runtime,
            objective=objective,
            optimizer=optimizer,
            calibrate=False,
        )
        row = run_memory_benchmark(
            name,
            session.problem,
            session.loaded,
            share=share,
            placer=placer,
            budget=parse_budget(budget, None),
            seed=seed,
        )
        add_row(results, row)
        rows.append(row)
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        _tell(rows)
    if not all(row.equal for row in rows):
        raise typer.Exit(1)


def _tell(rows: Sequence[MemoryRow]) -> None:
    from placewright.files.quantities import format_bytes

    table = [
        [
            row.model,
            format_bytes(row.whole),
            format_bytes(row.limit),
            ", ".join(
                f"{device} {format_bytes(row.measured[device])} "
                f"({row.predicted[device] / row.measured[device] - 1.0:+.1%})"
                for device in row.used
            ),
            str(row.segments),
            "yes" if row.equal else f"NO ({row.error:.2g})",
        ]
        for row in rows
    ]
    columns = ["model", "on one device", "limit of each", "measured peak (predicted)", "segments",
               "equal"]  # fmt: skip
    print_table("Peak memory under a limit", columns, table)
