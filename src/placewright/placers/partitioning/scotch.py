"""Scotch: dual recursive bipartitioning of the graph onto a machine of weighted devices.

F. Pellegrini, J. Roman, "Scotch: A Software Package for Static Mapping by Dual Recursive
Bipartitioning of Process and Architecture Graphs", HPCN Europe 1996; a baseline of Mirhoseini et
al. 2017, who give it op costs, device speeds and tensor sizes. Here, edges weigh the mean seconds
of their transfers. Scotch takes every pair of devices as equally far, and the evaluator decides
between assignments of parts to devices.
"""

from __future__ import annotations

import contextlib
import io
import threading
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import Requires, optional_library
from placewright.placers.bases import ForEveryProblem, anytime, require_counts
from placewright.placers.partitioning.weighted_graph import WeightedGraph, place_by_partition
from placewright.simulation.evaluator import Evaluator

_ONE = threading.Lock()  # standard error and Scotch's random numbers belong to the process


@dataclass(frozen=True)
class Scotch(ForEveryProblem):
    """Minimum cut, balanced to device speed.

    Attributes:
        assignments: assignments of parts to devices that are evaluated at most, >= 1.
    """

    name: ClassVar[str] = "scotch"
    paper: ClassVar[str] = "Pellegrini and Roman, HPCN 1996"
    requires: ClassVar[Requires] = (("pyscotch", "partitioning"),)

    assignments: int = 24

    def __post_init__(self) -> None:
        require_counts("scotch", self, "assignments")

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Partition for each set of devices that can compute at once, and evaluate assignments.

        All assignments of the parts to the devices are evaluated, or only the one by speed if they
        are too many.
        """
        return place_by_partition(
            problem, evaluator, rng, scotch_partition, assignments=self.assignments
        )


def scotch_partition(graph: WeightedGraph, fractions: FloatArray, seed: int) -> IntArray:
    """Part of each vertex, shape (n_vertices,).

    Args:
        fractions: share of the vertex weights that each part should get; they add up to 1.

    Raises:
        MissingExtraError: `pyscotch`, which brings the library, is not installed.
    """
    with _ONE:
        # The binding writes the path of its library to standard error.
        with contextlib.redirect_stderr(io.StringIO()):
            pyscotch = optional_library("pyscotch", "partitioning", "placer 'scotch'")
            pyscotch.random_seed(seed)
            pyscotch.random_reset()
        weights = np.maximum(1, np.rint(fractions * 1000)).astype(np.int64)
        with pyscotch.Graph() as source, pyscotch.Architecture() as target:
            source.build(graph.indptr, graph.neighbours, graph.vertex_weights, graph.edge_weights)
            target.complete_weighted(len(fractions), weights)
            return np.asarray(source.map(target), dtype=np.int64)
