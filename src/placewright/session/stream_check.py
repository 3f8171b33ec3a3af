"""A throughput plan beside simpler ways to stream its model, with a verdict, for `place`."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from placewright.core.contender_names import EVEN_SPLIT, PLAN, device_of
from placewright.core.deadline import NEVER, Deadline
from placewright.core.placement import Placement
from placewright.core.plan import Measurement, Plan
from placewright.errors import InfeasibleError, MismatchError
from placewright.execution.runtime import LoadedModel
from placewright.files.quantities import format_duration
from placewright.session.comparable import Ways
from placewright.session.contenders import Table
from placewright.session.recommended import held_lines, recommendation_lines, recommended_plan
from placewright.session.steps import Report, no_report
from placewright.session.stream_candidates import best_measured
from placewright.session.stream_measuring import StreamLength, execute_stream
from placewright.session.stream_result import StreamResult
from placewright.session.stream_ways import stream_ways
from placewright.session.streaming import streamable
from placewright.simulation.model import Simulator
from placewright.simulation.stream.play import Stream

_SAMPLES = 100
_PLAYED = 60


def can_stream(plan: Plan) -> bool:
    """True when a throughput plan's model is at hand and devices of this machine were measured."""
    problem = plan.problem
    return (
        problem.objective == "throughput"
        and problem.source is not None
        and problem.costs.source == "measured"
        and problem.time_unit == "s"
    )


def within_latency(simulator: Simulator, placement: Placement, limit: float) -> int | None:
    """The samples in flight that keep a sample's latency below a limit, by the simulator.

    Args:
        simulator: of the problem.
        placement: whose stream it is.
        limit: seconds that 95 % of the samples may take; inf is no limit.

    Returns:
        None without a limit; else the largest number up to what pays.

    Raises:
        InfeasibleError: one sample alone takes longer.
    """
    if math.isinf(limit):
        return None
    most = simulator.stream(placement, samples=_PLAYED)
    if _latency(most) <= limit:
        return most.in_flight
    for in_flight in range(most.in_flight - 1, 0, -1):
        if _latency(simulator.stream(placement, samples=_PLAYED, in_flight=in_flight)) <= limit:
            return in_flight
    alone = simulator.stream(placement, samples=_PLAYED, in_flight=1)
    raise InfeasibleError(
        f"a sample alone takes {format_duration(_latency(alone))} by the simulator, more than the "
        f"latency limit of {format_duration(limit)}; raise the limit, or place for latency"
    )


def _latency(stream: Stream) -> float:
    return float(np.quantile(stream.latencies, 0.95))


def check_stream_on_hardware(
    plan: Plan,
    model: LoadedModel,
    report: Report = no_report,
    *,
    latency_limit: float = math.inf,
    improves: bool = False,
    is_counted: bool = False,
    deadline: Deadline = NEVER,
) -> tuple[Plan, Table]:
    """Stream samples through the plan and simpler ways in turns.

    Args:
        plan: of the search.
        report: told what is being done.
        latency_limit: seconds that 95 % of the samples may take.
        improves: the best candidates by the played stream are measured first, and the fastest of
            them takes the searched placement's place.
        is_counted: candidates are found without a clock, as a search by evaluations is.
        deadline: nothing new starts after it.

    Returns:
        The plan with the recommended way and its measurement, and a table with the verdict.

    Raises:
        InfeasibleError: no number of samples in flight keeps the limit, or fits into memory.
        MismatchError: outputs differ from the unsplit model's.
        OutOfTime: the deadline passed before enough was measured.
    """
    if improves and not deadline.is_over:
        report(0.0, "measuring candidates")
        plan = best_measured(
            plan,
            streamable(plan, model),
            np.random.default_rng(plan.placer.seed),
            is_counted=is_counted,
            deadline=deadline,
        )
    in_flight = within_latency(Simulator(plan.problem), plan.placement, latency_limit)
    plan = replace(plan, in_flight=in_flight)
    result = execute_stream(
        plan,
        model,
        length=StreamLength(_SAMPLES),
        latency_limit=latency_limit,
        report=report,
        deadline=deadline,
    )
    if not result.equal:
        raise MismatchError(
            f"outputs differ from the unsplit model: relative error {result.error:.3g} in sample "
            f"{result.worst}, tolerance {result.tolerance:.3g}; the plan was not written"
        )
    found = _kept(plan, result, model)
    columns, rows = result.table()
    lines = [*result.lines(), *(held_lines(found) or recommendation_lines(found))]
    return found, Table("Streams", columns, rows, "\n".join(dict.fromkeys(lines)))


def _kept(plan: Plan, result: StreamResult, model: LoadedModel | None = None) -> Plan:
    """The plan with the recommended way: as its placement, or by name where none expresses it."""
    problem, verdict = plan.problem, result.verdict
    name = verdict.recommendation
    device = device_of(name, problem.cluster.device_names)
    placement = None
    if device is not None:
        placement = Placement.on_one_device(problem.n_units, device)
    elif name == EVEN_SPLIT:
        placement = stream_ways(plan, streamable(plan, model)).even
    if placement is None:
        mine = verdict.contenders[PLAN]
        others = {key: one.median for key, one in verdict.contenders.items() if key != PLAN}
        return replace(plan, measured=Measurement(mine.median, mine.iqr, mine.runs, others, name))
    simulator = Simulator(problem)
    ways = Ways(
        {name: placement, PLAN: plan.placement},
        {name: simulator.value(placement), PLAN: plan.value},
        PLAN,
        None,
    )
    found = recommended_plan(plan, ways, name, verdict)
    return replace(found, in_flight=None if len(np.unique(placement.device_of)) > 1 else 1)
