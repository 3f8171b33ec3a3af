"""Problem -> plan: make the placer, run it within the budget, put the result in a plan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.execution_models import Event
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution, Stop
from placewright.errors import InfeasibleError, InputError, Interrupted
from placewright.placers.pipelines.ideals.replication import replicated
from placewright.placers.registry import Placer, make_placer, reason_against
from placewright.session.runtimes import default_runtime
from placewright.session.smallest_change import advice
from placewright.session.spread_search import SpreadAuto
from placewright.simulation.bounds import RELAXATION, lower_bound, quick_bounds
from placewright.simulation.evaluator import CLOSED, Evaluator
from placewright.simulation.model import Simulator
from placewright.simulation.segments import segments_of

BOUND_SHARE = 0.2  # of the budget's seconds, for the last bound, which comes after the search
_GROUPS_SHARE = 0.5  # of the budget's seconds, for forming groups


def search(
    problem: Problem,
    placer: Placer | SpreadAuto,
    budget: Budget,
    *,
    seed: int = 0,
    measure: Callable[[Placement], float] | None = None,
    start: IntArray | None = None,
) -> Solution:
    """Run one placer on one problem.

    Args:
        problem: what is placed.
        placer: the algorithm, or `auto` with workers, which simulates.
        budget: whichever of its limits is met first ends the search.
        seed: of every random choice.
        measure: seconds of a placement on hardware; None simulates.
        start: a placement that is evaluated first, shape (n_units,).

    Returns:
        The incumbent with the best proven lower bound; `infeasible` or `unknown` without one.

    Raises:
        InputError: the placer does not support the problem.
        Interrupted: Ctrl-C; it carries the incumbent.
    """
    if isinstance(placer, SpreadAuto):
        return _whole(placer.search(problem, budget, seed, start))
    reason = reason_against(placer, problem)
    if reason is not None:
        raise InputError(f"placer '{placer.name}' cannot place this problem: {reason}")
    evaluator = Evaluator(problem, budget, measure=measure)
    try:
        for bound in quick_bounds(problem):
            evaluator.offer_bound(bound.value, bound.method)
        if start is not None and not evaluator.is_spent:
            evaluator.evaluate(start)
        found = _whole(placer.place(problem, evaluator, np.random.default_rng(seed)))
        if measure is not None or RELAXATION in evaluator.bounded_by:
            return found
        return _with_best_bound(problem, found, budget)
    except Interrupted:
        raise
    except KeyboardInterrupt:
        found = evaluator.solution(message="interrupted", stop=Stop.INTERRUPTED)
        raise Interrupted(found) from None


def _whole(found: Solution) -> Solution:
    """A solution that was not cut short; raises `Interrupted` with one that was."""
    if found.stop is Stop.INTERRUPTED:
        raise Interrupted(found)
    return found


def _with_best_bound(problem: Problem, found: Solution, budget: Budget) -> Solution:
    """The solution with the linear relaxation's bound, where the gap is open and it is larger.

    It comes after the search and takes a fifth of its seconds at most, so that every placer has the
    same budget.
    """
    if found.placement is None or found.status == "optimal" or found.gap <= CLOSED:
        return found
    limits = [one for one in (budget.seconds, budget.core_seconds) if one is not None]
    limit = BOUND_SHARE * min(limits, default=math.inf)
    best = lower_bound(problem, limit)
    if best.value <= found.lower_bound:
        return found
    bound = min(best.value, found.value)
    found = replace(found, lower_bound=bound, bound_method=best.method)
    is_closed = found.value <= bound * (1.0 + CLOSED)
    return replace(found, status="optimal", stop=Stop.PROVEN) if is_closed else found


def place(
    problem: Problem,
    *,
    placer: str | Placer | SpreadAuto = "auto",
    settings: Mapping[str, str] | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    runtime: str | None = None,
    measure: Callable[[Placement], float] | None = None,
    replicate: bool = False,
) -> Plan:
    """Find a placement of `problem` and put it in a plan.

    With `replicate`, groups of alike devices that take turns with the samples are formed first (see
    `placers.ideals.replication`); the placer starts from the split that they were formed for, and
    the plan's cluster has the groups as its devices.

    Raises:
        UnknownNameError: there is no such placer.
        InputError: the placer has no such setting or does not support the problem, or no groups can
            be formed.
        InfeasibleError: no placement satisfies the constraints, or none was found.
        Interrupted: Ctrl-C; it carries the incumbent and its plan, which says so.
    """
    algorithm = make_placer(placer, settings) if isinstance(placer, str) else placer
    limit, start = budget or Budget(seconds=30.0), None
    if replicate:
        if measure is not None:
            raise InputError(
                "a placement is measured by the latency of one sample, and groups take turns "
                "with many: leave out argument `replicate`, or simulate"
            )
        problem, start, limit = _with_groups(problem, limit)
    how = algorithm.name, seed, runtime or default_runtime(problem)
    try:
        found = search(problem, algorithm, limit, seed=seed, measure=measure, start=start)
    except Interrupted as error:
        if error.solution.placement is not None:
            error.plan = _plan_found(problem, error.solution, *how)
        raise
    if found.placement is None:
        proven = "no placement is possible" if found.status == "infeasible" else "none was found"
        change = advice(problem)
        hint = f"; {change}" if change else ""
        raise InfeasibleError(f"{proven}: {found.message or 'the budget ended first'}{hint}")
    return _plan_found(problem, found, *how)


def _plan_found(problem: Problem, found: Solution, placer: str, seed: int, runtime: str) -> Plan:
    record = PlacerRecord(
        placer,
        version("placewright"),
        seed,
        found.evaluations,
        found.seconds,
        found.history,
        found.stop,
        found.core_seconds,
    )
    return plan_of(problem, found, record, runtime)


def _with_groups(problem: Problem, budget: Budget) -> tuple[Problem, IntArray, Budget]:
    """The problem of the best groups, the split that they were formed for, and what is left."""
    began = time.perf_counter()
    limit = math.inf if budget.seconds is None else _GROUPS_SHARE * budget.seconds
    found = replicated(problem, lambda: time.perf_counter() - began > limit)
    if found.device_of is None:
        raise InfeasibleError(f"none was found: {found.message}; leave out argument `replicate`")
    if budget.seconds is not None:
        spent = time.perf_counter() - began
        least = (1.0 - _GROUPS_SHARE) * budget.seconds
        budget = replace(budget, seconds=max(least, budget.seconds - spent))
    return found.problem, found.device_of, budget


def plan_of(problem: Problem, solution: Solution, record: PlacerRecord, runtime: str) -> Plan:
    """A plan from a solution; value, order, segments and memory come from the simulator."""
    if solution.placement is None:
        raise InfeasibleError(f"there is no placement to plan: {solution.message}")
    placement = solution.placement
    simulator = Simulator(problem)
    segments: tuple[tuple[int, tuple[int, ...]], ...] | None = None
    if isinstance(problem.execution_model, Event):
        order = simulator.timeline(placement).order
        segments = tuple(
            (segment.device, tuple(int(unit) for unit in segment.units))
            for segment in segments_of(problem, placement, order)
        )
    peaks = simulator.memory_peaks(placement).tolist()
    value = simulator.value(placement)
    return Plan(
        problem=problem,
        placement=placement,
        value=value,
        lower_bound=min(solution.lower_bound, value),
        bound_method=solution.bound_method,
        status=solution.status,
        runtime=runtime,
        memory=dict(zip(problem.cluster.device_names, peaks, strict=True)),
        segments=segments,
        placer=record,
    )
