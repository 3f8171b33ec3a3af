"""Local search starts from list schedules: it never ends behind one that it could have called."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator
from placewright.testing.problems import random_problem

LISTS = ("m-etf", "heft", "peft")


def value(name: str, problem: Problem, evaluations: int, seed: int = 0) -> float:
    evaluator = Evaluator(problem, Budget(evaluations=evaluations))
    found = make_placer(name).place(problem, evaluator, np.random.default_rng(seed))
    assert evaluator.evaluations <= evaluations
    return found.value


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("evaluations", [3, 30])
def test_it_is_at_least_as_good_as_every_list_schedule(seed: int, evaluations: int) -> None:
    problem = random_problem(np.random.default_rng(seed), n_ops=300, n_devices=4, constrained=False)
    best = min(value(name, problem, 1) for name in LISTS)
    assert value("local-search", problem, evaluations, seed) <= best


def test_one_evaluation_is_one_list_schedule() -> None:
    problem = random_problem(np.random.default_rng(7), n_ops=40, n_devices=3, constrained=False)
    assert value("local-search", problem, 1) == value("m-etf", problem, 1)


def test_seconds_that_a_list_schedule_would_exceed_still_give_a_placement() -> None:
    """The clock jumps past the budget at the end of the first list schedule."""
    problem = random_problem(np.random.default_rng(1), n_ops=40, n_devices=3, constrained=False)
    times = [0.0]
    evaluator = Evaluator(problem, Budget(seconds=1.0), clock=lambda: times[0])
    evaluate = evaluator.evaluate

    def late(*arguments: object) -> float:
        times[0] = 2.0
        return evaluate(*arguments)  # type: ignore[arg-type]

    evaluator.evaluate = late  # type: ignore[assignment,method-assign]
    found = make_placer("local-search").place(problem, evaluator, np.random.default_rng(0))
    assert found.placement is not None
    assert evaluator.evaluations > 0
