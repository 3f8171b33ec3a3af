"""The cross-entropy method."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.placers.search.cem import Cem
from placewright.simulation.evaluator import Evaluator
from placewright.testing.problems import random_problem


def test_it_ends_without_a_budget() -> None:
    """Without limits it draws three batches of ten."""
    problem = random_problem(np.random.default_rng(0))
    evaluator = Evaluator(problem)
    solution = Cem(batch=10, iterations=3, homogeneous_starts=False).place(
        problem, evaluator, np.random.default_rng(0)
    )
    assert solution.evaluations == 30


def test_at_least_one_batch_is_drawn() -> None:
    with pytest.raises(InputError, match="iterations must be >= 1, got 0"):
        Cem(iterations=0)
