"""Every placement of a small problem, and under `event` every order that matters.

Under `event` an order matters only by the sequence that it gives to each processor. Of all orders
with equal sequences one is tried: that in which no unit could come before a larger one ahead of it,
the lexicographic normal form of a trace (Anisimov, Knuth, "Inhomogeneous sorting", 1979). A
placement whose longest path or largest load is no shorter than the incumbent gets no orders.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.execution_models import Event
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import BudgetSpent
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator

ENUMERATION = "enumeration"
MOST_PLACEMENTS = 4096
_MOST_CELLS = 2**24  # placements times units: a hundred MB
_MOST_ORDERS = 20_000  # of all placements together
_MOST_UNITS = 2000  # to make the first order of a larger graph takes seconds or minutes
_SHARE = 0.5  # of what is left, for placements and then for orders: searches go on after them
_AT_ONCE = 256  # placements between two looks at the budget


def enumerate_small(problem: Problem, evaluator: Evaluator) -> Solution | None:
    """Value every placement and order of a problem that has few.

    Hardware is never measured for this, and a budget that cannot value all placements is not begun.

    Returns:
        The proven answer, `optimal` or `infeasible`; None if some were left out.

    Raises:
        BudgetSpent: the budget's seconds ended while placements were tried.
    """
    if evaluator.is_measured:
        return None
    rows = all_placements(problem, min(MOST_PLACEMENTS, evaluator.remaining_evaluations))
    if rows is None or len(rows) == 0:
        return None
    n_placements = len(rows)
    try:
        with evaluator.at_most(
            evaluator.remaining_evaluations, _SHARE * evaluator.remaining_seconds
        ):
            for first in range(0, len(rows), _AT_ONCE):
                part = rows[first : first + _AT_ONCE]
                if len(evaluator.evaluate_many(part)) < len(part):
                    raise BudgetSpent
    except BudgetSpent:
        if evaluator.is_spent:
            raise
        return None
    in_any_order = ""
    if isinstance(problem.execution_model, Event):
        in_any_order = ", in any order,"
        try:
            with evaluator.share(_SHARE):
                is_whole = _enumerates_orders(problem, evaluator, rows)
        except BudgetSpent:  # of this share
            is_whole = False
        if not is_whole:
            return None
    if evaluator.best is not None:
        if not evaluator.is_closed:
            evaluator.offer_bound(evaluator.best_value, ENUMERATION)
        return evaluator.solution("optimal", f"all {n_placements} placements were tried")
    broken = evaluator.simulator.violation(Placement.of(rows[0]))
    reason = "" if broken is None else f"; the first of them: {broken.message}"
    return evaluator.solution(
        "infeasible",
        f"none of all {n_placements} placements{in_any_order} keeps every constraint{reason}",
    )


def all_placements(problem: Problem, most: float = MOST_PLACEMENTS) -> IntArray | None:
    """Placements that keep support, pins and colocation, (n, n_units).

    None if there are more than `most`, or fewer of a large graph.
    """
    product, most = 1, min(most, _MOST_CELLS / problem.n_units)
    for count in problem.allowed_by_class.sum(axis=1).tolist():
        product *= int(count)
        if product > most:
            return None
    choices = [np.flatnonzero(row).tolist() for row in problem.allowed_by_class]
    by_class = np.array(list(itertools.product(*choices)), dtype=np.int64)
    by_class = by_class.reshape(product, problem.colocation.n_groups)
    return np.ascontiguousarray(by_class[:, problem.colocation.group_of])


def all_peaks(
    problem: Problem, most: int = MOST_PLACEMENTS, is_over: Callable[[], bool] = lambda: False
) -> FloatArray | None:
    """Peak bytes of all placements that keep every constraint but those of memory.

    Under `event`, of each in every order that matters. An order of a placement may need less memory
    than the rule of dispatch does.

    Args:
        problem: whose memory limits do not count.
        most: placements, at most.
        is_over: asked before each placement and order; True ends it.

    Returns:
        Shape (n, n_devices); None if there are too many, or if it ended early.
    """
    has_orders = isinstance(problem.execution_model, Event)
    if has_orders and problem.n_units > _MOST_UNITS:
        return None
    roomy = replace(problem, cluster=problem.cluster.without_memory_limits)
    rows, left = all_placements(roomy, most), _MOST_ORDERS
    if rows is None:
        return None
    simulator, found = Simulator(roomy), []
    for row in rows:
        orders: Iterator[list[int] | None] = iter([None])
        if has_orders:
            orders = itertools.chain(orders, orders_that_matter(problem, row.tolist()))
        for order in orders:
            if left == 0 or is_over():
                return None
            left -= 1
            value, peaks = simulator.value_and_peaks(Placement.of(row, order))
            if math.isfinite(value):
                found.append(peaks)
    return np.array(found).reshape(len(found), problem.n_devices)


def _enumerates_orders(problem: Problem, evaluator: Evaluator, rows: IntArray) -> bool:
    """Try orders of placements that may be better than the incumbent; True if all were tried."""
    bounds = _bounds_without_waiting(problem, rows)
    left = _MOST_ORDERS
    for at in np.argsort(bounds, kind="stable").tolist():
        if bounds[at] >= evaluator.best_value:
            return True
        evaluator.offer_bound(float(bounds[at]), ENUMERATION)
        if evaluator.is_closed:
            return True
        if problem.n_units > _MOST_UNITS:
            return False
        for order in orders_that_matter(problem, rows[at].tolist()):
            if left == 0:
                return False
            left -= 1
            if evaluator.evaluate(rows[at], order) <= bounds[at]:
                break
    return True


def _bounds_without_waiting(problem: Problem, rows: IntArray) -> FloatArray:
    """Bound the value of each placement in any order: its longest path or largest load.

    Args:
        problem: of execution model `event`.
        rows: placements, shape (n_placements, n_units).

    Returns:
        Shape (n_placements,); inf where a tensor has no route.
    """
    cluster = problem.cluster.without_memory_limits.without_segment_limits
    unlimited = [
        replace(
            device,
            streams=problem.n_units,
            dispatch_seconds=0.0,
            cut_seconds=0.0,
            cut_seconds_per_byte=0.0,
            layout_seconds=0.0,
            layout_seconds_per_byte=0.0,
            processors=(),
        )
        for device in cluster.devices
    ]
    links = [replace(link, channel=None, queues=False, occupies=None) for link in cluster.links]
    at_once = replace(
        problem.timed, cluster=replace(cluster, devices=tuple(unlimited), links=tuple(links))
    )
    bounds = Simulator(at_once).values(rows)
    seconds = problem.costs.seconds[np.arange(problem.n_units), rows]
    for index, device in enumerate(cluster.devices):
        load = np.where(rows == index, seconds, 0.0).sum(axis=1) / device.streams
        bounds = np.maximum(bounds, load * (1.0 - 1e-12))
    for users in cluster.shared_processors.values():  # of one stream each
        load = np.where(np.isin(rows, users), seconds, 0.0).sum(axis=1)
        bounds = np.maximum(bounds, load * (1.0 - 1e-12))
    charged = problem.charges.get(problem.objective)
    return bounds if charged is None else charged.of(rows, bounds) * (1.0 - 1e-12)


def orders_that_matter(problem: Problem, device_of: list[int]) -> Iterator[list[int]]:
    """Yield a topological order for each combination of sequences that processors may follow."""
    graph = problem.unit_graph
    n_units = problem.n_units
    in_turn = (problem.cluster.excludes | np.eye(problem.n_devices, dtype=np.bool_)).tolist()
    readers = [graph.successors.row(unit).tolist() for unit in range(n_units)]
    missing = np.diff(graph.predecessors.indptr).tolist()
    order: list[int] = []
    taken = [False] * n_units

    def comes_too_late(unit: int) -> bool:
        """True if the unit could come before a unit of a larger number."""
        for before in reversed(order):
            if in_turn[device_of[before]][device_of[unit]] or unit in readers[before]:
                return False
            if before > unit:
                return True
        return False

    def release(unit: int, step: int) -> None:
        for reader in readers[unit]:
            missing[reader] += step

    nexts = [0]  # of each place in the order: the first unit that was not tried there
    while nexts:
        if len(order) == n_units:
            yield order
        unit = nexts[-1] if len(order) < n_units else n_units
        while unit < n_units and (taken[unit] or missing[unit] or comes_too_late(unit)):
            unit += 1
        if unit < n_units:
            nexts[-1] = unit + 1
            nexts.append(0)
            order.append(unit)
            taken[unit] = True
            release(unit, -1)
            continue
        nexts.pop()
        if order:
            last = order.pop()
            taken[last] = False
            release(last, 1)
