"""Conversion of computation graphs to the weighted undirected graphs of partitioners, and back.

A vertex is a colocation class, weighted with its mean seconds; an edge joins two classes that pass
tensors, weighted with the mean seconds of their transfers. The size of part p is in
proportion to the speed of device p. Partitioners ignore direction, support and memory, so that
parts are repaired, and the evaluator decides between assignments of parts to devices. Devices that
share a processor count once: the devices that get a part never exclude each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array, csr_array

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.baselines.simple import device_speeds, devices_at_once
from placewright.placers.legal import evaluate_repaired
from placewright.placers.list_scheduling.ranks import mean_transfers
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.ranks import mean_costs

_LARGEST_TOTAL = 10**8  # of all integer weights; partitioners count in 32 bits
_SMALLEST_SHARE = 1e-3  # least share of a part, so that none is empty


@dataclass(frozen=True, eq=False)
class WeightedGraph:
    """The input of a partitioner; both directions of every edge are stored."""

    indptr: IntArray  # shape (n_vertices + 1,), int64
    neighbours: IntArray  # vertices beside each vertex in ascending order, int64
    edge_weights: IntArray  # one per entry of `neighbours`, int64, >= 1
    vertex_weights: IntArray  # shape (n_vertices,), int64, >= 1

    @property
    def n_vertices(self) -> int:
        """Number of vertices."""
        return len(self.vertex_weights)

    def induced(self, vertices: IntArray) -> WeightedGraph:
        """The graph of some vertices, and of the edges between them."""
        size = (self.n_vertices, self.n_vertices)
        all_edges = csr_array((self.edge_weights, self.neighbours, self.indptr), shape=size)
        kept = all_edges[vertices][:, vertices].tocsr()
        kept.sort_indices()
        return WeightedGraph(
            kept.indptr.astype(np.int64),
            kept.indices.astype(np.int64),
            kept.data.astype(np.int64),
            self.vertex_weights[vertices],
        )


# (graph, share of each part, seed) -> part of each vertex.
Partition = Callable[[WeightedGraph, FloatArray, int], IntArray]


def weighted_graph(problem: Problem) -> WeightedGraph:
    """Classes, weighted with mean seconds, and their transfers, weighted with mean seconds."""
    graph, classes = problem.unit_graph, problem.colocation
    seconds = np.bincount(classes.group_of, mean_costs(problem), minlength=classes.n_groups)
    tensors = graph.tensor_consumers.row_of_each()
    producers = graph.tensor_producers[tensors]
    inner = producers >= 0
    source = classes.group_of[producers[inner]]
    target = classes.group_of[graph.tensor_consumers.indices[inner]]
    # A tensor travels once however many units of the other class consume it.
    keys = np.stack([source, target, tensors[inner]], axis=1)[source != target]
    keys = np.unique(keys, axis=0)
    transfers = mean_transfers(problem)[keys[:, 2]]
    size = (classes.n_groups, classes.n_groups)
    # Edges without a cost (or a cluster without links) are still edges, of the least weight.
    most = float(transfers.max(initial=0.0))
    weights = np.maximum(transfers / most, 1e-9) if most > 0 else np.ones(len(transfers))
    one_way = coo_array((weights, (keys[:, 0], keys[:, 1])), shape=size)
    both = (one_way + one_way.T).tocsr()
    both.sort_indices()
    return WeightedGraph(
        both.indptr.astype(np.int64),
        both.indices.astype(np.int64),
        _whole(np.asarray(both.data, dtype=np.float64)),
        _whole(np.asarray(seconds, dtype=np.float64)),
    )


def hyperedges(problem: Problem) -> tuple[list[list[int]], list[int]]:
    """Classes that each tensor joins (two or more), and its transfer seconds as whole numbers."""
    graph, class_of = problem.unit_graph, problem.colocation.group_of
    pins, seconds = [], []
    transfers = mean_transfers(problem)
    for tensor, producer in enumerate(graph.tensor_producers.tolist()):
        if producer < 0:
            continue
        ends = np.append(graph.tensor_consumers.row(tensor), producer)
        joined = np.unique(class_of[ends]).tolist()
        if len(joined) > 1:
            pins.append(joined)
            seconds.append(float(transfers[tensor]))
    return pins, (_whole(np.array(seconds)) // 1000 + 1).tolist()


def shares(problem: Problem, usable: BoolArray) -> FloatArray:
    """Fraction of the work that each usable device should get, by speed; they add up to 1."""
    speeds = device_speeds(problem)[usable]
    fractions = np.maximum(speeds / speeds.sum(), _SMALLEST_SHARE)
    return np.asarray(fractions / fractions.sum())


def place_by_partition(
    problem: Problem,
    evaluator: Evaluator,
    rng: np.random.Generator,
    partition: Partition,
    *,
    usable: BoolArray | None = None,
    assignments: int = 24,
) -> Solution:
    """Partition once for devices that compute at once, then evaluate assignments of parts to them.

    Args:
        usable: devices that get a part, shape (n_devices,); others run only what must run there.
        assignments: tried at most; the first is by speed, and of many devices only that one.
    """
    graph = weighted_graph(problem)
    found = list(itertools.islice(devices_at_once(problem, usable), assignments))
    for devices in found:
        chosen = np.zeros(problem.n_devices, dtype=np.bool_)
        chosen[list(devices)] = True
        part_of = _parts(graph, shares(problem, chosen), rng, partition)
        all_of_them = math.factorial(len(devices)) <= assignments // len(found)
        for order in itertools.permutations(devices) if all_of_them else [devices]:
            wish = problem.colocation.expand(np.array(order)[part_of])
            evaluate_repaired(evaluator.problem, evaluator, wish)
    return evaluator.solution()


def _parts(
    graph: WeightedGraph, fractions: FloatArray, rng: np.random.Generator, partition: Partition
) -> IntArray:
    """Part of each vertex; a graph with no more vertices than parts needs no partitioner."""
    seed = int(rng.integers(1, 2**31 - 1))
    if len(fractions) == 1:
        return np.zeros(graph.n_vertices, dtype=np.int64)
    if graph.n_vertices <= len(fractions):
        return one_in_each(graph.vertex_weights, fractions)
    return np.asarray(partition(graph, fractions, seed), dtype=np.int64)


def one_in_each(weights: IntArray, fractions: FloatArray) -> IntArray:
    """Part of each vertex if there are no more than parts: the heaviest are in the largest."""
    largest_first = np.argsort(-fractions, kind="stable")
    part_of = np.empty(len(weights), dtype=np.int64)
    part_of[np.argsort(-weights, kind="stable")] = largest_first[: len(weights)]
    return part_of


def _whole(weights: FloatArray) -> IntArray:
    """Weights as whole numbers >= 1 in the same proportions, as far as 32-bit sums allow."""
    most = float(weights.max(initial=0.0))
    if not most > 0:
        return np.ones(len(weights), dtype=np.int64)
    relative = weights / most  # at most 1, so that no factor overflows
    whole = np.maximum(1, np.rint(relative * (_LARGEST_TOTAL / relative.sum())))
    return np.asarray(whole, dtype=np.int64)
