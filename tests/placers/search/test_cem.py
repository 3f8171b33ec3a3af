"""The cross-entropy method."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.core.solution import Budget
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


def test_a_batch_that_no_memory_holds_is_refused() -> None:
    with pytest.raises(InputError, match="batch must be from 2 to 100000, got 1000000000"):
        Cem(batch=10**9)


def test_a_proof_ends_it_unless_evaluations_are_limited() -> None:
    """With a proof it tries the first placement and the two homogeneous ones."""
    problem = random_problem(np.random.default_rng(0), constrained=False)
    for budget, expected in ((Budget(seconds=600.0), 3), (Budget(evaluations=30), 30)):
        evaluator = Evaluator(problem, budget)
        evaluator.evaluate(np.zeros(problem.n_units, dtype=np.int64))
        evaluator.offer_bound(evaluator.best_value, "a proof")
        found = Cem(batch=10).place(problem, evaluator, np.random.default_rng(0))
        assert found.evaluations == expected
