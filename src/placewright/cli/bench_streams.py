"""`bench stream-equality`: different samples through splits of models, each compared."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.output import print_json, print_note, print_table
from placewright.cli.overwriting import Writes
from placewright.report.time_left import Counted


def register(group: typer.Typer) -> None:
    """Add the command to `bench`."""
    group.command("stream-equality")(stream_equality)


def stream_equality(
    models: Annotated[
        str | None, typer.Option(help="Comma-separated models; every zoo model without.")
    ] = None,
    runtimes: Annotated[str | None, typer.Option(help="Comma-separated; all without.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Different samples of each stream.")] = 200,
    in_flight: Annotated[int, typer.Option(min=1, help="Samples under way at most.")] = 3,
    seed: opt.Seed = 0,
    results: Annotated[
        Path | None, typer.Option("--results", help="Results file; runs in it are kept."), Writes()
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Stream different samples through splits of models in every runtime and compare each one."""
    from placewright.benchmarks.stream_equality import run_stream_equality
    from placewright.session.devices import devices_by_runtime
    from placewright.session.parsing import parse_names
    from placewright.zoo import names

    counted = Counted()
    rows = run_stream_equality(
        parse_names(models) if models else [f"zoo:{name}" for name in names()],
        parse_names(runtimes) if runtimes else list(devices_by_runtime()[0]),
        samples=samples,
        in_flight=in_flight,
        seed=seed,
        results_path=results,
        on_row=lambda row: print_note(
            counted.told(f"{row.model} {row.runtime}: {row.message or f'{row.largest_error:.2g}'}")
        ),
        on_ahead=counted.ahead,
    )
    if as_json:
        print_json([{**asdict(row), "equal": row.equal} for row in rows])
    else:
        columns = ["model", "runtime", "equal", "largest error", "tolerance", "segments"]
        table = [
            [
                row.model,
                row.runtime,
                row.message or ("yes" if row.equal else "NO"),
                f"{row.largest_error:.2g}" if not row.message else "-",
                f"{row.tolerance:.2g}",
                str(row.segments),
            ]
            for row in rows
        ]
        print_table(f"{samples} samples, {in_flight} in flight", columns, table)
    if not all(row.equal for row in rows):
        raise typer.Exit(1)
