"""Everything on one device; what that device cannot run goes to the fastest that can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import UnknownNameError
from placewright.placers.anytime import anytime
from placewright.placers.legal import evaluate_within_memory
from placewright.placers.repair import repaired
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class Single:
    """The best single device, or the one that is named.

    Attributes:
        device: name of the device; empty tries each and keeps the best.
    """

    name: ClassVar[str] = "single"
    paper: ClassVar[str] = "baseline"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "throughput", "training")
    needs_training: ClassVar[bool] = False

    device: str = ""

    def why_not(self, problem: Problem) -> str | None:
        """Defined for every problem."""
        del problem
        return None

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation per device (more where memory binds).

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
    evaluate_within_memory(evaluator, lambda limits: (repaired(problem, wish, limits), None))
