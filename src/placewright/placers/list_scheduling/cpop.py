"""CPOP: critical path on a processor.

H. Topcuoglu, S. Hariri, M.-Y. Wu, IEEE TPDS 13(3), 2002, section 4.2: priority = upward + downward
rank; the units of the critical path share the device that runs all of them fastest; the others go
where they finish first.

Departures from the paper: as in `heft`; where no device can run the whole critical path, the one
that runs most of it takes what it can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.bases import ForLatency, anytime
from placewright.placers.legal import evaluate_within_limits
from placewright.placers.list_scheduling.in_order import Preferences, propose_in_order
from placewright.placers.list_scheduling.ranks import (
    critical_path,
    mean_downward_ranks,
    mean_upward_ranks,
    ready_by_rank,
)
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class Cpop(ForLatency):
    """The critical path stays together; everything else fills the gaps."""

    name: ClassVar[str] = "cpop"
    paper: ClassVar[str] = "Topcuoglu et al., TPDS 2002"

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation (more if memory binds)."""
        del rng
        priority = mean_upward_ranks(problem) + mean_downward_ranks(problem)  # Eqs. (8), (9)
        path = critical_path(problem, priority)
        wanted = np.full(problem.n_units, -1, dtype=np.int64)
        wanted[path] = critical_device(problem, path)  # the critical-path processor
        order = ready_by_rank(problem, priority)
        evaluate_within_limits(
            evaluator, propose_in_order(evaluator, order, Preferences(wanted=wanted))
        )
        return evaluator.solution()


def critical_device(problem: Problem, path: IntArray) -> int:
    """The device that can run most of the path, in the fewest seconds."""
    allowed = problem.allowed[path]
    missing = (~allowed).sum(axis=0)
    seconds = np.where(allowed, problem.costs.seconds[path], 0.0).sum(axis=0)
    return int(np.lexsort((np.arange(problem.n_devices), seconds, missing))[0])
