"""`compare`: several placers under one evaluator and one budget."""

from __future__ import annotations

from typing import Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.output import print_json, print_note, print_table, progress, tell_warning


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(compare)


def compare(
    model: opt.Model,
    placers: Annotated[
        str, typer.Option(help="Comma-separated names; see `placewright placers`.")
    ] = "heft,local-search,random",
    seeds: Annotated[int, typer.Option(help="Runs per placer, seeds 0 .. N-1.")] = 1,
    device_names: opt.Devices = None,
    cluster: opt.ClusterFile = None,
    runtime: opt.RuntimeName = None,
    objective: opt.ObjectiveName = None,
    execution_model: opt.ExecutionModelName = None,
    optimizer: opt.Optimizer = "sgd",
    colocate_backward: opt.ColocateBackward = False,
    budget: opt.BudgetText = None,
    evaluations: opt.Evaluations = None,
    samples_in_flight: opt.SamplesInFlight = None,
    memory: opt.Memory = None,
    pins: opt.Pins = None,
    shapes: opt.Shapes = None,
    evaluator: opt.EvaluatorName = "simulated",
    output: opt.Output = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Compare placers on MODEL: same problem, same evaluator, same budget."""
    from placewright.report.plan_text import limit_warning
    from placewright.session import comparison
    from placewright.session.parsing import parse_budget, parse_names
    from placewright.session.problems import ProblemRequest, build_problem
    from placewright.session.running import check_evaluator, measure_of

    request = ProblemRequest.of_texts(
        model,
        devices=device_names,
        cluster=cluster,
        runtime=runtime,
        objective=objective,
        execution_model=execution_model,
        optimizer=optimizer,
        colocate_backward=colocate_backward,
        samples_in_flight=samples_in_flight,
        memory=memory,
        pins=pins,
        shapes=shapes,
    )
    limit = parse_budget(budget, evaluations)
    check_evaluator(evaluator)  # these before any long work
    comparison.made_placers(parse_names(placers), seeds)
    with progress("compare", hidden=quiet or as_json) as report:
        problem = build_problem(request, report)
        table = comparison.compare(
            problem,
            parse_names(placers),
            seeds,
            limit,
            measure=measure_of(problem, request.runtime, evaluator),
            progress=report,
            results_path=output,
        )
    tell_warning(limit_warning(problem))
    if output is not None:
        print_note(f"wrote {output}")
    if as_json:
        print_json(table.data())
        return
    print_table(f"{model}, {seeds} seed(s)", table.columns, table.text_rows())
