"""`place`: the main job. Read, profile, search, check on the hardware, write the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from placewright.cli import options as opt
from placewright.cli.output import (
    print_json,
    print_line,
    print_note,
    print_table,
    progress,
    tell_warning,
)
from placewright.cli.overwriting import Writes


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(place)


def _beside(plan: Path) -> list[Path]:
    from placewright.files.plan_file import problem_path_of
    from placewright.io.written import is_written_through

    return [problem_path_of(plan)] if plan.name and not is_written_through(plan) else []


PlanOutput = Annotated[
    Path | None, typer.Option("-o", "--output", help="File to write."), Writes(_beside)
]


def place(
    model: opt.Model,
    device_names: opt.Devices = None,
    cluster: opt.ClusterFile = None,
    runtime: opt.RuntimeName = None,
    objective: opt.ObjectiveName = None,
    execution_model: opt.ExecutionModelName = None,
    optimizer: opt.Optimizer = "sgd",
    colocate_backward: opt.ColocateBackward = False,
    compiled: opt.Compile = False,
    remeasure: opt.Remeasure = False,
    placer: opt.PlacerName = "auto",
    settings: opt.PlacerSettings = None,
    policy: opt.PolicyFile = None,
    budget: opt.BudgetText = None,
    evaluations: opt.Evaluations = None,
    total: opt.Total = None,
    quick: opt.Quick = False,
    replicate: opt.Replicate = False,
    latency_limit: opt.LatencyLimit = None,
    seed: opt.Seed = 0,
    evaluator: opt.EvaluatorName = "simulated",
    samples_in_flight: opt.SamplesInFlight = None,
    memory: opt.Memory = None,
    pins: opt.Pins = None,
    shapes: opt.Shapes = None,
    resident: opt.Resident = None,
    check: Annotated[
        bool, typer.Option(help="Run the placement and the baselines on the hardware.")
    ] = True,
    output: PlanOutput = Path("plan.json"),
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Find the best placement of MODEL, prove how good it is, run it, write plan.json."""
    from placewright.files.plan_file import write_plan
    from placewright.report.plan_text import limit_warning
    from placewright.session.parsing import require_folder
    from placewright.session.placing import SearchRequest, place_request
    from placewright.session.problems import ProblemRequest

    require_folder(target := output or Path("plan.json"))
    request = ProblemRequest.of_texts(
        model,
        devices=device_names,
        cluster=cluster,
        runtime=runtime,
        objective=objective,
        execution_model=execution_model,
        optimizer=optimizer,
        colocate_backward=colocate_backward,
        compiled=compiled,
        remeasure=remeasure,
        samples_in_flight=samples_in_flight,
        memory=memory,
        pins=pins,
        shapes=shapes,
        resident=resident,
    )
    wanted = SearchRequest.of_texts(
        placer,
        settings=settings,
        policy=policy,
        budget=budget,
        evaluations=evaluations,
        total=total,
        is_quick=quick,
        seed=seed,
        evaluator=evaluator,
        replicate=replicate,
        latency_limit=latency_limit,
        check=check,
    )
    with progress("place", hidden=quiet or as_json) as report:
        placed = place_request(request, wanted, report)
    plan, table = placed.plan, placed.table
    write_plan(target, plan)
    tell_warning(limit_warning(plan.problem))
    _tell(plan, model, target, table, as_json)


def _tell(plan: Any, model: str, target: Path, table: Any, as_json: bool) -> None:
    """The plan as JSON, or as text with what the hardware said."""
    from placewright.files.plan_file import plan_data, problem_path_of
    from placewright.files.problem_file import problem_text, text_sha256

    if as_json:
        text = problem_text(plan.problem)
        entry = {"path": str(problem_path_of(target)), "sha256": text_sha256(text)}
        print_json(plan_data(plan, entry))
        return
    print_plan(plan, model)
    if table is not None:
        print_table(table.title, table.columns, table.rows)
        print_line(table.verdict)
    written = [str(path) for path in (target, *_beside(target))]
    print_note(f"wrote {' and '.join(written)}")


def print_plan(plan: Any, model: str) -> None:
    """The value, the proof and the share of each device."""
    from placewright.report.plan_text import plan_lines

    for line in plan_lines(plan, model):
        print_line(line)
