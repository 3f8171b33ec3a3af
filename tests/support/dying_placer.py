"""A placer whose process is ended as the system does it when no memory is left."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class Dying:
    """Kills itself."""

    name: ClassVar[str] = "dying"
    paper: ClassVar[str] = "none"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "throughput", "training")
    needs_training: ClassVar[bool] = False

    def why_not(self, problem: Problem) -> str | None:
        del problem
        return None

    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        os.kill(os.getpid(), signal.SIGKILL)
        return evaluator.solution()
