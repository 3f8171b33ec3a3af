"""Lower bounds: no placement, in any order, is faster."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.problem import Problem

RELAXATION = "linear relaxation"
_MOST_RELAXED = 1000  # units up to which the linear relaxation is solved


@dataclass(frozen=True)
class Bound:
    """A proven lower bound, the method that proved it, and the seconds that took."""

    value: float
    method: str
    seconds: float


def lower_bound(problem: Problem, seconds: float = math.inf) -> Bound:
    """The best of all bounds that the problem's execution model has; see `lower_bounds`."""
    return max(lower_bounds(problem, seconds), key=lambda bound: bound.value)


def lower_bounds(problem: Problem, seconds: float = math.inf) -> tuple[Bound, ...]:
    """Every bound that holds, in the order of what they cost.

    Args:
        problem: what is placed.
        seconds: wall-clock limit of the linear relaxation, which problems of up to a thousand units
            get; where it is met, there is no such bound.
    """
    return (*quick_bounds(problem), *relaxed_bounds(problem, seconds))


def quick_bounds(problem: Problem) -> tuple[Bound, ...]:
    """Critical path and balanced load, where the execution model has them."""
    found = []
    if problem.execution_model != "max-load":
        found.append(_timed("critical path", problem, critical_path_bound))
    if problem.execution_model in ("event", "placeto", "max-load"):
        found.append(_timed("balanced load", problem, balanced_load_bound))
    return tuple(found)


def relaxed_bounds(problem: Problem, seconds: float = math.inf) -> tuple[Bound, ...]:
    """The linear relaxation's bound, or nothing, as `lower_bounds` says."""
    if problem.n_units > _MOST_RELAXED or seconds <= 0:
        return ()
    from placewright.simulation.relaxation import relaxation_bound  # SciPy's solver takes a while

    bound = _timed(RELAXATION, problem, lambda it: relaxation_bound(it, seconds))
    return (bound,) if bound.value > 0 else ()


def _timed(method: str, problem: Problem, bound: Callable[[Problem], float]) -> Bound:
    began = time.perf_counter()
    value = bound(problem)
    return Bound(value, method, time.perf_counter() - began)


def critical_path_bound(problem: Problem) -> float:
    """The longest path with every unit on its fastest device and no transfers, in seconds."""
    graph = problem.unit_graph
    best = best_seconds(problem)
    finish = np.zeros(problem.n_units)
    for unit in graph.topological_order.tolist():
        before = graph.predecessors.row(unit)
        ready = finish[before].max() if len(before) else 0.0
        finish[unit] = ready + best[unit]
    return float(finish.max())


def balanced_load_bound(problem: Problem) -> float:
    """A bound on the fractional assignment of all work to all streams, in seconds.

    For any weights y >= 0 of the devices with sum 1, the largest load is at least
    sum over units of min over devices of y[device] x seconds / concurrency (weak duality of the
    assignment program); y rises by projected steps towards the best weights.
    """
    seconds = np.where(problem.allowed, problem.costs.seconds, np.inf)
    seconds = seconds / problem.cluster.concurrency[None, :]
    usable = np.isfinite(seconds).any(axis=0)
    rates = seconds[:, usable]
    if not np.isfinite(rates.min(axis=1)).all():
        return 0.0
    weights = np.full(rates.shape[1], 1.0 / rates.shape[1])
    best = 0.0
    for step in range(300):
        value, loads = _dual_value(rates, weights)
        best = max(best, value)
        if value <= 0.0 or loads.max() <= 0.0:
            break
        weights = weights * np.exp((loads / loads.max() - 1.0) * 2.0 / (step + 2.0) ** 0.5)
        weights /= weights.sum()
    return float(best) * (1.0 - 1e-12)


def best_seconds(problem: Problem) -> FloatArray:
    """Seconds of each unit on its fastest allowed device, shape (n_units,)."""
    best = np.where(problem.allowed, problem.costs.seconds, np.inf).min(axis=1)
    return np.asarray(np.where(np.isfinite(best), best, 0.0))


def _dual_value(rates: FloatArray, weights: FloatArray) -> tuple[float, FloatArray]:
    priced = np.where(np.isfinite(rates), rates * weights[None, :], np.inf)
    chosen = priced.argmin(axis=1)
    rows = np.arange(len(rates))
    loads = np.bincount(chosen, weights=rates[rows, chosen], minlength=rates.shape[1])
    return float(priced[rows, chosen].sum()), np.asarray(loads)
