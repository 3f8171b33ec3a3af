"""Two methods at once, kernels that are ready before the clock, and a first incumbent."""

from __future__ import annotations

import gc
import math
import threading
from typing import Any

import numpy as np
import pytest

from placewright.core.arrays import FloatArray
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import BudgetSpent
from placewright.placers.portfolio import auto
from placewright.placers.portfolio.auto import Auto
from placewright.placers.portfolio.beside import beside
from placewright.placers.portfolio.first import evaluate_first
from placewright.placers.portfolio.kernels import make_ready
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.interruptible import interruptible
from placewright.suites.random_graphs import random_layered_problem
from placewright.testing.problems import random_problem


def small(**more: Any) -> Problem:
    """Of more placements than are enumerated."""
    return random_problem(np.random.default_rng(1), n_ops=13, n_devices=2, **more)


def compiled_versions() -> dict[str, list[str]]:
    """Of each kernel: the combinations of argument types that it was called with."""
    from numba.core.dispatcher import Dispatcher

    found = [one for one in gc.get_objects() if isinstance(one, Dispatcher)]
    # Numba's own have one name for many, and are compiled as parts of ours.
    found = [one for one in found if one.py_func.__module__.startswith("placewright.")]
    return {
        f"{one.py_func.__module__}.{one.py_func.__name__}": [str(types) for types in one.signatures]
        for one in found
        if one.signatures
    }


def test_no_kernel_is_compiled_after_the_clock_has_started() -> None:
    """After `make_ready` the members of `auto` meet no new types of arguments.

    Problems with and without limits of memory, weights, colocation and pins.
    """
    problems = [
        random_layered_problem(np.random.default_rng(0), 50, 3),
        *(random_problem(np.random.default_rng(seed), n_ops=12, n_devices=3) for seed in (1, 2, 3)),
    ]
    for problem in problems:
        make_ready(problem.objective, problem.execution_model)
        Evaluator(problem)
    before = compiled_versions()
    assert len(before) > 10
    for problem in problems:
        Auto().place(problem, Evaluator(problem, Budget(evaluations=300)), np.random.default_rng(0))
    new = {name: types for name, types in compiled_versions().items() if types != before.get(name)}
    assert not new, list(new)


def test_there_is_an_incumbent_before_kernels_are_made_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And a clock that runs out meanwhile takes neither it nor the search's seconds away."""
    now, seen = [0.0], []

    def slow(objective: object, model: object) -> None:
        now[0] += 60.0
        seen.append(evaluator.best_value)

    monkeypatch.setattr(auto, "make_ready", slow)
    evaluator = Evaluator(small(constrained=False), Budget(seconds=3.0), clock=lambda: now[0])
    found = Auto(at_once=1).place(
        evaluator.problem, _ends(evaluator, now), np.random.default_rng(0)
    )
    assert math.isfinite(seen[0])
    assert found.value <= seen[0]
    assert evaluator.evaluations > 1  # the three seconds were all left
    assert found.seconds == pytest.approx(now[0] - 60.01)


def _ends(evaluator: Evaluator, now: list[float]) -> Evaluator:
    """Every query takes a hundredth of a second, and so do several at a time."""
    answer = evaluator.evaluate

    def evaluate(*arguments: Any, **named: Any) -> float:
        now[0] += 0.01
        return answer(*arguments, **named)

    answer_many = evaluator.evaluate_many

    def evaluate_many(*arguments: Any, **named: Any) -> FloatArray:
        now[0] += 0.01
        return answer_many(*arguments, **named)

    evaluator.evaluate = evaluate  # type: ignore[method-assign]
    evaluator.evaluate_many = evaluate_many  # type: ignore[method-assign]
    return evaluator


def test_the_first_one_keeps_pins_and_colocation() -> None:
    for seed in range(30):
        problem = random_problem(np.random.default_rng(seed), n_ops=9, n_devices=3)
        evaluator = Evaluator(problem)
        evaluate_first(problem, evaluator)
        if evaluator.best is None:
            continue  # memory binds
        assert problem.allowed[np.arange(problem.n_units), evaluator.best.device_of].all()
        assert evaluator.simulator.violation(evaluator.best) is None


def test_evaluators_beside_each_other_share_what_is_found() -> None:
    problem = small(constrained=False)
    first = Evaluator(problem, Budget(evaluations=10))
    second = first.beside()
    value = second.evaluate(np.zeros(13, dtype=np.int64))
    second.offer_bound(0.5 * value, "a proof")
    assert (first.best_value, first.lower_bound, first.evaluations) == (value, 0.5 * value, 1)
    assert (first.asked, second.asked) == (0, 1)
    with second.at_most(1, math.inf):
        second.evaluate(np.ones(13, dtype=np.int64))
        assert second.is_spent
        assert not first.is_spent
    first.stop()
    with pytest.raises(BudgetSpent):
        second.evaluate(np.zeros(13, dtype=np.int64))


def test_counts_of_many_threads_add_up() -> None:
    problem = small(constrained=False)
    evaluator = Evaluator(problem)
    rows = np.random.default_rng(0).integers(0, 2, (50, 13))

    def ask(one: Evaluator) -> None:
        for row in rows:
            one.evaluate(row)

    threads = [threading.Thread(target=ask, args=(evaluator.beside(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert evaluator.evaluations == 200
    values = [point.value for point in evaluator.history]
    assert values == sorted(values, reverse=True)
    assert evaluator.best_value == min(evaluator.simulator.values(rows))


def test_a_block_that_raises_stops_the_search_beside_it() -> None:
    stopped, begun = threading.Event(), threading.Event()

    def search() -> None:
        begun.set()
        assert stopped.wait(600)

    def block() -> None:
        with beside(search, stopped.set):
            assert begun.wait(600)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        block()
    assert stopped.is_set()


def test_what_a_search_beside_raises_is_raised() -> None:
    def broken() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), beside(broken, lambda: None):
        pass

    def spent() -> None:
        raise BudgetSpent

    with beside(spent, lambda: None):
        pass


def test_both_lanes_of_auto_do_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a proof waits, a search in the other thread finds something; then all ends."""
    problem = small(constrained=False)
    searched = threading.Event()
    ends = problem.n_units

    class Method:
        def __init__(self, name: str) -> None:
            self.name = name

        def why_not(self, problem: Problem) -> str | None:
            return None

        def place(self, problem: Problem, evaluator: Evaluator, rng: object) -> object:
            if self.name == "local-search":
                evaluator.evaluate(np.arange(ends) % 2)
                searched.set()
            if self.name == "cp-sat":
                assert searched.wait(600)
                evaluator.offer_bound(evaluator.best_value, "a proof")
            return evaluator.solution()

    monkeypatch.setattr(auto, "make_placer", lambda name, settings=None: Method(name))
    monkeypatch.setattr(auto, "search_parts", lambda *given: None)
    monkeypatch.setattr(auto, "quick_bounds", lambda problem: [])
    monkeypatch.setattr(auto, "relaxed_bounds", lambda problem, seconds: [])
    evaluator = Evaluator(problem, Budget(seconds=3600.0))
    found = Auto().place(problem, evaluator, np.random.default_rng(0))
    assert searched.is_set()
    assert found.status == "optimal"


def test_interruptible_work() -> None:
    """Its result, its error, and its end when it is over."""
    assert interruptible(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0)
    ended = threading.Event()
    assert interruptible(lambda: ended.wait(600), stop=ended.set, is_over=lambda: True)
