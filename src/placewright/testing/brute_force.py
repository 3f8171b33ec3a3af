"""The best value of a small problem, by trying every placement in every order.

Under `event` an order matters only by the sequence that it gives to each processor, so that orders
with equal sequences are tried once; and a placement whose critical path or load is no shorter than
the best value so far is not tried at all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.execution_models import Event
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.simulation.model import Simulator

_MOST_UNITS, _MOST_PLACEMENTS = 8, 1_000_000


def brute_force(problem: Problem) -> float:
    """Least value over placements and, under `event`, topological orders; inf if none is legal.

    Raises:
        InputError: the problem has more than eight units, or more than a million placements.
    """
    if problem.n_units > _MOST_UNITS:
        raise InputError(
            f"brute force takes at most {_MOST_UNITS} units, got {problem.n_units}; coarsen first"
        )
    n_placements = math.prod(problem.allowed_by_class.sum(axis=1).tolist())
    if n_placements > _MOST_PLACEMENTS:
        raise InputError(
            f"brute force takes at most {_MOST_PLACEMENTS} placements, got {n_placements}; coarsen "
            "first or leave out devices"
        )
    placements = list(legal_placements(problem))
    if not placements:
        return math.inf
    rows = np.array(placements)
    simulator = Simulator(problem)
    best = float(simulator.values(rows).min())
    if not isinstance(problem.execution_model, Event):
        return best
    orders = np.array(list(topological_orders(problem)))
    bounds = placement_bounds(problem, rows)
    if problem.objective in problem.charges:
        bounds = problem.charges[problem.objective].of(rows, bounds) * (1.0 - 1e-12)
    for index in np.argsort(bounds, kind="stable").tolist():
        if bounds[index] >= best:
            break
        for order in distinct_orders(rows[index], orders, problem.cluster.excludes):
            best = min(best, simulator.value(Placement.of(rows[index], order)))
    return best


def legal_placements(problem: Problem) -> Iterator[IntArray]:
    """All placements that keep support, pins and colocation."""
    choices = [np.flatnonzero(row).tolist() for row in problem.allowed_by_class]
    for chosen in itertools.product(*choices):
        yield problem.colocation.expand(chosen)


def topological_orders(problem: Problem) -> Iterator[IntArray]:
    """All topological orders of the units."""
    graph = problem.unit_graph
    missing = np.diff(graph.predecessors.indptr).copy()

    def extend(prefix: list[int]) -> Iterator[IntArray]:
        if len(prefix) == problem.n_units:
            yield np.array(prefix, dtype=np.int64)
            return
        for unit in range(problem.n_units):
            if missing[unit] == 0 and unit not in prefix:
                after = graph.successors.row(unit)
                missing[after] -= 1
                yield from extend([*prefix, unit])
                missing[after] += 1

    yield from extend([])


def distinct_orders(
    device_of: IntArray, orders: IntArray, excludes: BoolArray | None = None
) -> IntArray:
    """One order for each distinct combination of the processors' sequences.

    Args:
        device_of: shape (n_units,).
        orders: shape (n_orders, n_units).
        excludes: `Cluster.excludes`; None if no devices share a processor.

    Returns:
        A selection of the rows of `orders`.
    """
    in_turn = device_of[:, None] == device_of[None, :]
    if excludes is not None:
        in_turn |= excludes[np.ix_(device_of, device_of)]
    one, other = np.nonzero(np.triu(in_turn, 1))
    place = np.argsort(orders, axis=1)
    codes = (place[:, one] < place[:, other]) @ (1 << np.arange(len(one)))
    _, first = np.unique(codes, return_index=True)
    return np.asarray(orders[np.sort(first)], dtype=np.int64)


def placement_bounds(problem: Problem, placements: IntArray) -> FloatArray:
    """Lower bound of each placement over all orders under `event`: longest path or largest load.

    Overheads, contention and waiting for channels come on top.

    Args:
        problem: of execution model `event`.
        placements: legal ones, shape (n_placements, n_units).

    Returns:
        Shape (n_placements,); inf where a tensor has no route.
    """
    graph, host = problem.unit_graph, problem.cluster.host_endpoint
    hops = [_seconds_between(problem, tensor) for tensor in range(graph.n_tensors)]
    seconds = problem.costs.seconds[np.arange(problem.n_units), placements]
    end = np.zeros(placements.shape)
    bound = np.zeros(len(placements))
    for unit in graph.topological_order.tolist():
        start = np.zeros(len(placements))
        for tensor in graph.op_inputs.row(unit).tolist():
            producer = int(graph.tensor_producers[tensor])
            made = 0.0 if producer < 0 else end[:, producer]
            source = host if producer < 0 else placements[:, producer]
            start = np.maximum(start, made + hops[tensor][source, placements[:, unit]])
        end[:, unit] = start + seconds[:, unit]
    for tensor in np.flatnonzero(graph.tensor_is_output & (graph.tensor_producers >= 0)).tolist():
        producer = int(graph.tensor_producers[tensor])
        there = end[:, producer] + hops[tensor][placements[:, producer], host]
        bound = np.maximum(bound, there)
    for device, spec in enumerate(problem.cluster.devices):
        load = np.where(placements == device, seconds, 0.0).sum(axis=1) / spec.streams
        bound = np.maximum(bound, load)
    return np.asarray(np.maximum(bound, end.max(axis=1)) * (1.0 - 1e-12))


def _seconds_between(problem: Problem, tensor: int) -> FloatArray:
    """Seconds of a tensor between every two endpoints, all hops; inf without a route."""
    cluster, own, host = (
        problem.cluster,
        problem.unit_transfer_seconds,
        problem.cluster.host_endpoint,
    )
    linked = cluster.link_channel >= 0
    size = float(problem.unit_graph.tensor_bytes[tensor])
    per_byte = np.where(linked, cluster.link_seconds_per_byte, 0.0)
    hop = cluster.link_latency + size * per_byte
    if own is not None:
        hop = np.full(linked.shape, own[tensor])
    hop = np.where(linked, hop, np.inf)
    seconds = np.where(linked, hop, hop[:, [host]] + hop[[host], :])
    np.fill_diagonal(seconds, 0.0)
    return np.asarray(seconds)
