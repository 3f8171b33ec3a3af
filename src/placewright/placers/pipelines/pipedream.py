"""PipeDream's partitioner: fuse branches into a chain of layers, split the chain.

Narayanan et al.: "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, as the
baseline of Tarnawski et al. 2020 (section 6): the tails of each biconnected component of the graph
become one layer, the layers are put in a linear order, and the chain is split optimally. Stages are
not replicated, as in that baseline.

Departures from the baseline's program: components are those of the forward graph also for training
(with the backward edges the whole graph becomes a few components); ops that take no time and whose
outputs take no time to send are left out when components are formed, where the program lists node
numbers of two of its workloads (`ignored` takes such a list).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.arrays import BoolArray, IntArray
from placewright.core.graph import FORWARD
from placewright.core.grouping import DisjointSets, Grouping
from placewright.core.op_patterns import op_named
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.bases import anytime
from placewright.placers.pipelines.ideals.items import items_of, precedence_pairs
from placewright.placers.pipelines.ideals.load_model import peer_independent_transfers
from placewright.placers.pipelines.ideals.program import place_in_order, why_not_contiguous
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class Pipedream:
    """Splits a chain of fused layers.

    Attributes:
        ignored: names of ops, separated by commas, whose outgoing edges form no component (inputs
            that many layers read); empty ignores ops that take no time and send for free.
    """

    name: ClassVar[str] = "pipedream"
    paper: ClassVar[str] = "Narayanan et al., SOSP 2019"
    objectives: ClassVar[tuple[str, ...]] = ("throughput",)
    needs_training: ClassVar[bool] = False

    ignored: str = ""

    def why_not(self, problem: Problem) -> str | None:
        """None for a max-load problem whose transfers do not depend on the other end."""
        return why_not_contiguous(problem)

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation: the best split of the chain."""
        items = items_of(problem, self.layers(problem))
        return place_in_order(
            problem,
            items,
            evaluator,
            "chain of layers",
            f"best split of a chain of {items.n_items} layers",
        )

    def layers(self, problem: Problem) -> Grouping:
        """Layer of each unit."""
        classes = problem.colocation
        pairs = precedence_pairs(problem, classes)
        counted = pairs[~self._is_ignored(problem, classes)[pairs[:, 0]]]
        return classes.then(biconnected_tails(classes.n_groups, counted))

    def _is_ignored(self, problem: Problem, classes: Grouping) -> BoolArray:
        """Classes whose outgoing edges form no component, shape (n_classes,)."""
        ignored = np.zeros(classes.n_groups, dtype=np.bool_)
        if self.ignored:
            for name in self.ignored.split(","):
                unit = problem.units.group_of[op_named(problem.graph, name.strip())]
                ignored[classes.group_of[unit]] = True
            return ignored
        graph = problem.unit_graph
        seconds = np.where(problem.allowed, problem.costs.seconds, 0.0).max(axis=1)
        np.add.at(seconds, graph.tensor_producers, _sending_seconds(problem))
        ignored[:] = True
        np.logical_and.at(ignored, classes.group_of, seconds <= 0)
        return ignored


def _sending_seconds(problem: Problem) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Longest time to send each tensor that a forward unit produces, shape (n_tensors,)."""
    producers = problem.unit_graph.tensor_producers
    send = peer_independent_transfers(problem)[1].max(axis=0)
    is_forward = problem.unit_graph.op_phases[np.maximum(producers, 0)] == FORWARD
    return np.where((producers >= 0) & is_forward, send, 0.0)


def biconnected_tails(n_nodes: int, pairs: IntArray) -> Grouping:
    """Fuse the tails of the edges of every biconnected component.

    The result is a chain of articulation points, as PipeDream expects (Tarnawski et al. 2020,
    section 6, the PipeDream baseline).

    Returns:
        Node -> fused node.
    """
    component = _biconnected_components(n_nodes, pairs)
    first: dict[int, int] = {}
    fused = DisjointSets(n_nodes)
    for tail, label in zip(pairs[:, 0].tolist(), component, strict=True):
        fused.join(first.setdefault(label, tail), tail)
    return fused.grouping()


def _biconnected_components(n_nodes: int, pairs: IntArray) -> list[int]:
    """Component of each undirected edge: Hopcroft and Tarjan 1973, without recursion.

    Parallel edges (a pair in both directions) share the component.
    """
    around: list[list[tuple[int, int]]] = [[] for _ in range(n_nodes)]
    for edge, (one, other) in enumerate(pairs.tolist()):
        around[one].append((other, edge))
        around[other].append((one, edge))
    entry, low = [-1] * n_nodes, [0] * n_nodes
    component = [-1] * len(pairs)
    clock = n_components = 0
    for start in range(n_nodes):
        if entry[start] >= 0:
            continue
        entry[start] = low[start] = clock
        clock += 1
        branch = [(start, -1, iter(around[start]))]
        trail: list[int] = []  # edges of open components
        while branch:
            node, via, rest = branch[-1]
            step = next(rest, None)
            if step is None:
                branch.pop()
                if branch:
                    above = branch[-1][0]
                    low[above] = min(low[above], low[node])
                    if low[node] >= entry[above]:
                        n_components += 1
                        while component[via] < 0:
                            component[trail.pop()] = n_components - 1
                continue
            target, edge = step
            if edge == via or component[edge] >= 0:
                continue
            if entry[target] < 0:
                entry[target] = low[target] = clock
                clock += 1
                trail.append(edge)
                branch.append((target, edge, iter(around[target])))
            elif entry[target] < entry[node]:
                trail.append(edge)
                low[node] = min(low[node], entry[target])
    return component
