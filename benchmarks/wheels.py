"""Verdicts on real models of installed packages, beside measured times."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.command import PartsOfNames, Results, run, write_results
from placewright.cli import options as opt
from placewright.cli.output import print_json, print_line, print_note

if TYPE_CHECKING:
    from benchmarks.foreign.verdicts import WheelRow


def wheels(
    packages: Annotated[
        str,
        typer.Option(help="Comma-separated folders of packages, as pip install --target fills."),
    ] = "",
    runtimes: Annotated[
        str, typer.Option(help="Comma-separated runtimes; '' is the one that reads each model.")
    ] = "",
    devices: Annotated[str, typer.Option(help="Devices of every plan.")] = "cores",
    budget: Annotated[str, typer.Option(help="Time of each search, such as 3s.")] = "3s",
    total: Annotated[str, typer.Option(help="Time of each checked plan, such as 60s.")] = "60s",
    only: PartsOfNames = None,
    seconds: Annotated[float, typer.Option(help="Limit of one model in seconds.")] = 300.0,
    results: Results = Path("foreign-wheels.json"),
    as_json: opt.Json = False,
) -> None:
    """Measure quick and checked plans of real models in installed packages.

    Every plan is compared with the best single device.
    """
    from benchmarks.foreign.verdict_report import (
        figure_lines,
        verdict_figures,
        verdict_table,
    )
    from benchmarks.foreign.verdicts import FORMAT, Protocol, WheelRow, run_verdicts
    from benchmarks.foreign.wheels import listed_models
    from placewright.core.quantities import parse_seconds
    from placewright.files.results import read_rows
    from placewright.session.parsing import parse_names

    parts = parse_names(only) if only else [""]
    rows = run_verdicts(
        [one for one in listed_models() if any(part in one.name for part in parts)],
        parse_names(runtimes) if runtimes else [],
        Protocol(devices, parse_seconds(budget), parse_seconds(total)),
        folders=[Path(one) for one in parse_names(packages)] if packages else [],
        seconds=seconds,
        results_path=results,
        on_row=lambda row: print_note(_told(row)),
    )
    write_results(results.with_suffix(".md"), verdict_table(read_rows(results, FORMAT, WheelRow)))
    found = verdict_figures(rows)
    if as_json:
        print_json({"figures": asdict(found), "rows": [asdict(row) for row in rows]})
    else:
        for line in figure_lines(found):
            print_line(line)
    if found.quick_slower or found.full_slower or found.unequal:
        raise typer.Exit(1)


def _told(row: WheelRow) -> str:
    says = "split" if row.quick_splits else "one device"
    ratio = f" {row.quick_ratio:.2f}" if row.quick_ratio > 0 else ""
    full = f", full {row.full_recommendation or '-'}"
    full += f" {row.full_ratio:.2f}" if row.full_ratio > 0 else ""
    plans = f"quick {says}{ratio}{full}" if row.quick_devices else ""
    words = (f"{row.model} {row.runtime}: {row.outcome}", plans, row.reason, f"{row.seconds:.0f} s")
    return ", ".join(filter(None, words))


if __name__ == "__main__":
    run(wheels)
