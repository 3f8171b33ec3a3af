"""`python -m benchmarks.foreign`: foreign models in every runtime that reads them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.command import PartsOfNames, Results, run, write_results
from placewright.cli import options as opt
from placewright.cli.output import print_json, print_line, print_note, print_table


def foreign(
    kinds: Annotated[
        str, typer.Option(help="Comma-separated: onnx, transformers; '' for none.")
    ] = "onnx,transformers",
    folder: Annotated[
        Path | None,
        typer.Option(help="A folder with further models.", exists=True, file_okay=False),
    ] = None,
    only: PartsOfNames = None,
    seconds: Annotated[float, typer.Option(help="Limit of one model in seconds.")] = 300.0,
    results: Results = Path("foreign.json"),
    as_json: opt.Json = False,
) -> None:
    """Place, run and compare foreign models in every runtime that reads them.

    Writes a table beside --results.
    """
    from benchmarks.foreign.report import foreign_table
    from benchmarks.foreign.runs import FORMAT, ForeignRow, foreign_models, run_foreign
    from placewright.files.results import read_rows
    from placewright.session.parsing import parse_names

    models = foreign_models(parse_names(kinds) if kinds else [], folder)
    parts = parse_names(only) if only else [""]
    rows = run_foreign(
        [one for one in models if any(part in one[0] for part in parts)],
        folder=folder,
        seconds=seconds,
        results_path=results,
        on_row=lambda row: print_note(
            f"{row.model} {row.format} {row.runtime}: {row.outcome} {row.reason}"
        ),
    )
    write_results(results.with_suffix(".md"), foreign_table(read_rows(results, FORMAT, ForeignRow)))
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    cells = [
        [row.model, row.format, row.runtime or "-", row.outcome, str(row.segments), row.reason]
        for row in rows
    ]
    print_table("Foreign models", ["model", "format", "runtime", "", "segments", "why"], cells)
    counts = Counter(row.outcome for row in rows)
    print_line(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    if any(row.outcome in ("not equal", "failed") for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    run(foreign)
