"""All units on one device; units that it cannot run go to the fastest device that can.

Homogeneous placements, one for each device, are also the start of every search that learns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import UnknownNameError
from placewright.placers.anytime import anytime
from placewright.placers.conditions import ForEveryProblem
from placewright.placers.legal import evaluate_within_limits
from placewright.placers.repair import repaired
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class Single(ForEveryProblem):
    """The best single device, or a given one.

    Attributes:
        device: name of the device; empty tries each and returns the best.
    """

    name: ClassVar[str] = "single"
    paper: ClassVar[str] = "baseline"

    device: str = ""

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation per device (more if memory binds).

        Raises:
            UnknownNameError: the named device is not in the cluster.
        """
        del rng
        names = problem.cluster.device_names
        if self.device and self.device not in names:
            raise UnknownNameError("device", self.device, names)
        for device, name in enumerate(names):
            if self.device in ("", name):
                _on_device(problem, evaluator, device)
        return evaluator.solution()


def _on_device(problem: Problem, evaluator: Evaluator, device: int) -> None:
    wish = np.full(problem.n_units, device, dtype=np.int64)
    evaluate_within_limits(evaluator, lambda limits: (repaired(problem, wish, limits), None))


def homogeneous_placements(problem: Problem) -> IntArray:
    """One placement for each device, shape (n_devices, n_units).

    A colocation class that the device may not hold goes to the first device that may.
    """
    allowed = problem.allowed_by_class
    fallback = allowed.argmax(axis=1)  # (classes,)
    chosen = np.where(allowed, np.arange(problem.n_devices), fallback[:, None]).T
    placements: IntArray = chosen[:, problem.colocation.group_of]
    return placements


def evaluate_homogeneous(problem: Problem, evaluator: Evaluator) -> None:
    """Evaluate the homogeneous placements; they count as queries, and no policy learns from them.

    Raises:
        BudgetSpent: no query is left.
    """
    evaluator.evaluate_many(homogeneous_placements(problem))
