"""Lower bounds on the value of every placement in every order.

Bounds on energy and price follow from those on seconds (see `least_amounts`).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, frozen_floats
from placewright.core.charges import CHARGED, Charges
from placewright.core.costs import CostTable
from placewright.core.execution_models import Subgraph, SubgraphIP
from placewright.core.problem import Problem
from placewright.simulation.behaviours import behaviour_of
from placewright.simulation.compiled import compiled
from placewright.simulation.layout import ProblemArrays, once_per_problem, problem_arrays

RELAXATION = "linear relaxation"
_MOST_RELAXED = 1000  # units up to which the linear relaxation is solved
_MOST_TERMS = 400_000  # of x, and of edges times devices, beyond which HiGHS takes minutes
# Sets of devices up to which each set has a bound of its own, alone and times units.
_MOST_SETS, _MOST_UNITS_OF_SETS = 256, 200_000
_SAFE = 1.0 - 1e-12  # sums round
CHEAPEST_UNITS, CHEAPEST_DEVICES = "cheapest units", "cheapest devices"
_MOST_ENTRIES = 1e8  # of costs that the steps of balanced load look at, all together


@dataclass(frozen=True)
class Bound:
    """A proven lower bound, the method that proved it, and the seconds that the proof took."""

    value: float
    method: str
    seconds: float


def lower_bound(problem: Problem, seconds: float = math.inf) -> Bound:
    """The largest of `lower_bounds`."""
    return max(lower_bounds(problem, seconds), key=lambda bound: bound.value)


def lower_bounds(problem: Problem, seconds: float = math.inf) -> tuple[Bound, ...]:
    """Every bound that the problem's execution model has, the cheapest to compute first.

    Args:
        seconds: wall-clock limit of the linear relaxation, which is solved for problems of up to a
            thousand units; without a solution by then there is no such bound.
    """
    return (*quick_bounds(problem), *relaxed_bounds(problem, seconds))


@once_per_problem
def quick_bounds(problem: Problem) -> tuple[Bound, ...]:
    """The bounds without a solver, such as critical path and balanced load."""
    if problem.objective in CHARGED:
        return least_amounts(problem, problem.charges[problem.objective])
    named = behaviour_of(problem).bounds
    return tuple(_timed(method, problem, bound) for method, bound in named.items())


def least_amounts(problem: Problem, charges: Charges) -> tuple[Bound, ...]:
    """Lower bounds on a quantity of `core.charges`, from the quick bounds on seconds.

    - Cheapest units: a used processor is there at least as long as the units of its devices take,
      one after another on each stream. So the amount is at least
      sum of min over devices of (own + used x seconds / streams) + always x bound on seconds.
      Under `subgraph` and `subgraph-ip`, whose CPUs run any number of ops at once, own alone.
    - Cheapest devices: the least, over the sets of devices that may be used, of
      sum of min own within the set + (always + sum of used of the set) x bound within the set.
    """
    began, timed = time.perf_counter(), problem.timed
    if not problem.allowed_by_class.any(axis=1).all():
        return (Bound(0.0, CHEAPEST_UNITS, 0.0),)
    seconds = np.where(problem.allowed, problem.costs.seconds, 0.0)
    busy = charges.own
    if not isinstance(problem.execution_model, Subgraph | SubgraphIP):  # whose CPUs are unlimited
        busy = busy + seconds * (charges.of_devices / problem.cluster.concurrency)
    shortest = max(bound.value for bound in quick_bounds(timed))
    value = _least_own(problem, busy) + charges.always * shortest
    by_units = Bound(value * _SAFE, CHEAPEST_UNITS, time.perf_counter() - began)
    if not charges.used.any():
        return (by_units,)
    value = _of_cheapest_devices(problem, charges, shortest)
    by_sets = Bound(value * _SAFE, CHEAPEST_DEVICES, time.perf_counter() - began)
    return by_units, by_sets


def _least_own(problem: Problem, own: FloatArray, used: BoolArray | bool = True) -> float:
    """Sum over colocation classes of the least amount on an allowed device of a set."""
    by_class = problem.colocation.sums(own)
    return float(np.where(problem.allowed_by_class & used, by_class, np.inf).min(axis=1).sum())


def _of_cheapest_devices(problem: Problem, charges: Charges, shortest: float) -> float:
    """The second bound of `least_amounts`; with many sets, the cheapest device and `shortest`."""
    n_sets, timed = 2**problem.n_devices, problem.timed
    if n_sets > _MOST_SETS or n_sets * problem.n_units > _MOST_UNITS_OF_SETS:
        return _least_own(problem, charges.own) + charges.least_rate * shortest
    least = math.inf
    for chosen in itertools.product((False, True), repeat=problem.n_devices):
        used = np.array(chosen, dtype=np.bool_)
        own = _least_own(problem, charges.own, used)
        if math.isfinite(own):
            least = min(least, own + charges.rate(used) * _shortest_within(timed, used))
    return least


def _shortest_within(timed: Problem, used: BoolArray) -> float:
    """A lower bound on the seconds of placements on a set of devices that can run all units."""
    seconds = np.where(used, timed.costs.seconds, np.inf)
    costs = CostTable(frozen_floats(seconds), timed.costs.source)
    within = replace(timed, costs=costs)
    return max(bound.value for bound in quick_bounds(within))


def relaxed_bounds(problem: Problem, seconds: float = math.inf) -> tuple[Bound, ...]:
    """The linear relaxation's bound, or none; see `lower_bounds`."""
    if problem.n_units > _MOST_RELAXED or seconds <= 0:
        return ()
    bound = _timed(RELAXATION, problem, lambda it: relaxation_bound(it, seconds))
    return (bound,) if bound.value > 0 else ()


def relaxation_bound(problem: Problem, seconds: float = math.inf) -> float:
    """The bound of the linear relaxation; 0 if there is none or it is too large to be solved.

    Args:
        seconds: wall-clock limit of the program and its solver.
    """
    began = time.perf_counter()
    edges = len(problem.unit_graph.tensor_consumers.indices)
    if (problem.n_units + edges) * problem.n_devices > _MOST_TERMS:
        return 0.0
    program = behaviour_of(problem).relaxation(problem)
    left = seconds - (time.perf_counter() - began)
    return 0.0 if program is None or left <= 0 else program.solved(left)


def _timed(method: str, problem: Problem, bound: Callable[[Problem], float]) -> Bound:
    began = time.perf_counter()
    value = bound(problem)
    return Bound(value, method, time.perf_counter() - began)


def critical_path_bound(problem: Problem) -> float:
    """The longest path with every unit on its fastest device and no transfers, in seconds."""
    return float(_longest_path(problem_arrays(problem), best_seconds(problem)))


@compiled
def _longest_path(arrays: ProblemArrays, best: FloatArray) -> float:
    finish, longest = np.zeros(len(best)), 0.0
    for unit in arrays.topological:
        ready = 0.0
        for at in range(arrays.input_ptr[unit], arrays.input_ptr[unit + 1]):
            producer = arrays.producer[arrays.inputs[at]]
            if producer >= 0:
                ready = max(ready, finish[producer])
        finish[unit] = ready + best[unit]
        longest = max(longest, finish[unit])
    return longest


def cheapest_units_bound(problem: Problem) -> float:
    """Every colocation class on its cheapest device, and no transfers, in seconds."""
    least = _least_own(problem, problem.costs.seconds)
    return least if math.isfinite(least) else 0.0


def balanced_load_bound(problem: Problem) -> float:
    """A bound on the fractional assignment of all work to all streams, in seconds.

    For any weights y >= 0 of the devices with sum 1, the largest load is at least
    sum over units of min over devices of y[device] x seconds / concurrency (weak duality of the
    assignment program); y rises by projected steps towards the best weights. Large problems get
    fewer steps.
    """
    allowed, seconds = problem.allowed, problem.costs.seconds
    concurrency = np.array(problem.cluster.concurrency)
    usable = np.flatnonzero(allowed.any(axis=0))
    if not allowed.any(axis=1).all():
        return 0.0
    weights = np.zeros(problem.n_devices)
    weights[usable] = 1.0 / len(usable)
    best = 0.0
    for step in range(int(np.clip(_MOST_ENTRIES / seconds.size, 10, 300))):
        value, loads = _dual_value(seconds, allowed, concurrency, weights)
        best = max(best, value)
        if value <= 0.0 or loads.max() <= 0.0:
            break
        weights = weights * np.exp((loads / loads.max() - 1.0) * 2.0 / (step + 2.0) ** 0.5)
        weights /= weights.sum()
    return float(best) * (1.0 - 1e-12)


def best_seconds(problem: Problem) -> FloatArray:
    """Seconds of each unit on its fastest allowed device, shape (n_units,)."""
    return np.asarray(_fastest(problem.costs.seconds, problem.allowed))


@compiled
def _fastest(seconds: FloatArray, allowed: BoolArray) -> FloatArray:
    best = np.empty(len(seconds))
    for unit in range(len(seconds)):
        least = np.inf
        for device in range(seconds.shape[1]):
            if allowed[unit, device]:
                least = min(least, seconds[unit, device])
        best[unit] = least if np.isfinite(least) else 0.0
    return best


@compiled
def _dual_value(
    seconds: FloatArray, allowed: BoolArray, concurrency: FloatArray, weights: FloatArray
) -> tuple[float, FloatArray]:
    """The bound for given weights, and the load of each device if each unit takes its cheapest.

    Sums go by blocks, so that rounding stays far below the margin that the caller takes off.
    """
    n_units, n_devices = seconds.shape
    total, loads = 0.0, np.zeros(n_devices)
    for first in range(0, n_units, 1024):
        part, part_loads = 0.0, np.zeros(n_devices)
        for unit in range(first, min(n_units, first + 1024)):
            chosen, least = -1, np.inf
            for device in range(n_devices):
                if allowed[unit, device]:
                    priced = seconds[unit, device] / concurrency[device] * weights[device]
                    if priced < least:
                        chosen, least = device, priced
            part += least
            part_loads[chosen] += seconds[unit, chosen] / concurrency[chosen]
        total += part
        loads += part_loads
    return total, loads
