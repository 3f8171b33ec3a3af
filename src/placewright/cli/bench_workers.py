"""`placewright bench workers`: two workers of one core each beside one."""

from __future__ import annotations

from typing import Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.output import print_json, print_line, print_note


def workers(
    models: Annotated[str, typer.Option(help="Comma-separated zoo models.")] = (
        "inception_v3,resnet50,bert_base,gnmt,rnnlm"
    ),
    clusters: Annotated[
        str, typer.Option(help="Comma-separated clusters of the catalogue.")
    ] = "2gpu,4gpu",
    placers: Annotated[
        str, typer.Option(help="Comma-separated placers.")
    ] = "cem,local-search,random",
    evaluations: Annotated[int, typer.Option(help="Of every run.")] = 200,
    seeds: Annotated[int, typer.Option(help="Runs per placer, seeds 0 .. N-1.")] = 2,
    rounds: Annotated[int, typer.Option(help="Measurements with one worker and with two.")] = 3,
    as_json: opt.Json = False,
) -> None:
    """Runs of `bench learned` by two workers of one core each, beside one; values must be equal."""
    from placewright.benchmarks.learned import zoo_cases
    from placewright.benchmarks.workers_speed import measure_workers, speed_data
    from placewright.session.parsing import parse_names

    cases = zoo_cases(parse_names(models), parse_names(clusters), "latency")
    one = measure_workers(
        "processes",
        cases,
        parse_names(placers),
        evaluations,
        seeds=seeds,
        rounds=rounds,
        told=print_note,
    )
    if as_json:
        print_json([speed_data(one)])
        return
    print_line(
        f"{one.runs} runs on {one.problems} problems: two worker processes are {one.ratio:.2f} x "
        "as fast as one"
    )
