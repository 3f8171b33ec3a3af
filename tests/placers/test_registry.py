"""What an outside placer is asked, and what it is told."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.errors import InputError
from placewright.placers.bases import anytime
from placewright.session.search import search
from placewright.simulation.evaluator import Evaluator
from placewright.testing.problems import random_problem


class Outside:
    """All on the first device; its subclasses differ in how they refuse."""

    name: ClassVar[str] = "outside"
    paper: ClassVar[str] = "none"
    objectives: ClassVar[tuple[str, ...]] = ("latency",)
    needs_training: ClassVar[bool] = False

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        evaluator.evaluate(np.zeros(problem.n_units, dtype=np.int64))
        return evaluator.solution()


class WithReason(Outside):
    def why_not(self, problem: Problem) -> str | None:
        return None if problem.objective == "latency" else "latency only"


def test_a_reason_refuses_and_none_places() -> None:
    problem = random_problem(np.random.default_rng(0))
    few = Budget(evaluations=2)
    assert search(problem, WithReason(), few).placement is not None
    pipeline = random_problem(np.random.default_rng(0), objective="throughput")
    with pytest.raises(InputError, match="cannot place this problem: latency only"):
        search(pipeline, WithReason(), few)
