"""Budgets and shares of them, why a search ended, kept placements, compiling outside the budget."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import EXECUTION_MODELS, ExecutionModel
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution, Stop
from placewright.errors import BudgetSpent, InputError
from placewright.placers.bases import anytime
from placewright.simulation import evaluator as module
from placewright.simulation.evaluator import Evaluator, compile_kernels
from placewright.simulation.model import Simulator
from placewright.testing.problems import random_problem

ALL_ON_ONE = np.zeros(6, dtype=np.int64)


class Clock:
    """Seconds that pass only when they are told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class ClockOfTwoLanes(Clock):
    """A clock whose next reading lets another lane act first."""

    act: Callable[[], object] | None = None

    def __call__(self) -> float:
        act, self.act = self.act, None
        if act is not None:
            act()
        return self.now


def evaluator_with(budget: Budget | None, clock: Clock | None = None) -> Evaluator:
    problem = random_problem(np.random.default_rng(0), n_ops=6)
    return Evaluator(problem, budget, clock=clock or Clock())


def asked_until_spent(evaluator: Evaluator) -> int:
    """How many queries are answered."""
    before = evaluator.evaluations
    while not evaluator.is_spent:
        evaluator.evaluate(ALL_ON_ONE)
    with pytest.raises(BudgetSpent):
        evaluator.evaluate(ALL_ON_ONE)
    return evaluator.evaluations - before


def test_a_share_ends_within_the_whole_and_gives_the_rest_back() -> None:
    """10 evaluations: a quarter of them is 3 (rounded up), half of the 7 left is 4, 3 stay."""
    evaluator = evaluator_with(Budget(evaluations=10))
    with evaluator.share(0.25):
        assert asked_until_spent(evaluator) == 3
    with evaluator.share(0.5):
        assert asked_until_spent(evaluator) == 4
    assert asked_until_spent(evaluator) == 3


def test_shares_within_shares_and_after_an_error() -> None:
    """Half of 8 is 4, half of that 2; an error inside gives the whole back, too."""
    evaluator = evaluator_with(Budget(evaluations=8))

    def fail() -> None:
        with evaluator.share(0.5):
            with evaluator.share(0.5):
                assert asked_until_spent(evaluator) == 2
            assert evaluator.remaining_evaluations == 2
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert evaluator.remaining_evaluations == 6


def test_a_share_of_seconds() -> None:
    clock = Clock()
    evaluator = evaluator_with(Budget(seconds=10.0), clock)
    clock.now += 2.0
    with evaluator.share(0.5):
        assert evaluator.remaining_seconds == 4.0
    assert evaluator.remaining_seconds == 8.0


def test_a_budget_tells_whether_it_has_a_limit() -> None:
    assert not Budget().is_limited
    assert Budget(seconds=1.0).is_limited
    assert Budget(evaluations=1).is_limited


class Ends:
    """A placer that evaluates once and then ends as it is told."""

    name: ClassVar[str] = "ends"

    def __init__(self, how: type[BaseException] | None) -> None:
        self._how = how

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        evaluator.evaluate(np.zeros(problem.n_units, dtype=np.int64))
        if self._how is not None:
            raise self._how
        return evaluator.solution()


@pytest.mark.parametrize(
    ("how", "stop"),
    [(None, Stop.DONE), (BudgetSpent, Stop.DONE), (KeyboardInterrupt, Stop.INTERRUPTED)],
)
def test_a_solution_tells_why_the_search_ended(how: type[BaseException] | None, stop: Stop) -> None:
    evaluator = evaluator_with(None)
    found = Ends(how).place(evaluator.problem, evaluator, np.random.default_rng(0))
    assert found.stop is stop
    assert found.evaluations == 1


def test_a_solution_names_the_limit_that_was_met() -> None:
    """Of 2 evaluations and 10 seconds first the ones and then the others are used up."""
    counted = evaluator_with(Budget(seconds=10.0, evaluations=2))
    asked_until_spent(counted)
    assert counted.solution().stop is Stop.EVALUATIONS
    clock = Clock()
    timed = evaluator_with(Budget(seconds=10.0, evaluations=2), clock)
    timed.evaluate(ALL_ON_ONE)
    clock.now += 11.0
    assert timed.solution().stop is Stop.SECONDS


def test_a_proof_is_the_reason_even_if_the_budget_ended_too() -> None:
    evaluator = evaluator_with(Budget(evaluations=1))
    evaluator.offer_bound(evaluator.evaluate(ALL_ON_ONE), "proof")
    assert evaluator.solution("optimal").stop is Stop.PROVEN
    assert evaluator_with(None).solution("infeasible", "a proof").stop is Stop.PROVEN


def test_core_seconds_end_a_search() -> None:
    """10 processor seconds, of which a share of a half is 5; the wall clock does not matter."""
    core, wall = Clock(), Clock()
    problem = random_problem(np.random.default_rng(0), n_ops=6)
    evaluator = Evaluator(problem, Budget(core_seconds=10.0), clock=wall, core_clock=core)
    wall.now += 100.0
    assert evaluator.remaining_seconds == 10.0
    with evaluator.share(0.5):
        core.now += 4.0
        assert evaluator.remaining_seconds == 1.0
        core.now += 2.0
        with pytest.raises(BudgetSpent):
            evaluator.evaluate(ALL_ON_ONE)
    evaluator.evaluate(ALL_ON_ONE)
    core.now += 5.0
    with pytest.raises(BudgetSpent):
        evaluator.evaluate(ALL_ON_ONE)
    found = evaluator.solution()
    assert (found.stop, found.core_seconds) == (Stop.CORE_SECONDS, 11.0)


def test_what_is_untimed_costs_no_core_seconds() -> None:
    core = Clock()
    problem = random_problem(np.random.default_rng(0), n_ops=6)
    evaluator = Evaluator(problem, Budget(core_seconds=1.0), core_clock=core)
    with evaluator.untimed():
        core.now += 30.0
        evaluator.evaluate(ALL_ON_ONE)
    assert evaluator.core_seconds == 0.0
    assert not evaluator.is_spent


def test_core_seconds_count_every_thread() -> None:
    """Two threads that compute: the search's clock agrees with the system's own accounting."""
    evaluator = evaluator_on_its_clocks()
    before = os.times()
    threads = [threading.Thread(target=sum, args=(range(3_000_000),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = os.times()
    counted = after.user + after.system - before.user - before.system
    assert evaluator.core_seconds >= counted - 2.0 / os.sysconf("SC_CLK_TCK")


def evaluator_on_its_clocks() -> Evaluator:
    return Evaluator(random_problem(np.random.default_rng(0), n_ops=6))


def two_ops() -> Problem:
    """Two ops without edges; device 1 is faster."""
    builder = GraphBuilder()
    for index in range(2):
        builder.add_op(f"op{index}", "Op", inputs=[builder.add_input(0.0)])
        builder.add_tensor(index, 0.0, is_output=True)
    links = (Link("cpu", "gpu", 0.0, 1e9), Link("gpu", "cpu", 0.0, 1e9))
    cluster = Cluster((Device("cpu"), Device("gpu", "gpu")), links, host="cpu")
    return Problem.of_ops(
        builder.build(), cluster, CostTable(frozen_floats([[3.0, 1.0], [3.0, 1.0]]))
    )


def seconds_of(placement: Placement) -> float:
    return float(np.where(placement.device_of == 1, 1.0, 3.0).sum())


@pytest.mark.parametrize("measure", [None, seconds_of])
def test_what_is_not_kept_counts_and_never_becomes_the_incumbent(measure: object) -> None:
    evaluator = Evaluator(two_ops(), Budget(evaluations=6), measure=measure)  # type: ignore[arg-type]
    best = evaluator.evaluate([1, 1], keep=False)
    assert (evaluator.evaluations, evaluator.best, evaluator.history) == (1, None, [])
    rows = np.array([[1, 1], [0, 1], [1, 1], [0, 0], [1, 0], [1, 1]])
    values = evaluator.evaluate_many(rows, keep=rows.min(axis=1) != rows.max(axis=1))
    assert len(values) == 5  # one query was used before
    assert evaluator.evaluations == 6
    assert evaluator.best is not None
    assert evaluator.best.device_of.tolist() == [0, 1]
    assert evaluator.best_value == values[1] > best == values[0]
    assert [point.evaluations for point in evaluator.history] == [3]
    assert evaluator.solution().value == values[1]


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


def test_an_incumbent_that_meets_the_bound_is_optimal_however_the_method_ended() -> None:
    problem = random_problem(np.random.default_rng(0), n_ops=6, constrained=False)
    evaluator = Evaluator(problem, Budget(seconds=10.0), clock=Clock())
    value = evaluator.evaluate(ALL_ON_ONE)
    assert evaluator.cut_short().status == "feasible"
    evaluator.offer_bound(value, "proof")
    for solution in (evaluator.solution(), evaluator.cut_short()):
        assert (solution.status, solution.stop) == ("optimal", Stop.PROVEN)


def test_a_solution_is_of_one_moment() -> None:
    """Another lane finds and proves the optimum while the solution is made."""
    clock = ClockOfTwoLanes()
    evaluator = evaluator_with(Budget(seconds=10.0), clock)
    rows = [np.array(row) for row in itertools.product(range(2), repeat=6)]
    by_value = sorted(
        (value, at)
        for at, row in enumerate(rows)
        if math.isfinite(value := evaluator.simulator.value(Placement.of(row)))
    )
    (least, best), (most, worst) = by_value[0], by_value[-1]
    assert least < most
    evaluator.evaluate(rows[worst])

    def prove() -> None:
        other = evaluator.beside()
        other.evaluate(rows[best])
        other.offer_bound(least, "proof")

    clock.act = prove
    solution = evaluator.solution()
    assert clock.act is None
    assert (solution.status == "optimal") == (solution.stop is Stop.PROVEN)
    assert (solution.status == "optimal") == (solution.value == solution.lower_bound)


@pytest.mark.parametrize("is_measured", [False, True])
def test_time_that_ends_within_a_batch_keeps_the_answers_so_far(
    monkeypatch: pytest.MonkeyPatch, *, is_measured: bool
) -> None:
    """Each answer takes a second: a measured one alone, simulated ones in blocks of 64."""
    clock, rows = Clock(), np.zeros((200, 2), dtype=np.int64)
    monkeypatch.setattr(module, "_UNITS_BETWEEN_LOOKS", 1)

    def passes(placement: Placement) -> float:
        clock.now += 1.0
        return seconds_of(placement)

    measure = passes if is_measured else None
    evaluator = Evaluator(two_ops(), Budget(seconds=1.5), measure=measure, clock=clock)
    if not is_measured:
        simulated = evaluator.simulator.values

        def values(some: np.ndarray) -> np.ndarray:
            clock.now += 1.0
            return simulated(some)

        monkeypatch.setattr(evaluator.simulator, "values", values)
    n_answered = 2 if is_measured else 128
    assert evaluator.sample_many(rows).tolist() == [6.0] * n_answered
    assert evaluator.samples == [6.0] * n_answered
    assert evaluator.evaluations == n_answered
    with pytest.raises(BudgetSpent):
        evaluator.evaluate_many(rows)


def test_a_batch_may_be_empty() -> None:
    empty = np.empty((0, 2), dtype=np.int64)
    for measure in (None, seconds_of):
        assert Evaluator(two_ops(), measure=measure).evaluate_many(empty).tolist() == []


@pytest.mark.parametrize("device_of", [0, [[0, 0]], [[0], [0, 1]], ["a", "b"], [0.5, 1.0]])
def test_a_placement_of_other_numbers_or_axes_is_refused(device_of: object) -> None:
    evaluator = Evaluator(two_ops())
    for query in (evaluator.evaluate, evaluator.evaluate_shortage):
        with pytest.raises(InputError, match="a placement is an integer for each unit"):
            query(device_of)  # type: ignore[arg-type]
    assert evaluator.evaluations == 0


@pytest.mark.parametrize("devices_of", [0, [[[0, 0]]], [[0], [0, 1]], [["a", "b"]], [[0.5, 1.0]]])
def test_placements_of_other_numbers_or_axes_are_refused(devices_of: object) -> None:
    with pytest.raises(InputError, match="a placement is an integer for each unit"):
        Evaluator(two_ops()).evaluate_many(devices_of)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [3, np.arange(2) + 0.9, [math.nan] * 2, ["a"] * 2, [[0, 1]], []])
def test_an_order_of_other_numbers_or_axes_is_refused(order: object) -> None:
    evaluator = Evaluator(two_ops())
    for query in (evaluator.evaluate, evaluator.evaluate_shortage):
        with pytest.raises(InputError, match="an order "):
            query([0, 1], order)  # type: ignore[arg-type]
    assert evaluator.evaluate([0, 1], range(2)) == 3.0


def test_a_search_that_proved_nothing_leaves_no_bound() -> None:
    evaluator = Evaluator(two_ops())
    apart = evaluator.apart(Budget(evaluations=1))
    apart.evaluate([1, 1])
    evaluator.take_in(apart.solution(), is_elsewhere=False)
    assert evaluator.bounded_by == set()
    apart.offer_bound(1.0, "proof")
    evaluator.take_in(apart.solution(), is_elsewhere=False)
    assert evaluator.bounded_by == {"proof"}


def test_fractions_are_no_devices_wherever_they_are_given() -> None:
    """They would be cut off, to another device than the nearest."""
    with pytest.raises(InputError, match="a placement is an integer for each unit"):
        Placement.of([0.9, 1.9])
    with pytest.raises(InputError, match="an order is an integer for each unit"):
        Placement.of([0, 1], [0.0, 1.0])
    with pytest.raises(InputError, match="a placement is an integer for each unit"):
        Simulator(two_ops()).values([[0.9, 1.9]])
