"""HEFT: heterogeneous earliest finish time.

H. Topcuoglu, S. Hariri, M.-Y. Wu, "Performance-Effective and Low-Complexity Task Scheduling for
Heterogeneous Computing", IEEE TPDS 13(3), 2002, section 4.1: units by decreasing upward rank
(equation 8, mean costs), each to the device where it finishes first, idle gaps included.

Departures from the paper: units of a colocation class follow the first of them; devices whose
memory cannot take a class' weights are left out; a device has as many processors as streams, and a
unit holds all processors that its device shares with others; a copy that occupies a device counts
as a transfer; the mean transfer of a tensor is the mean of its seconds over all pairs of devices
that have a way, not its bytes over the mean bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.bases import ForLatency, anytime
from placewright.placers.legal import evaluate_within_limits
from placewright.placers.list_scheduling.in_order import propose_in_order
from placewright.placers.list_scheduling.ranks import by_rank, mean_upward_ranks
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class Heft(ForLatency):
    """Highest upward rank first, to where it finishes first; the order is part of the answer."""

    name: ClassVar[str] = "heft"
    paper: ClassVar[str] = "Topcuoglu et al., TPDS 2002"

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation (more if memory binds)."""
        del rng
        order = by_rank(problem, mean_upward_ranks(problem))  # Eq. (8)
        evaluate_within_limits(evaluator, propose_in_order(evaluator, order))
        return evaluator.solution()
