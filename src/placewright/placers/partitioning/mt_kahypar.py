"""Mt-KaHyPar: the graph mapped onto the cluster so that tensors travel the shortest trees.

L. Gottesbüren et al., "Scalable High-Quality Hypergraph Partitioning", ACM Transactions on
Algorithms 20(1), 2024, and T. Heuer, "A Direct k-Way Hypergraph Partitioning Algorithm for
Optimizing the Steiner Tree Metric", ALENEX 2024. A tensor with its producer and consumers is one
hyperedge; it costs its transfer seconds times the least tree in the cluster that spans the devices
of these units. Beyond 64 devices the library has no trees; the metric is the number of devices.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import Requires, optional_library
from placewright.placers.baselines.simple import devices_at_once
from placewright.placers.bases import ForEveryProblem, anytime, require_numbers
from placewright.placers.partitioning.weighted_graph import (
    WeightedGraph,
    hyperedges,
    place_by_partition,
)
from placewright.simulation.evaluator import Evaluator

_MOST_MAPPED = 64  # most blocks for which the library has the Steiner tree metric
_FARTHEST = 100  # target edge weight of the slowest pair of devices


@dataclass(frozen=True)
class MtKahypar(ForEveryProblem):
    """Topology-aware mapping, balanced to device speed.

    Attributes:
        imbalance: allowed excess of a device over its share, in (0, 1].
    """

    name: ClassVar[str] = "mt-kahypar"
    paper: ClassVar[str] = "Gottesbüren et al., TALG 2024; Heuer, ALENEX 2024"
    requires: ClassVar[Requires] = (("mtkahypar", "partitioning"),)

    imbalance: float = 0.03

    def __post_init__(self) -> None:
        require_numbers("mt-kahypar", self, "in (0, 1]", "imbalance")

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One mapping, one evaluation (more if memory binds)."""
        devices = next(devices_at_once(problem))
        usable = np.zeros(problem.n_devices, dtype=np.bool_)
        usable[list(devices)] = True

        def partition(graph: WeightedGraph, fractions: FloatArray, seed: int) -> IntArray:
            return self.mapped(problem, devices, graph, fractions, seed)

        return place_by_partition(problem, evaluator, rng, partition, usable=usable, assignments=1)

    def mapped(
        self,
        problem: Problem,
        devices: tuple[int, ...],
        graph: WeightedGraph,
        fractions: FloatArray,
        seed: int,
    ) -> IntArray:
        """Part of each vertex, shape (n_vertices,); part p is the p-th of the devices.

        Raises:
            MissingExtraError: `mtkahypar` is not installed.
        """
        library, instance = _library()
        library.set_seed(seed)
        n_parts = len(fractions)
        context = instance.context_from_preset(library.PresetType.DETERMINISTIC)
        context.logging = False
        pins, weights = hyperedges(problem)
        mapping = n_parts <= _MOST_MAPPED and len(pins) > 0
        if mapping:
            context.set_mapping_parameters(n_parts, self.imbalance)
        else:
            context.set_partitioning_parameters(n_parts, self.imbalance, library.Objective.KM1)
        total, largest = graph.vertex_weights.sum(), graph.vertex_weights.max()
        # A part may always take one vertex more than its share: else some graphs have no answer.
        most = np.ceil(total * fractions * (1.0 + self.imbalance) + largest * (n_parts > 1))
        context.set_individual_target_block_weights(most.astype(np.int64).tolist())
        source = instance.create_hypergraph(
            context, graph.n_vertices, len(pins), pins, graph.vertex_weights.tolist(), weights
        )
        if mapping:
            target = _target(instance, context, problem, devices)
            partition = source.map_onto_graph(target, context)
        else:
            partition = source.partition(context)
        return np.array([partition.block_id(vertex) for vertex in range(graph.n_vertices)])


@functools.cache
def _library() -> tuple[Any, Any]:
    """The module and its one thread pool per process: one thread, so that runs repeat."""
    mtkahypar = optional_library("mtkahypar", "partitioning", "placer 'mt-kahypar'")
    return mtkahypar, mtkahypar.initialize(1, False)


def _target(instance: Any, context: Any, problem: Problem, devices: tuple[int, ...]) -> Any:
    n_parts, distance = len(devices), distances(problem, devices)
    edges = [(a, b) for a in range(n_parts) for b in range(a + 1, n_parts)]
    weights = [int(distance[a, b]) for a, b in edges]
    return instance.create_target_graph(context, n_parts, len(edges), edges, weights)


def distances(problem: Problem, devices: tuple[int, ...]) -> IntArray:
    """Relative seconds of a mean tensor between devices, on the slower way, through the host too.

    Returns:
        Shape (len(devices), len(devices)): at least 1 between two devices, 100 for the slowest
        pair, and 200 for a pair without a route.
    """
    cluster, sizes = problem.cluster, problem.unit_graph.tensor_bytes
    mean_bytes = float(sizes.mean()) if len(sizes) else 0.0
    with np.errstate(invalid="ignore"):  # inf * 0 if there is no link
        direct = cluster.link_latency + mean_bytes * cluster.link_seconds_per_byte
    direct = np.where(np.isfinite(direct), direct, np.inf)
    host = cluster.host_endpoint
    through_host = direct[:, host][:, None] + direct[host, :][None, :]
    seconds = np.where(np.isfinite(direct), direct, through_host)[np.ix_(devices, devices)]
    both = np.maximum(seconds, seconds.T)
    slowest = float(both[np.isfinite(both)].max(initial=0.0))
    relative = both / slowest if slowest > 0 else np.where(np.isfinite(both), 0.0, np.inf)
    distance = np.where(np.isfinite(relative), np.rint(relative * _FARTHEST), 2 * _FARTHEST)
    return np.maximum(distance, 1.0).astype(np.int64)
