"""PEFT: predict earliest finish time.

H. Arabnejad and J. G. Barbosa, "List Scheduling Algorithm for Heterogeneous Systems by an
Optimistic Cost Table", IEEE TPDS 25(3), 2014: OCT (equation 5), rank = mean of a unit's row
(equation 7), the ready unit of highest rank goes where EFT + OCT is least (equation 8).

Departures from the paper: as in `heft`; devices that cannot run a unit are left out of its mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.bases import ForLatency, anytime
from placewright.placers.legal import evaluate_within_limits
from placewright.placers.list_scheduling.in_order import Preferences, propose_in_order
from placewright.placers.list_scheduling.ranks import optimistic_costs, ready_by_rank
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class Peft(ForLatency):
    """Adds a lower bound on the remaining path to each device's finish time."""

    name: ClassVar[str] = "peft"
    paper: ClassVar[str] = "Arabnejad and Barbosa, TPDS 2014"

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation (more if memory binds)."""
        del rng
        table, allowed = optimistic_costs(problem), problem.allowed  # Eq. (5)
        total = np.where(allowed, table, 0.0).sum(axis=1)
        order = ready_by_rank(problem, total / np.maximum(1, allowed.sum(axis=1)))  # Eq. (7)
        # Eq. (8): the table is added to the end of each unit.
        evaluate_within_limits(
            evaluator, propose_in_order(evaluator, order, Preferences(after=table))
        )
        return evaluator.solution()
