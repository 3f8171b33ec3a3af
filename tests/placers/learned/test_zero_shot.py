"""Placer `zero-shot`: the placements that it tries, those on one device first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright.core.arrays import frozen_floats
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.problem import Problem
from placewright.errors import BudgetSpent, InputError
from placewright.placers.learned.zero_shot.algorithm import trainee
from placewright.placers.learned.zero_shot.placer import ZeroShot
from placewright.placers.learned.zero_shot.policy import (
    candidate_placements,
    one_device_placements,
)
from placewright.testing.problems import random_problem


def problem_with_twins() -> Problem:
    """Three devices, of which the last two have equal costs."""
    problem = random_problem(np.random.default_rng(0), n_devices=3, constrained=False)
    seconds = np.tile([5.0, 1.0, 1.0], (problem.n_units, 1))
    return replace(problem, costs=CostTable(frozen_floats(seconds)))


def devices_tried(problem: Problem) -> list[list[int]]:
    return [sorted(set(row.tolist())) for row in one_device_placements(problem)]


def test_one_of_equal_devices() -> None:
    assert devices_tried(problem_with_twins()) == [[1], [0]]


def test_a_pin_to_the_second_of_two_equal_devices() -> None:
    assert devices_tried(replace(problem_with_twins(), pins={0: 2})) == [[2]]


def test_the_larger_memory_of_two_equal_devices() -> None:
    problem = problem_with_twins()
    cluster = problem.cluster.with_limit(problem.cluster.device_names[1], 1.0)
    assert devices_tried(replace(problem, cluster=cluster)) == [[2], [0]]


def test_no_device_takes_all() -> None:
    assert devices_tried(replace(problem_with_twins(), pins={0: 1, 1: 2})) == []


def test_single_devices_are_tried_before_anything_is_decoded() -> None:
    """A budget that ends while units are decoded leaves a placement."""
    problem, rng = problem_with_twins(), np.random.default_rng(0)
    rows = candidate_placements(problem, "", 10, 0.5, rng, is_over=lambda: True)
    assert [sorted(set(next(rows).tolist())) for _ in range(2)] == [[1], [0]]
    with pytest.raises(BudgetSpent):
        next(rows)


def test_a_policy_trains_on_objectives_that_it_places_only() -> None:
    problems = [problem_with_twins(), problem_with_twins().under(MaxLoad())]
    with pytest.raises(InputError, match=r"cannot train on this problem: .*, not throughput"):
        trainee(ZeroShot(), problems)
