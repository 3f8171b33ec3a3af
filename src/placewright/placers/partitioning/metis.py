"""METIS: a multilevel partition with the least cut whose parts are as large as devices are fast.

G. Karypis, V. Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs",
SIAM J. Sci. Comput. 20(1), 1998; a baseline of Gao et al. (Post, 2018).
The binding passes one weight per vertex (seconds); repair enforces memory limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import Requires, optional_library
from placewright.placers.bases import ForEveryProblem, anytime, require_counts, require_numbers
from placewright.placers.partitioning.weighted_graph import (
    WeightedGraph,
    one_in_each,
    place_by_partition,
)
from placewright.simulation.evaluator import Evaluator

_FEW = 16  # vertices for each part, below which a half of the library may be empty


@dataclass(frozen=True)
class Metis(ForEveryProblem):
    """Minimum cut, balanced to device speed.

    Attributes:
        imbalance: allowed excess of a part over its share, in (0, 1].
        recursive: recursive bisection (best for up to eight parts) or k-way refinement.
        assignments: parts-to-devices assignments tried at most, >= 1.
    """

    name: ClassVar[str] = "metis"
    paper: ClassVar[str] = "Karypis and Kumar, SIAM J. Sci. Comput. 1998"
    requires: ClassVar[Requires] = (("pymetis", "partitioning"),)

    imbalance: float = 0.03
    recursive: bool = True
    assignments: int = 24

    def __post_init__(self) -> None:
        require_numbers("metis", self, "in (0, 1]", "imbalance")
        require_counts("metis", self, "assignments")

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Partition once, and evaluate assignments of its parts to devices."""
        return place_by_partition(
            problem, evaluator, rng, self.partition, assignments=self.assignments
        )

    def partition(self, graph: WeightedGraph, fractions: FloatArray, seed: int) -> IntArray:
        """Part of each vertex, shape (n_vertices,).

        Raises:
            MissingExtraError: `pymetis` is not installed.
        """
        if len(fractions) == 2 or graph.n_vertices >= _FEW * len(fractions):
            return self._of_library(graph, fractions, seed)
        return self._in_halves(graph, fractions, seed)

    def _in_halves(self, graph: WeightedGraph, fractions: FloatArray, seed: int) -> IntArray:
        """Bisect, then each half again; the library prints lines if one of its halves is empty."""
        count, middle = len(fractions), len(fractions) // 2
        part_of = np.zeros(graph.n_vertices, dtype=np.int64)
        if count == 1:
            return part_of
        if graph.n_vertices <= count:
            return one_in_each(graph.vertex_weights, fractions)
        halves = [fractions[:middle], fractions[middle:]]
        sums = np.array([half.sum() for half in halves])
        half_of = self._of_library(graph, sums, seed)
        for at, half in enumerate(halves):
            own = np.flatnonzero(half_of == at)
            inner = self._in_halves(graph.induced(own), half / half.sum(), seed)
            part_of[own] = at * middle + inner
        return part_of

    def _of_library(self, graph: WeightedGraph, fractions: FloatArray, seed: int) -> IntArray:
        pymetis = optional_library("pymetis", "partitioning", "placer 'metis'")
        options = pymetis.Options()
        options.seed = seed
        options.ufactor = max(1, round(self.imbalance * 1000))
        _, part_of = pymetis.part_graph(
            len(fractions),
            pymetis.CSRAdjacency(graph.indptr.tolist(), graph.neighbours.tolist()),
            vweights=graph.vertex_weights.tolist(),
            eweights=graph.edge_weights.tolist(),
            tpwgts=_summing_to_one(fractions),
            recursive=self.recursive,
            options=options,
        )
        return np.asarray(part_of, dtype=np.int64)


def _summing_to_one(fractions: FloatArray) -> list[float]:
    listed = [float(fraction) for fraction in fractions]
    return [*listed[:-1], 1.0 - sum(listed[:-1])]
