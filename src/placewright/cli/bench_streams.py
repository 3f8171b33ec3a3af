"""`bench streams` and `bench stream-equality`: rates of all ways to stream, and their outputs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.derived import takes_request
from placewright.cli.output import print_json, print_note, print_shown
from placewright.cli.overwriting import Writes
from placewright.report.time_left import Counted
from placewright.session.request import Request


def register(group: typer.Typer) -> None:
    """Add the commands to `bench`."""
    group.command("streams")(streams)
    group.command("stream-equality")(stream_equality)


@takes_request("seed", model=None)
def streams(
    request: Request,
    models: Annotated[
        str | None, typer.Option(help="Comma-separated models; every zoo model without.")
    ] = None,
    clusters: Annotated[
        str | None,
        typer.Option(help="Comma-separated pairs of cores: 'two f32 cores', 'f32 + bf16'."),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=20, help="Whose outputs are compared, and of a round at most.")
    ] = 24,
    rounds: Annotated[int, typer.Option(min=5, help="Of all ways in turn.")] = 9,
    results: Annotated[
        Path, typer.Option("--results", help="Results file; runs in it are kept."), Writes()
    ] = Path("streams.json"),
    as_json: opt.Json = False,
) -> None:
    """Samples per second of every way to stream models; writes a table beside --results."""
    from placewright.benchmarks.streams import PAIRS, read_streams, run_streams_benchmark
    from placewright.errors import UnknownNameError
    from placewright.files.text import write_text
    from placewright.report.benchmark_tables import streams_table
    from placewright.report.streams import streams_text
    from placewright.session.parsing import parse_names
    from placewright.zoo import names

    asked = parse_names(clusters) if clusters else PAIRS
    for name in asked:
        if name not in PAIRS:
            raise UnknownNameError("pair of cores", name, PAIRS)
    rows = run_streams_benchmark(
        parse_names(models) if models else [f"zoo:{name}" for name in names()],
        asked,
        samples=samples,
        rounds=rounds,
        seed=request.seed,
        results_path=results,
        on_row=lambda row: print_note(
            f"{row.model}, {row.cluster}: {row.message or row.recommended}"
        ),
    )
    text = results.with_suffix(".md")
    write_text(text, streams_text(read_streams(results)))
    print_note(f"wrote {text}")
    if as_json:
        print_json([{**asdict(row), "of_best": row.of_best} for row in rows])
        return
    print_shown(streams_table(rows))


@takes_request("seed", model=None)
def stream_equality(
    request: Request,
    models: Annotated[
        str | None, typer.Option(help="Comma-separated models; every zoo model without.")
    ] = None,
    runtimes: Annotated[str | None, typer.Option(help="Comma-separated; all without.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Different samples of each stream.")] = 200,
    in_flight: Annotated[int, typer.Option(min=1, help="Samples under way at most.")] = 3,
    results: Annotated[
        Path | None, typer.Option("--results", help="Results file; runs in it are kept."), Writes()
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Stream different samples through splits of models in every runtime and compare each one."""
    from placewright.benchmarks.stream_equality import run_stream_equality
    from placewright.report.benchmark_tables import stream_equality_table
    from placewright.session.devices import devices_by_runtime
    from placewright.session.parsing import parse_names
    from placewright.zoo import names

    counted = Counted()
    rows = run_stream_equality(
        parse_names(models) if models else [f"zoo:{name}" for name in names()],
        parse_names(runtimes) if runtimes else list(devices_by_runtime()[0]),
        samples=samples,
        in_flight=in_flight,
        seed=request.seed,
        results_path=results,
        on_row=lambda row: print_note(
            counted.told(f"{row.model} {row.runtime}: {row.message or f'{row.largest_error:.2g}'}")
        ),
        on_ahead=counted.ahead,
    )
    if as_json:
        print_json([{**asdict(row), "equal": row.equal, "kept": row.kept} for row in rows])
    else:
        print_shown(stream_equality_table(rows, samples, in_flight))
    if not all(row.equal and row.kept for row in rows):
        raise typer.Exit(1)
