"""`bench endurance`: a plan that runs in a loop beside repeated placing."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.derived import takes_request
from placewright.cli.output import print_json, print_line, print_note
from placewright.cli.overwriting import Writes
from placewright.session.request import Request

if TYPE_CHECKING:
    from placewright.benchmarks.endurance import Look


def register(group: typer.Typer) -> None:
    """Add the command to `bench`."""
    group.command("endurance")(endurance)


@takes_request("devices", "runtime", model=None, devices="cpu:0,cpu:1")
def endurance(
    request: Request,
    model: Annotated[str, typer.Option(help="A model file, or zoo:NAME.")] = "zoo:resnet50",
    minutes: Annotated[float, typer.Option(help="How long.")] = 60.0,
    results: Annotated[
        Path | None, typer.Option("--results", help="JSON file of all looks."), Writes()
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Run a plan in a loop beside repeated placing in one process; is memory flat within 2 %?"""
    import json

    from placewright.benchmarks.endurance import run_endurance
    from placewright.files.quantities import format_bytes
    from placewright.files.text import write_text

    found = run_endurance(
        model,
        minutes,
        devices=request.devices or "cpu:0,cpu:1",
        runtime=request.runtime,
        on_look=lambda look: print_note(
            f"{look.seconds:.0f} s: {look.runs} runs, {look.placements} placements, "
            f"{format_bytes(look.resident_bytes)}, {look.handles} files, {look.threads} threads; "
            f"{_parts(look)}"
        ),
    )
    last = found.looks[-1]
    summary = {
        "model": model, "minutes": minutes, "runs": last.runs, "placements": last.placements,
        "memory_growth": found.growth, "peak_growth": found.peak_growth,
        "more_handles": found.more_handles, "more_threads": found.more_threads,
        "holds": found.holds,
    }  # fmt: skip
    if results is not None:
        document = {**summary, "looks": [asdict(look) for look in found.looks]}
        write_text(results, json.dumps(document, indent=1) + "\n")
    if as_json:
        print_json(summary)
    else:
        print_line(
            f"{last.runs} runs and {last.placements} placements: memory {found.growth:+.1%}, "
            f"its peak {found.peak_growth:+.1%}, "
            f"{found.more_handles} more open files, {found.more_threads} more threads"
        )
    if not found.holds:
        raise typer.Exit(1)


def _parts(look: Look) -> str:
    """Where the memory lies, in a line."""
    from placewright.files.quantities import format_bytes

    where = look.where
    parts = {
        "files": where.file_bytes, "heap": where.heap_bytes,
        f"{where.arenas} arenas": where.arena_bytes, "other": where.other_bytes,
        "used": where.used_bytes, "free": where.free_bytes,
    }  # fmt: skip
    return ", ".join(f"{name} {format_bytes(held)}" for name, held in parts.items())
