"""m-ETF: the ready unit that can start earliest, again and again.

J.-J. Hwang et al., "Scheduling Precedence Graphs in Systems with Interprocessor Communication
Times", SIAM J. Computing 18(2), 1989, with the memory check of Baechi (Jeon et al., SoCC 2020,
section 3.2): a device whose memory cannot take the unit is left out.

Departures from the paper: theirs are equal GPUs; where devices differ, a unit's device is the one
where it finishes first (on equal devices: starts first), else an idle CPU would take units that
a GPU finishes sooner even if they wait for it. Ties go to the unit of highest upward rank;
colocation as in Baechi (the class follows its first unit). Memory is planned with resident bytes;
where the simulator finds that live tensors exceed it, the device's limit is lowered by the excess
and the method runs again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.bases import ForLatency, anytime
from placewright.placers.legal import evaluate_within_limits
from placewright.placers.list_scheduling.earliest_first import propose_earliest_first
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class MEtf(ForLatency):
    """Earliest task first with a memory check."""

    name: ClassVar[str] = "m-etf"
    paper: ClassVar[str] = "Jeon et al. (Baechi), SoCC 2020"

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation (more if memory binds)."""
        del rng
        evaluate_within_limits(evaluator, propose_earliest_first(evaluator))
        return evaluator.solution()
