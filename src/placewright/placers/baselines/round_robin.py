"""Units dealt to the devices in turn, in topological order, without costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.anytime import anytime
from placewright.placers.conditions import ForEveryProblem
from placewright.placers.legal import (
    Proposal,
    ResidentMemory,
    classes_in_order,
    evaluate_within_limits,
)
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class RoundRobin(ForEveryProblem):
    """Deals colocation classes by their first unit; skips devices that cannot take a class."""

    name: ClassVar[str] = "round-robin"
    paper: ClassVar[str] = "baseline"

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation (more if memory binds)."""
        del rng
        evaluate_within_limits(evaluator, lambda limits: _dealt(problem, limits))
        return evaluator.solution()


def _dealt(problem: Problem, limits: FloatArray) -> Proposal:
    classes, allowed = problem.colocation, problem.allowed_by_class
    memory = ResidentMemory(problem, limits)
    device_of_class = np.full(classes.n_groups, -1, dtype=np.int64)
    turn = 0
    for group in classes_in_order(problem).tolist():
        turns = np.roll(np.arange(problem.n_devices), -turn).tolist()
        device_of_class[group] = memory.add_first(group, turns, allowed[group])
        turn = (int(device_of_class[group]) + 1) % problem.n_devices
    return classes.expand(device_of_class), None
