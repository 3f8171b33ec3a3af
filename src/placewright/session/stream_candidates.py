"""The best placements for a stream by the simulator, and which of them the hardware likes best.

Max-load is the rate of an ideal pipeline. What hand-overs and waiting cost decides between
placements whose loads are nearly equal, so that the search's answer is improved on the played
stream, and the last word is measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from placewright.core.deadline import NEVER, Deadline
from placewright.core.placement import Placement
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.errors import InfeasibleError, PlacewrightError
from placewright.execution.runtime import LoadedModel
from placewright.placers.registry import make_placer, reason_against
from placewright.profiling.streams import different_samples, measure_streams, stream_runner
from placewright.session.search import plan_of
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator

_OTHERS = ("ideal-dp", "pipedream", "even-split")
_SETTINGS = {"ideal-dp": {"max_ideals": "20000"}}  # an exact program with more takes too long
_SECONDS = 3.0  # of each other placer, where seconds limit the search
_MOVED_UNITS = 60_000  # played while improving, so that larger models take no longer
_LEAST_EVALUATIONS, _MOST_EVALUATIONS = 50, 300  # of improving
_MEASURED = 3  # candidates
_ROUNDS = 7
_SAMPLES = 20
_PLAYED = 24


def played_period(problem: Problem, placement: Placement) -> float:
    """Seconds per sample of a placement's stream; inf where it has none."""
    try:
        return Simulator(problem).stream(placement, samples=_PLAYED).steady.period
    except InfeasibleError:
        return float("inf")


def candidates(
    plan: Plan,
    rng: np.random.Generator,
    *,
    is_counted: bool = False,
    deadline: Deadline = NEVER,
) -> list[Placement]:
    """Placements by the period of their played streams, the shortest first.

    Args:
        plan: of the search, whose placement is among them.
        rng: chooses what is moved.
        is_counted: nothing is limited by seconds: the same on every machine.
        deadline: nothing new starts after it.
    """
    problem = plan.problem
    found = [plan.placement]
    for name in _OTHERS:
        placer = make_placer(name, _SETTINGS.get(name, {}))
        if reason_against(placer, problem) is not None or deadline.is_over:
            continue
        budget = Budget(evaluations=_MOST_EVALUATIONS, seconds=None if is_counted else _SECONDS)
        evaluator = Evaluator(problem, budget)
        try:
            other = placer.place(problem, evaluator, np.random.default_rng(0)).placement
        except PlacewrightError:  # it finds none; the search's own stands
            continue
        if other is not None and np.isfinite(Simulator(problem).value(other)):
            found.append(other)
    rated = _rated(problem, found)
    rated.append(improved(problem, rated[0][1], rng, deadline))
    rated.sort(key=lambda row: row[0])
    return [placement for _, placement in _distinct(rated)]


def improved(
    problem: Problem, start: Placement, rng: np.random.Generator, deadline: Deadline = NEVER
) -> tuple[float, Placement]:
    """Move units across the border between two devices while that shortens the played stream.

    A number of moves limits it, not a clock, so that the generator alone decides the answer.

    Args:
        problem: of the stream.
        start: what is improved.
        rng: chooses what is moved.
        deadline: no move is tried after it.
    """
    graph, simulator = problem.unit_graph, Simulator(problem)
    device_of = start.device_of.copy()
    own = played_period(problem, start)
    in_flight, best = _in_flight(simulator, start), own
    most = int(np.clip(_MOVED_UNITS // problem.n_units, _LEAST_EVALUATIONS, _MOST_EVALUATIONS))
    for _ in range(most):
        border = [
            (unit, int(device_of[other]))
            for unit in range(problem.n_units)
            for other in (*graph.predecessors.row(unit), *graph.successors.row(unit))
            if device_of[other] != device_of[unit]
        ]
        if not border or deadline.is_over:
            break
        unit, target = border[int(rng.integers(len(border)))]
        trial = device_of.copy()
        trial[problem.colocation.group_of == problem.colocation.group_of[unit]] = target
        placement = Placement.of(trial)
        if not np.isfinite(simulator.value(placement)):
            continue
        period = _period(simulator, placement, in_flight)
        if period < best:
            best, device_of = period, trial
    placement = Placement.of(device_of)
    best = played_period(problem, placement)  # with its own number in flight
    return (best, placement) if best <= own else (own, start)


def _in_flight(simulator: Simulator, placement: Placement) -> int | None:
    try:
        return simulator.stream(placement, samples=2).in_flight
    except InfeasibleError:
        return None


def _period(simulator: Simulator, placement: Placement, in_flight: int | None) -> float:
    try:
        stream = simulator.stream(placement, samples=_PLAYED, in_flight=in_flight)
    except InfeasibleError:
        return float("inf")
    return stream.steady.period


def _rated(problem: Problem, found: Sequence[Placement]) -> list[tuple[float, Placement]]:
    rows = [(played_period(problem, one), one) for one in found]
    return sorted(rows, key=lambda row: row[0])


def _distinct(rows: Sequence[tuple[float, Placement]]) -> list[tuple[float, Placement]]:
    kept: dict[bytes, tuple[float, Placement]] = {}
    for row in rows:
        kept.setdefault(row[1].device_of.tobytes(), row)
    return list(kept.values())


def best_measured(
    plan: Plan,
    model: LoadedModel,
    rng: np.random.Generator,
    *,
    is_counted: bool = False,
    deadline: Deadline = NEVER,
) -> Plan:
    """The plan with the candidate whose stream is fastest on the hardware, in turns.

    Args:
        plan: of the search.
        model: as the plan's runtime has read it.
        rng: chooses what is moved.
        is_counted: candidates are found without a clock.
        deadline: nothing new starts after it.
    """
    problem = plan.problem
    listed = candidates(plan, rng, is_counted=is_counted, deadline=deadline)
    split = [one for one in listed if len(np.unique(one.device_of)) > 1][:_MEASURED]
    chosen = listed[0] if len(split) < 2 else split[_fastest(problem, split, model)]
    if np.array_equal(chosen.device_of, plan.placement.device_of):
        return plan
    value = Simulator(problem).value(chosen)
    solution = Solution(chosen, value, "feasible", plan.lower_bound, bound_method=plan.bound_method)
    found = plan_of(problem, solution, plan.placer, plan.runtime)
    return replace(found, left_out=plan.left_out, in_flight=plan.in_flight)


def _fastest(problem: Problem, split: Sequence[Placement], model: LoadedModel) -> int:
    with ExitStack() as stack:
        runners = {}
        most = 1
        for at, placement in enumerate(split):
            in_flight = Simulator(problem).stream(placement, samples=_PLAYED).in_flight
            runners[str(at)] = stack.enter_context(
                stream_runner(problem, placement, model, in_flight=in_flight)
            )
            most = max(most, in_flight)
        samples = different_samples(model, max(_SAMPLES, 3 * most + 2))
        for runner in runners.values():
            runner.run_many(samples[: most + 1])
        ways = {name: runner.run_many for name, runner in runners.items()}
        bursts = {name: runner.burst for name, runner in runners.items()}
        found = measure_streams(ways, samples, rounds=_ROUNDS, skipped=most, bursts=bursts)
    medians = [statistics.median(one.period for one in found[str(at)]) for at in range(len(split))]
    return int(np.argmin(medians))
