"""HEFT: heterogeneous earliest finish time.

H. Topcuoglu, S. Hariri, M.-Y. Wu, "Performance-Effective and Low-Complexity Task Scheduling for
Heterogeneous Computing", IEEE TPDS 13(3), 2002, section 4.1: units by decreasing upward rank
(equation 8, mean costs), each to the device where it finishes first, idle gaps included.

Departures from the paper: units of a colocation class follow the first of them; devices whose
memory cannot take a class' weights are left out; a device has as many processors as streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.anytime import anytime
from placewright.placers.legal import Proposal, evaluate_within_memory
from placewright.placers.list_scheduling.schedule import ListSchedule
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.ranks import mean_upward_ranks


@dataclass(frozen=True)
class Heft:
    """Highest upward rank first, to where it finishes first; the order is part of the answer."""

    name: ClassVar[str] = "heft"
    paper: ClassVar[str] = "Topcuoglu et al., TPDS 2002"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "training")
    needs_training: ClassVar[bool] = False

    def why_not(self, problem: Problem) -> str | None:
        """None unless the objective is throughput."""
        return "heft minimises latency" if problem.objective == "throughput" else None

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation (more where memory binds)."""
        del rng
        priority = by_rank(problem, mean_upward_ranks(problem))
        evaluate_within_memory(evaluator, lambda limits: _scheduled(problem, priority, limits))
        return evaluator.solution()


def by_rank(problem: Problem, rank: FloatArray) -> IntArray:
    """Units by decreasing rank; equal ones in topological order."""
    position = np.empty(problem.n_units, dtype=np.int64)
    position[problem.unit_graph.topological_order] = np.arange(problem.n_units)
    # Sums in another order differ in the last digit; that must not decide between equal ranks.
    steps = np.round(rank / max(float(rank.max()), 1e-300) * 1e12)
    return np.asarray(np.lexsort((position, -steps)), dtype=np.int64)


def _scheduled(problem: Problem, priority: IntArray, limits: FloatArray) -> Proposal:
    schedule = ListSchedule(problem, limits)
    for unit in priority.tolist():
        finish = {
            device: schedule.earliest_start(unit, device, insertion=True)
            + schedule.seconds(unit, device)
            for device in schedule.candidates(unit)
        }
        schedule.place(unit, min(finish, key=lambda d: (finish[d], d)), insertion=True)
    return schedule.device_of, schedule.order()
