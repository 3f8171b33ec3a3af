"""`placewright bench learned`, `hsdag-update`, `zero-shot`, `enlarged`: the learned placers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.derived import takes_request
from placewright.cli.output import print_json, print_line, print_note, print_shown, progress
from placewright.cli.overwriting import Writes
from placewright.cli.spread import spread
from placewright.session.request import SPREAD, Request


def register(group: typer.Typer) -> None:
    """Add the commands of this module to `bench`."""
    group.command()(learned)
    group.command(name="hsdag-update")(hsdag_update)
    group.command(name="zero-shot")(zero_shot)
    group.command()(enlarged)


@takes_request(*SPREAD, model=None)
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
    from placewright.benchmarks.learned import workload_cases, zoo_cases
    from placewright.benchmarks.learned_controls import with_controls
    from placewright.benchmarks.learned_runs import read_runs, run_learned_benchmark
    from placewright.files.text import write_text
    from placewright.placers.registry import placers_that_learn
    from placewright.report.learned.text import report_text
    from placewright.session.parsing import parse_names, parse_objective

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


def hsdag_update(
    models: Annotated[
        str, typer.Option(help="Comma-separated models or problem files.")
    ] = "zoo:inception_v3,zoo:bert_base,zoo:rnnlm,zoo:gnmt",
    cluster: Annotated[str, typer.Option(help="Cluster of the catalogue.")] = "2gpu",
    updates: Annotated[int, typer.Option(help="Updates that are timed.")] = 10,
    as_json: opt.Json = False,
) -> None:
    """Time of one update of HSDAG (20 placements and a gradient step) on one core."""
    from placewright.benchmarks.learned import hsdag_update_times, update_problems
    from placewright.report.benchmark_tables import update_table
    from placewright.session.parsing import parse_names

    rows = list(hsdag_update_times(update_problems(parse_names(models), cluster), updates))
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_shown(update_table(rows))


def zero_shot(
    policy: Annotated[
        str, typer.Option("--policy", help="Policy file; empty for the shipped one.")
    ] = "",
    retrain: Annotated[
        Path | None,
        typer.Option("--retrain", help="First train the shipped policy again, into this file."),
        Writes(),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of local-search.")] = 5,
    results: Annotated[
        Path | None, typer.Option("--results", help="JSON file to write the rows into."), Writes()
    ] = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """The shipped policy on models it never saw, beside local-search with 2,000 evaluations."""
    from placewright.benchmarks.shipped_policy import (
        run_zero_shot_benchmark,
        train_shipped_policy,
        zero_shot_document,
    )
    from placewright.files.text import write_text
    from placewright.report.benchmark_tables import zero_shot_table

    with progress("zero-shot", hidden=quiet or as_json) as report:
        if retrain is not None:
            policy = str(train_shipped_policy(retrain, progress=report))
    rows = list(run_zero_shot_benchmark(policy, seeds=seeds))
    if results is not None:
        write_text(results, zero_shot_document(rows))
        print_note(f"wrote {results}")
    if as_json:
        print_json([{**asdict(row), "ratio": row.ratio} for row in rows])
        return
    print_shown(zero_shot_table(rows))


@takes_request("devices", "runtime", model=None, devices="cpu:0,cpu:1")
def enlarged(
    request: Request,
    evaluations: Annotated[int, typer.Option(help="Of every run.")] = 300,
    results: Annotated[
        Path | None, typer.Option("--results", help="JSON file to write the rows into."), Writes()
    ] = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """A layer larger than any device's memory: placed by every learner, and run."""
    from placewright.benchmarks.enlarged import (
        MEMORY,
        MODEL,
        enlarged_document,
        run_enlarged_benchmark,
    )
    from placewright.files.text import write_text
    from placewright.report.benchmark_tables import enlarged_table
    from placewright.session.problems import constrained
    from placewright.session.session import Session

    with progress("enlarged", hidden=quiet or as_json) as report:
        session = Session(request, report, model=MODEL, calibrate=False)
        free = session.problem
    problem = constrained(free, dict.fromkeys(free.cluster.device_names, MEMORY), {})
    rows = list(run_enlarged_benchmark(problem, session.loaded, evaluations=evaluations))
    if results is not None:
        write_text(results, enlarged_document(problem, rows))
        print_note(f"wrote {results}")
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        print_shown(enlarged_table(rows, f"{MODEL}, {MEMORY / 1e6:.0f} MB a device"))
    if not all(row.fits and row.equal for row in rows):
        raise typer.Exit(1)
