"""The compiled list schedulers and repair plan what plain Python plans, unit by unit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import islice

import numpy as np
import pytest
import support.plain_list_schedulers as plain
from strategies import random_problem

from placewright.core.arrays import FloatArray
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import BudgetSpent
from placewright.placers.legal import Proposal
from placewright.placers.list_scheduling.earliest_first import planned_earliest_first
from placewright.placers.list_scheduling.in_order import (
    BLOCK,
    add_interval,
    first_start,
    grown,
    has_room,
    new_intervals,
    planned_in_order,
    proposal_of,
)
from placewright.placers.registry import make_placer
from placewright.placers.repair import repaired
from placewright.simulation.bounds.feasibility import prove_infeasible
from placewright.simulation.evaluator import Evaluator
from placewright.suites.suite.runs import random_layered_problem

METHODS: dict[str, Callable[[Problem, FloatArray], Proposal]] = {
    "heft": plain.heft,
    "peft": plain.peft,
    "cpop": plain.cpop,
    "m-topo": plain.m_topo,
    "m-etf": plain.earliest_first,
}


def first_proposal(name: str, problem: Problem) -> tuple[list[int], list[int] | None]:
    """Devices and order that a method asks the evaluator about first."""
    asked: list[tuple[list[int], list[int] | None]] = []

    class Ears(Evaluator):
        def evaluate(self, device_of, order=None):  # type: ignore[no-untyped-def]
            asked.append((list(device_of), None if order is None else list(order)))
            raise BudgetSpent

    evaluator = Ears(problem, Budget(evaluations=1))
    make_placer(name).place(problem, evaluator, np.random.default_rng(0))
    return asked[0]


@cache
def problems(count: int) -> list[Problem]:
    """Random problems with everything that a problem may have, that may have a placement."""
    found = map(random_problem, map(np.random.default_rng, range(2 * count)))
    return list(islice((one for one in found if prove_infeasible(one) is None), count))


@cache
def large_problem() -> Problem:
    return random_layered_problem(np.random.default_rng(0), 20_000, 8)


def in_a_pool(problem: Problem) -> Problem:
    """Two devices take what they keep from half of the bytes of all weights."""
    cluster = problem.cluster
    size = float(problem.graph.weight_bytes.sum()) / 2
    devices = tuple(
        replace(device, pool="ram") if at < 2 else device
        for at, device in enumerate(cluster.devices)
    )
    return replace(problem, cluster=replace(cluster, devices=devices, pools={"ram": size}))


def as_lists(proposal: Proposal) -> tuple[list[int], list[int] | None]:
    devices, order = proposal
    return devices.tolist(), None if order is None else order.tolist()


@pytest.mark.parametrize("name", METHODS)
def test_small_problems_are_planned_as_plain_python_plans_them(name: str) -> None:
    """Streams, routes through the host, pins, classes, shared weights, too little memory, ties.

    Devices share processors, too, and some a pool.
    """
    pooled = [in_a_pool(problem) for problem in problems(40)]
    for problem in [*problems(100), *(one for one in pooled if prove_infeasible(one) is None)]:
        expected = METHODS[name](problem, np.array(problem.cluster.memory_limits))
        assert first_proposal(name, problem) == as_lists(expected)


def test_favourite_children_hold_devices_as_in_plain_python() -> None:
    rng = np.random.default_rng(7)
    for problem in problems(150):
        successors = problem.unit_graph.successors
        favourite = {
            unit: int(rng.choice(successors.row(unit)))
            for unit in range(problem.n_units)
            if len(successors.row(unit)) and rng.random() < 0.7
        }
        limits = np.array(problem.cluster.memory_limits)
        children = np.full(problem.n_units, -1)
        children[list(favourite)] = list(favourite.values())
        plan = planned_earliest_first(problem, limits, children)
        expected = plain.earliest_first(problem, limits, favourite)
        assert as_lists(proposal_of(problem, plan)) == as_lists(expected)


@pytest.mark.parametrize("name", METHODS)
def test_many_intervals_are_searched_as_plain_python_searches_them(name: str) -> None:
    """Enough units for many blocks of intervals on each device, wide and narrow."""
    for n_devices, n_inputs in ((2, 2), (3, 1), (8, 3)):
        rng = np.random.default_rng(n_devices)
        problem = random_layered_problem(rng, 8 * BLOCK, n_devices, n_inputs)
        expected = METHODS[name](problem, np.array(problem.cluster.memory_limits))
        assert first_proposal(name, problem) == as_lists(expected)


def test_equal_devices_and_times_leave_ties_as_they_were() -> None:
    """All units cost the same everywhere: every choice is a tie."""
    base = random_layered_problem(np.random.default_rng(3), 300, 4)
    seconds = np.full(base.costs.seconds.shape, 1.0)
    seconds.setflags(write=False)
    problem = replace(base, costs=replace(base.costs, seconds=seconds))
    for name, method in METHODS.items():
        expected = method(problem, np.array(problem.cluster.memory_limits))
        assert first_proposal(name, problem) == as_lists(expected), name


def test_wishes_are_repaired_as_in_plain_python() -> None:
    rng = np.random.default_rng(11)
    for problem in problems(200):
        wish = rng.integers(-1, problem.n_devices, problem.n_units)
        limits = np.array(problem.cluster.memory_limits)
        limits[rng.integers(problem.n_devices)] = float(rng.integers(0, 12))
        for given in (None, limits):
            expected = plain.repaired(problem, wish, given)
            assert repaired(problem, wish, given).tolist() == expected.tolist()


def test_intervals_are_found_where_a_plain_list_finds_them() -> None:
    """Random insertions at first fit, of zero seconds among them, far more than a block holds."""
    rng = np.random.default_rng(2)
    intervals, stream = new_intervals(1, 4), plain._Stream()
    for step in range(40 * BLOCK):
        ready = float(rng.integers(0, 20 * (1 + step // 8))) / 4.0
        seconds = float(rng.choice([0.0, 0.25, 1.0, 2.0, 5.0, 0.1]))
        found = first_start(intervals, 0, ready, seconds)
        assert found == stream.earliest(ready, seconds, insertion=True)
        while not has_room(intervals):
            intervals = grown(intervals)
        add_interval(intervals, 0, found, found + seconds)
        stream.add(found, found + seconds)


def test_the_linear_program_of_m_sct_ends_with_the_budget() -> None:
    """It takes minutes for so many units."""
    problem = large_problem()
    evaluator = Evaluator(problem, Budget(seconds=0.2))
    make_placer("m-sct").place(problem, evaluator, np.random.default_rng(0))
    assert evaluator.seconds < 10.0


@pytest.mark.parametrize("name", ["heft", "peft", "cpop", "m-etf"])
def test_construction_ends_with_the_budget(name: str) -> None:
    """A clock that says the time is up right away ends the work long before its end."""
    problem = large_problem()
    ticks = iter(range(10**9))
    evaluator = Evaluator(problem, Budget(seconds=3.0), clock=lambda: float(next(ticks)))
    found = make_placer(name).place(problem, evaluator, np.random.default_rng(0))
    assert found.placement is None
    assert found.evaluations == 0


def test_an_order_is_planned_up_to_its_end() -> None:
    problem = random_layered_problem(np.random.default_rng(0), 1000, 3)
    plan = planned_in_order(problem, problem.unit_graph.topological_order)
    assert (plan.device_of >= 0).all()
    assert math.isfinite(plan.end.max())
