"""A budget of seconds does not pay for compiling the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.core.execution_models import EXECUTION_MODELS, ExecutionModel
from placewright.core.solution import Budget
from placewright.simulation import evaluator as module
from placewright.simulation.evaluator import Evaluator, compile_kernels
from placewright.testing.problems import random_problem


@pytest.mark.parametrize("model", [model() for model in EXECUTION_MODELS])
def test_every_execution_model_has_its_kernels_made(model: ExecutionModel) -> None:
    compile_kernels(model)  # type: ignore[arg-type]


def test_the_clock_starts_when_the_kernels_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes 100 s of a clock that nothing else moves; a budget of 1 s is untouched."""
    now = [0.0]

    def slow(model: ExecutionModel) -> None:
        now[0] += 100.0

    monkeypatch.setattr(module, "compile_kernels", slow)
    problem = random_problem(np.random.default_rng(0))
    evaluator = Evaluator(problem, Budget(seconds=1.0), clock=lambda: now[0])
    assert now[0] == 100.0
    assert evaluator.seconds == 0.0
    assert not evaluator.is_spent
