"""DPL: best contiguous split of one linear order, in polynomial time.

Tarnawski, Phanishayee, Devanur, Mahajan, Nina Paravecino: "Efficient Algorithms for Device
Placement of DNN Graph Operators", NeurIPS 2020, section 5.1.2: items in a depth-first
topological order, then the dynamic program over the n + 1 prefixes. Transfers are those of the
original graph.

Departures from the paper: several kinds of devices; ties of the order go by item number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.bases import anytime
from placewright.placers.pipelines.ideals.items import items_of
from placewright.placers.pipelines.ideals.load_model import why_not_separable
from placewright.placers.pipelines.ideals.program import place_in_order
from placewright.placers.pipelines.ideals.two_levels import (
    GroupSplitter,
    why_not_contiguous_in_groups,
)
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class Dpl:
    """Splits a depth-first order of the graph into one stretch per device."""

    name: ClassVar[str] = "dpl"
    paper: ClassVar[str] = "Tarnawski et al., NeurIPS 2020"
    objectives: ClassVar[tuple[str, ...]] = ("throughput",)
    needs_training: ClassVar[bool] = False

    def why_not(self, problem: Problem) -> str | None:
        """None for a max-load problem whose links have one level or two."""
        return why_not_contiguous_in_groups(problem)

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Evaluate the best split of the order; two evaluations if links have two levels."""
        if why_not_separable(problem) is not None:
            return GroupSplitter(problem, evaluator).linear()
        return place_in_order(
            problem,
            items_of(problem),
            evaluator,
            "depth-first order",
            "best split of one linear order",
        )
