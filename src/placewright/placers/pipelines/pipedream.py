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

from placewright.core.arrays import BoolArray
from placewright.core.graph import FORWARD
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem, op_named
from placewright.core.solution import Solution
from placewright.placers.anytime import anytime
from placewright.placers.pipelines.ideals.contiguous import (
    evaluate_split,
    linear_program,
    why_not_contiguous,
)
from placewright.placers.pipelines.ideals.items import items_of, precedence_pairs
from placewright.placers.pipelines.ideals.load_model import load_model_of
from placewright.placers.pipelines.ideals.orders import biconnected_tails
from placewright.placers.pipelines.ideals.transfers import peer_independent_transfers
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
        model = load_model_of(problem, items.grouping)
        evaluator.offer_bound(
            load_model_of(problem, problem.colocation).area_bound, "balanced load"
        )
        program = linear_program(model, items)
        if not program.found:
            return evaluator.solution(
                message="no stretches of the chain of layers fit the devices' memory and support"
            )
        evaluate_split(program, items, evaluator)
        return evaluator.solution(message=f"best split of a chain of {items.n_items} layers")

    def layers(self, problem: Problem) -> Grouping:
        """Unit -> layer."""
        classes = problem.colocation
        pairs = precedence_pairs(problem, classes)
        kept = pairs[~self._is_ignored(problem, classes)[pairs[:, 0]]]
        return classes.then(biconnected_tails(classes.n_groups, kept))

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
