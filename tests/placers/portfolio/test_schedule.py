"""Turns, lanes and schedule of a portfolio; kernels and a first incumbent before its clock."""

from __future__ import annotations

import gc
import math
import pickle
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from placewright.core.arrays import FloatArray
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Stop
from placewright.errors import BudgetSpent
from placewright.placers.portfolio import auto, schedule, turn
from placewright.placers.portfolio.auto import Auto, InTurn, Lanes
from placewright.placers.portfolio.enumeration import ENUMERATION
from placewright.placers.portfolio.kernels import make_ready
from placewright.placers.portfolio.schedule import PortfolioMembers, evaluate_first
from placewright.placers.portfolio.turn import Turn, Turns, TurnTaker
from placewright.simulation.bounds.lower import quick_bounds
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.interruptible import interruptible
from placewright.suites.suite.runs import random_layered_problem
from placewright.testing.problems import random_problem


def small(**more: Any) -> Problem:
    """Of more placements than are enumerated."""
    return random_problem(np.random.default_rng(1), n_ops=13, n_devices=2, **more)


def compiled_versions() -> dict[str, list[str]]:
    """Of each kernel: the combinations of argument types that it was called with."""
    from numba.core.dispatcher import Dispatcher

    gc.unfreeze()  # kernels that were imported before the run are frozen, and not listed
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
        budget = Budget(evaluations=300, seconds=1.5)  # exact members take no evaluations
        Auto().place(problem, Evaluator(problem, budget), np.random.default_rng(0))
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


def test_measurements_before_the_kernels_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes two of three seconds of the hardware, so that there are two."""
    now, measured = [0.0], list[Placement]()

    def measure(placement: Placement) -> float:
        now[0] += 2.0
        measured.append(placement)
        return 1.0

    monkeypatch.setattr(auto, "make_ready", lambda objective, model: None)
    problem, budget = small(constrained=False), Budget(seconds=3.0)
    evaluator = Evaluator(problem, budget, measure=measure, clock=lambda: now[0])
    found = Auto().place(problem, evaluator, np.random.default_rng(0))
    assert len(measured) == 2
    assert found.seconds == pytest.approx(4.0)


def test_bounds_follow_an_enumeration_that_proved_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among the orders it offers bounds, and its share of the budget may end there."""

    def begun(problem: Problem, evaluator: Evaluator) -> None:
        evaluator.offer_bound(1e-9, ENUMERATION)

    monkeypatch.setattr(schedule, "enumerate_small", begun)
    evaluator = Evaluator(small(constrained=False), Budget(evaluations=1))
    Auto().place(evaluator.problem, evaluator, np.random.default_rng(0))
    quick = {bound.method for bound in quick_bounds(evaluator.problem)}
    assert quick
    assert quick <= evaluator.bounded_by


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


class Method:
    """Stands in for a member: it does what the test says."""

    def __init__(self, act: Callable[[Evaluator], object]) -> None:
        self._act = act

    def why_not(self, problem: Problem) -> str | None:
        return None

    def place(self, problem: Problem, evaluator: Evaluator, rng: object) -> object:
        self._act(evaluator)
        return evaluator.solution()


def test_whoever_stops_to_listen_ends_the_turns_of_all_lanes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Event()
    nowhere = np.zeros(13, dtype=np.int64)

    def ask_for_ever(evaluator: Evaluator) -> None:
        try:
            while True:
                evaluator.evaluate(nowhere)
        finally:
            ended.set()

    acts = {"long": ask_for_ever, "short": lambda evaluator: evaluator.evaluate(nowhere)}
    monkeypatch.setattr(turn, "make_placer", lambda name, settings: Method(acts[name]))
    evaluator = Evaluator(small(constrained=False))
    turns = [Turn("long", (0,), Budget()), Turn("short", (1,), Budget())]
    running = Lanes(evaluator, 2).run(turns)
    first, outcome = next(running)
    assert first.member == "short"
    assert outcome is not None
    assert (outcome.asked, outcome.is_spent) == (1, False)
    running.close()
    assert ended.wait(600)


def test_what_a_member_raises_in_a_lane_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(evaluator: Evaluator) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(turn, "make_placer", lambda name, settings: Method(broken))
    evaluator = Evaluator(small(constrained=False))
    with pytest.raises(ValueError, match="broken"):
        list(Lanes(evaluator, 2).run([Turn("broken", (0,), Budget())]))
    assert evaluator.is_spent


def test_a_turn_counts_by_itself_and_is_merged_by_its_portfolio() -> None:
    """What it begins from is not evaluated again; what it found comes behind it in the history."""
    problem = small(constrained=False)
    evaluator = Evaluator(problem, Budget(evaluations=100))
    value = evaluator.evaluate(np.zeros(13, dtype=np.int64))
    given = Turn("local-search", (0,), Budget(evaluations=40), start=evaluator.best, value=value)
    (_, outcome), *rest = InTurn(evaluator).run([given])
    assert not rest
    assert outcome is not None
    assert (outcome.asked, outcome.solution.evaluations, evaluator.evaluations) == (40, 40, 1)
    assert outcome.value < value
    evaluator.take_in(outcome.solution, is_elsewhere=False)
    assert evaluator.evaluations == 41
    assert evaluator.best_value == outcome.value
    values = [point.value for point in evaluator.history]
    assert values == sorted(values, reverse=True)
    assert evaluator.history[-1].evaluations <= 41


@pytest.mark.parametrize("member", ["problem-space", "multilevel", "local-search"])
def test_a_search_goes_on_in_any_process_as_in_one(member: str) -> None:
    """Ten turns by one taker, and by three that know the others' states from what is pickled."""
    problem = random_layered_problem(np.random.default_rng(2), 60, 3)

    def taken(takers: list[TurnTaker]) -> list[Any]:
        start, value, state, seen = None, math.inf, None, []
        for number in range(10):
            # Each taker has several turns in a row now and then.
            taker = takers[(number * number // 3) % len(takers)]
            now = Turn(member, (number,), Budget(evaluations=45), {}, start, value, state=state)
            outcome = taker.take(now if len(takers) == 1 else pickle.loads(pickle.dumps(now)))
            found = outcome.solution
            start, value, state = found.placement, found.value, outcome.state
            assert start is not None
            seen.append((value, outcome.value, outcome.asked, start.device_of.tolist()))
        return seen

    alone = taken([TurnTaker(problem)])
    assert taken([TurnTaker(problem) for _ in range(3)]) == alone


class Noting(InTurn):
    """Takes turns in this process, and notes members and evaluations of each round."""

    def __init__(self, evaluator: Evaluator) -> None:
        super().__init__(evaluator)
        self.rounds: list[list[tuple[str, int | None]]] = []

    def run(self, turns: Iterable[Turn | None]) -> Turns:
        """See `Takers`."""
        listed = [one for one in turns if one is not None]
        self.rounds.append([(one.member, one.budget.evaluations) for one in listed])
        return super().run(listed)


class WithoutProofs(Auto):
    """Searches to the end of the budget."""

    def members(self, problem: Problem) -> PortfolioMembers:
        """Those of `auto` without its steps with a proof."""
        return replace(super().members(problem), steps=())


def test_rounds_of_searches() -> None:
    """Several turns while there are many evaluations, single ones at the end.

    No search that goes on where its last turn ended has two turns in a round.
    """
    problem = random_layered_problem(np.random.default_rng(2), 60, 3)
    evaluator = Evaluator(problem, Budget(evaluations=6000))
    takers = Noting(evaluator)
    WithoutProofs().place_with(takers, problem, evaluator, np.random.default_rng(0))
    searches = Auto().members(problem).searches
    rounds = [one for one in takers.rounds if one and one[0][0] in searches]
    sizes = [len(one) for one in rounds]
    assert max(sizes[:5]) == 4
    assert sizes[-3:] == [1, 1, 1]
    for one in rounds:
        names = [name for name, _ in one]
        assert max(names.count("problem-space"), names.count("multilevel")) <= 1
    assert evaluator.evaluations == 6000


class Losing:
    """Takers whose every worker is lost."""

    count, is_joint, is_elsewhere = 2, False, True

    def make_ready(self) -> None:
        """Nothing is compiled."""

    def run(self, turns: Iterable[Turn | None]) -> Turns:
        """See `Takers`."""
        lost: list[Turn] = []
        for one in turns:
            if one is not None:
                lost.append(one)
            if one is None or len(lost) == 2:
                yield lost.pop(), None


def test_a_search_ends_if_all_of_its_turns_are_lost() -> None:
    """Nobody tells what they used, and this process uses next to nothing."""
    evaluator = Evaluator(
        small(constrained=False), Budget(core_seconds=4.0), core_clock=lambda: 0.0
    )
    found = Auto().place_with(Losing(), evaluator.problem, evaluator, np.random.default_rng(0))
    assert found.stop is Stop.CORE_SECONDS
    assert found.placement is not None  # the first one, which is valued before any turn
    assert found.core_seconds >= 4.0


def test_both_lanes_of_auto_do_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a proof waits, a search in the other thread finds something; then all ends."""
    problem = small(constrained=False)
    searched = threading.Event()

    def search(evaluator: Evaluator) -> None:
        evaluator.evaluate(np.arange(problem.n_units) % 2)
        searched.set()

    def prove(evaluator: Evaluator) -> None:
        assert searched.wait(600)
        evaluator.offer_bound(evaluator.best_value, "a proof")

    acts = {"local-search": search, "cp-sat": prove}
    monkeypatch.setattr(
        turn, "make_placer", lambda name, settings: Method(acts.get(name, lambda evaluator: None))
    )
    monkeypatch.setattr(turn, "search_parts", lambda *given: None)
    monkeypatch.setattr(schedule, "quick_bounds", lambda problem: [])
    monkeypatch.setattr(turn, "relaxed_bounds", lambda problem, seconds: [])
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
