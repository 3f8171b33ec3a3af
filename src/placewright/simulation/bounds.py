"""Lower bounds: no placement, in any order, is faster."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.problem import Problem


@dataclass(frozen=True)
class Bound:
    """A proven lower bound, the method that proved it, and the seconds that took."""

    value: float
    method: str
    seconds: float


def lower_bound(problem: Problem) -> Bound:
    """The larger of the critical path and the balanced load, for the problem's execution model."""
    began = time.perf_counter()
    found = {"balanced load": 0.0, "critical path": 0.0}
    if problem.execution_model in ("event", "placeto", "max-load"):
        found["balanced load"] = balanced_load_bound(problem)
    if problem.execution_model != "max-load":
        found["critical path"] = critical_path_bound(problem)
    method = max(found, key=lambda name: found[name])
    return Bound(found[method], method, time.perf_counter() - began)


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
    sum over units of min over devices of y[device] x seconds / streams (weak duality of the
    assignment program); y rises by projected steps towards the best weights.
    """
    streams = np.array([device.streams for device in problem.cluster.devices], dtype=np.float64)
    seconds = np.where(problem.allowed, problem.costs.seconds, np.inf) / streams[None, :]
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
