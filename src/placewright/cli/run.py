"""The commands `simulate` (predict a plan) and `run` (execute it)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options as opt
from placewright.cli.command import command, plain_command
from placewright.cli.output import (
    print_json,
    print_line,
    print_lines,
    print_table,
    progress,
    write_noted,
)
from placewright.cli.overwriting import Writes
from placewright.cli.place import print_plan
from placewright.cli.report import ReportFile, write_plan_report
from placewright.session.request import Request

if TYPE_CHECKING:
    from placewright.core.plan import Plan
    from placewright.session.language.engine_run import EngineRun
    from placewright.session.running import RunResult
    from placewright.session.streams import StreamResult
    from placewright.simulation.model import Simulator
    from placewright.simulation.stream.play import Stream
    from placewright.simulation.timeline import Timeline

_MOST_ROWS = 50  # of the timeline, so that the verdict above it stays on the screen

Samples = Annotated[
    int | None,
    typer.Option("--samples", help="Let this many samples follow each other through the plan."),
]
InFlight = Annotated[
    int | None,
    typer.Option("--in-flight", help="With --samples: keep at most N samples in flight."),
]


@plain_command
def simulate(
    plan_file: opt.PlanFile,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Move ops first: OP=DEVICE or PATTERN=DEVICE; repeatable."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write a Chrome trace of the timeline."), Writes()
    ] = None,
    samples: Samples = None,
    in_flight: InFlight = None,
    searched: opt.Searched = False,
    model_file: opt.ModelOfPlan = None,
    report_file: ReportFile = None,
    as_json: opt.Json = False,
) -> None:
    """Predict the timeline of PLAN, or the loads of its devices.

    --set OP=DEVICE asks what the plan would take with an op elsewhere.
    """
    from placewright.core.quantities import value_text
    from placewright.session.parsing import parse_pairs
    from placewright.session.plans import read_plan, recommendation_lines
    from placewright.session.session import Session

    _check_stream(samples, in_flight, trace)
    read = read_plan(plan_file, searched=searched, model=model_file)
    pairs = parse_pairs(changes or [], "changes", "OP=DEVICE")
    answer = Session(read).simulate(read, pairs)
    plan, simulator = answer.plan, answer.simulator
    is_timed = simulator.has_timeline or trace is not None
    timeline = simulator.timeline(plan.placement) if is_timed else None
    moved = bool(pairs)
    write_plan_report(
        report_file, plan_file.name, plan, plan_file, searched=searched, is_changed=moved
    )
    if not as_json:
        print_plan(plan, str(plan_file), plan_file, searched=searched, is_changed=moved)
        print_lines(recommendation_lines(plan))
    if pairs and not as_json:
        print_line(f"before the change: {value_text(answer.before, plan.problem.value_unit)}")
    if samples is not None:
        _print_stream(plan, answer.stream(samples, in_flight), as_json)
    elif timeline is not None:
        _print_timeline(plan, timeline, trace, as_json)
    else:
        _print_loads(plan, simulator, as_json)


def _check_stream(samples: int | None, in_flight: int | None, trace: Path | None) -> None:
    from placewright.errors import FieldError, InputError

    if in_flight is not None and samples is None:
        raise FieldError("in_flight", "limits the samples in flight; give --samples too")
    if trace is not None and samples is not None:
        raise InputError("--trace applies to a single sample; leave out --samples")


def _print_stream(plan: Plan, stream: Stream, as_json: bool) -> None:
    from placewright.report.stream_text import stream_data, stream_lines, stream_rows

    if as_json:
        print_json(stream_data(plan.problem, stream))
        return
    print_lines(stream_lines(plan.problem, stream))
    print_table(
        "Devices",
        ["device", "busy in the stream", "peak memory"],
        stream_rows(plan.problem, stream),
    )


def _print_timeline(plan: Plan, timeline: Timeline, trace: Path | None, as_json: bool) -> None:
    from placewright.report.timeline_text import timeline_data, timeline_rows
    from placewright.report.trace import trace_text

    write_noted(trace, lambda: trace_text(plan.problem, timeline))
    if as_json:
        print_json(timeline_data(plan, timeline))
        return
    columns = ["segment", "device", "start", "end", "first unit", "waited for"]
    rows = timeline_rows(plan.problem, timeline)
    print_table("Timeline", columns, rows[:_MOST_ROWS])
    if len(rows) > _MOST_ROWS:
        print_line(f"{len(rows) - _MOST_ROWS} more segments: --json, --trace and --report have all")


def _print_loads(plan: Plan, simulator: Simulator, as_json: bool) -> None:
    """Print the loads; of the execution models without a timeline, only `max-load` has them."""
    from placewright.report.timeline_text import load_rows, value_data

    loads = simulator.explain(plan.placement).loads
    if as_json:
        print_json(value_data(plan, loads))
    elif loads is not None:
        columns = ["device", f"load ({plan.problem.time_unit})", "of the largest"]
        print_table("Loads", columns, load_rows(plan.problem, loads))


@command(
    "latency_limit",
    model=None,
    isolates=True,
    helps={
        "latency_limit": "Recommend only contenders whose samples take less than a time such as "
        "200ms, 95 % of them."
    },
)
def run(
    request: Request,
    plan_file: opt.PlanFile,
    runs: Annotated[
        int | None, typer.Option("--runs", help="Measure N runs of each contender.")
    ] = None,
    engine: opt.EngineName = None,
    engine_folder: opt.EngineFolder = None,
    servers: opt.EngineServers = None,
    boundaries: Annotated[
        bool, typer.Option("--boundaries", help="Compare every tensor that crosses devices, too.")
    ] = False,
    inputs: Annotated[
        Path | None,
        typer.Option("--inputs", help="Read a value for each input from an .npz file."),
    ] = None,
    samples: Samples = None,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", help="Let samples follow each other for this many seconds."),
    ] = None,
    in_flight: InFlight = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout",
            help="Stop a run that takes longer than a time such as 60s.",
        ),
    ] = None,
    searched: opt.Searched = False,
    model_file: opt.ModelOfPlan = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="Write a Chrome trace of the measured and the predicted run."),
        Writes(),
    ] = None,
    report_file: ReportFile = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Run PLAN and compare outputs and time with the unsplit model.

    With --engine, the engine runs a plan of a language model, and its own print of tensors, its
    tokens and its speed are compared.
    """
    from placewright.errors import InputError
    from placewright.io.array_file import read_arrays
    from placewright.session.parsing import parse_duration
    from placewright.session.plans import read_plan
    from placewright.session.session import Session

    is_stream = samples is not None or seconds is not None
    of_one = {
        "--inputs": inputs, "--trace": trace, "--report": report_file,
        "--boundaries": boundaries or None,
    }  # fmt: skip
    of_stream = {"--latency-limit": request.latency_limit, "--in-flight": in_flight}
    others = {**of_one, **of_stream, "--samples": samples, "--seconds": seconds}
    of_engine = {"--engine-folder": engine_folder, "--servers": servers}
    if opt.engine_asked(engine, of_engine, {**others, "--timeout": timeout}):
        read = read_plan(plan_file, searched=searched, model=model_file)
        _run_on_engine(read, engine_folder, servers, runs, (as_json, quiet))
        return
    if is_stream and (option := opt.first_given({**of_one, "--runs": runs})) is not None:
        raise InputError(f"{option} applies to single runs; leave out --samples and --seconds")
    if not is_stream and (option := opt.first_given(of_stream)) is not None:
        raise InputError(f"{option} applies to streams; give --samples or --seconds too")
    allowed = parse_duration(timeout, "timeout")
    values = None if inputs is None else read_arrays(inputs)
    plan = read_plan(plan_file, searched=searched, model=model_file)
    number = {} if runs is None else {"runs": runs}
    with progress("run", hidden=quiet or as_json) as report:
        session = Session(plan, report, latency_limit=request.latency_limit)
        if is_stream:
            streamed = session.measure_stream(
                plan, samples=samples, seconds=seconds, in_flight=in_flight, timeout=allowed
            )
        else:
            result = session.measure(
                plan, **number, boundaries=boundaries, inputs=values, timeout=allowed
            )
            write_noted(trace, lambda: session.trace(plan, allowed, values))
    if is_stream:
        _tell(streamed, as_json, table=streamed.table())
        return
    measured = replace(plan, measured=result.measurement)
    write_plan_report(report_file, plan_file.name, measured, plan_file, searched=searched)
    _tell(result, as_json)


def _run_on_engine(
    plan: Plan,
    folder: Path | None,
    servers: str | None,
    runs: int | None,
    shown: tuple[bool, bool],
) -> None:
    from placewright.execution.engine.programs import engine_at
    from placewright.session.language.engine_run import run_on_engine

    as_json, quiet = shown
    addresses = opt.addresses_of(servers)
    with progress("run", hidden=quiet or as_json) as report:
        result = run_on_engine(plan, engine_at(folder), servers=addresses, runs=runs, report=report)
    _tell(result, as_json)


def _tell(result: RunResult | StreamResult | EngineRun, as_json: bool, table: Any = None) -> None:
    if as_json:
        print_json(result.data())
    else:
        if table is not None:
            print_table("Streams", *table)
        print_lines(result.lines())
    if not result.equal:
        raise typer.Exit(1)
