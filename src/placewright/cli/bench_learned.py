"""`placewright bench learned`, `hsdag-update`, `zero-shot`, `enlarged`: the learned placers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.command import command
from placewright.cli.output import print_json, print_line, print_note, progress
from placewright.cli.overwriting import Writes
from placewright.cli.spread import spread
from placewright.session.request import SPREAD, Request


def register(group: typer.Typer) -> None:
    """Add the commands of this module to `bench`."""
    group.command()(learned)


@command(*SPREAD, model=None)
def learned(
    request: Request,
    models: Annotated[
        str, typer.Option(help="Comma-separated zoo models; empty for none.")
    ] = "inception_v3,resnet50,bert_base,gnmt,rnnlm",
    clusters: Annotated[
        str, typer.Option(help="Comma-separated clusters of the catalogue.")
    ] = "2gpu",
    objectives: Annotated[str, typer.Option(help="Comma-separated: latency, training.")] = (
        "latency,training"
    ),
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder with the Tarnawski workloads' latency/.")
    ] = None,
    placers: Annotated[
        str,
        typer.Option(
            help="Comma-separated placers; NAME:key=value sets hyperparameters; empty for all "
            "that learn while they search."
        ),
    ] = "",
    controls: Annotated[
        bool, typer.Option(help="Each learner also with updates off, and random-grouped.")
    ] = True,
    starts: Annotated[
        bool, typer.Option(help="Evaluate the homogeneous placements first, for all or for none.")
    ] = True,
    evaluations: Annotated[int, typer.Option(help="Of every run; all queries count.")] = 500,
    seeds: Annotated[int, typer.Option(help="Runs per placer, seeds 0 .. N-1.")] = 10,
    results: Annotated[
        Path,
        typer.Option("--results", help="Results file; runs in it are not repeated."),
        Writes(),
    ] = Path("learned.json"),
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Learned placers beside their controls; writes a report beside --results."""
    from placewright.files.text import write_text
    from placewright.placers.registry import placers_that_learn
    from placewright.report.learned.text import report_text
    from placewright.session.parsing import parse_names, parse_objective
    from placewright.suites.learned import (
        read_runs,
        run_learned_benchmark,
        with_controls,
        workload_cases,
        zoo_cases,
    )

    cases = []
    for objective in parse_names(objectives) if models else []:
        names = [name.removeprefix("zoo:") for name in parse_names(models)]
        cases += zoo_cases(names, parse_names(clusters), parse_objective(objective))
    if data is not None:
        cases += workload_cases(data)
    chosen = parse_names(placers) if placers else placers_that_learn()
    wanted = with_controls(chosen, controls=controls, starts=starts)
    with progress("learned", hidden=quiet or as_json) as report, spread(request) as workers:
        runs = run_learned_benchmark(
            cases, wanted, evaluations, seeds, results, workers=workers, progress=report
        )
    text = results.with_name(f"{results.stem}-{evaluations}.md")
    all_runs = [run for run in read_runs(results) if run.evaluations == evaluations]
    write_text(text, report_text(all_runs, evaluations))
    print_note(f"wrote {text}")
    if as_json:
        print_json([asdict(run) for run in runs])
    else:
        print_line(report_text(runs, evaluations))
