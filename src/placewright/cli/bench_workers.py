"""`bench workers` and `bench hosts`: two workers beside one, a node's measurements beside ours."""

from __future__ import annotations

from pathlib import Path
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
    kinds: Annotated[
        str, typer.Option(help="Comma-separated: processes, ray (a node on each core).")
    ] = "processes,ray",
    results: Annotated[str, typer.Option(help="Results file to write; empty for none.")] = "",
    as_json: opt.Json = False,
) -> None:
    """Runs of `bench learned` by two workers of one core each, beside one; values must be equal."""
    from placewright.benchmarks.learned import zoo_cases
    from placewright.benchmarks.workers_speed import keep_speed, measure_workers, speed_data
    from placewright.session.parsing import parse_names

    cases = zoo_cases(parse_names(models), parse_names(clusters), "latency")
    found = []
    for kind in parse_names(kinds):
        one = measure_workers(
            kind,
            cases,
            parse_names(placers),
            evaluations,
            seeds=seeds,
            rounds=rounds,
            told=print_note,
        )
        found.append(one)
        if results:
            keep_speed(Path(results), one)
        if not as_json:
            print_line(
                f"{one.runs} runs on {one.problems} problems, {kind}: two workers are "
                f"{one.ratio:.2f} x as fast as one"
            )
    if as_json:
        print_json([speed_data(one) for one in found])


def hosts(
    models: Annotated[str, typer.Option(help="Comma-separated models.")] = "zoo:resnet50,zoo:rnnlm",
    runtime: Annotated[str, typer.Option(help="openvino, onnxruntime or torch.")] = "openvino",
    rounds: Annotated[int, typer.Option(help="Measurements here and there.")] = 6,
    results: Annotated[str, typer.Option(help="Results file to write; empty for none.")] = "",
    as_json: opt.Json = False,
) -> None:
    """Costs that an actor on a Ray node measures, beside those measured here, in turn."""
    from dataclasses import asdict

    from placewright.benchmarks.hosts_costs import keep_hosts_costs, measure_hosts_costs
    from placewright.session.parsing import parse_names
    from placewright.session.request import request_of

    found = []
    for model in parse_names(models):
        row = measure_hosts_costs(request_of(model, {"runtime": runtime}), rounds, print_note)
        found.append(row)
        if results:
            keep_hosts_costs(Path(results), row)
        if not as_json:
            print_line(
                f"{model}: {row.ratio:.3f} x the seconds measured here; a unit is "
                f"{row.apart:.1%} apart (median), {row.scatter:.1%} between measurements here"
            )
    if as_json:
        print_json([asdict(row) for row in found])
