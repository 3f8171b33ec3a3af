"""`auto`: order of its members, shares of the budget, one incumbent and bound, an early end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from placewright.core.placement import Placement
from placewright.core.problem import Objective, Problem
from placewright.core.solution import Budget, Solution, Stop
from placewright.errors import MissingExtraError
from placewright.placers.bases import anytime, found_none
from placewright.placers.portfolio import auto, schedule, turn
from placewright.placers.portfolio.auto import Auto
from placewright.placers.portfolio.schedule import SEARCHES
from placewright.placers.registry import make_placer, placer_class
from placewright.session.search import search
from placewright.simulation.bounds import lower
from placewright.simulation.bounds.feasibility import prove_infeasible
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.testing.problems import packing_problem, random_problem

OBJECTIVES: tuple[Objective, ...] = ("latency", "training", "throughput")
Act = Callable[[Evaluator], None]


@dataclass
class Call:
    """What a method found when it was its turn, and what it used."""

    name: str
    best_value: float
    lower_bound: float
    evaluations_left: float
    seconds_left: float
    evaluations_used: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)


class Methods:
    """Stands in for the registry: every name is a method that does what the test says."""

    def __init__(self, acts: Mapping[str, Act] | None = None, refuse: tuple[str, ...] = ()) -> None:
        self.acts, self.refuse = dict(acts or {}), refuse
        self.calls: list[Call] = []

    @property
    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    def __call__(self, name: str, settings: Mapping[str, str] | None = None) -> _Method:
        return _Method(name, self, settings or {})


class _Method:
    def __init__(self, name: str, methods: Methods, settings: Mapping[str, str]) -> None:
        self.name, self.methods, self.settings = name, methods, settings

    def why_not(self, problem: Problem) -> str | None:
        return "not this one" if self.name in self.methods.refuse else None

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        call = Call(
            self.name,
            evaluator.best_value,
            evaluator.lower_bound,
            evaluator.remaining_evaluations,
            evaluator.remaining_seconds,
            settings=self.settings,
        )
        self.methods.calls.append(call)
        before = evaluator.evaluations
        try:
            self.methods.acts.get(self.name, lambda evaluator: None)(evaluator)
        finally:
            call.evaluations_used = evaluator.evaluations - before
        return evaluator.solution()


def evaluate_once(evaluator: Evaluator) -> None:
    """Everything on device 0, which random problems without constraints allow."""
    evaluator.evaluate(np.zeros(evaluator.problem.n_units, dtype=np.int64))


def spend(evaluator: Evaluator) -> None:
    """Ask until the budget ends the method."""
    while True:
        evaluate_once(evaluator)


def open_problem(objective: Objective = "latency") -> Problem:
    """More placements than are enumerated."""
    return random_problem(
        np.random.default_rng(1), n_ops=13, n_devices=2, objective=objective, constrained=False
    )


def run(
    patch: pytest.MonkeyPatch,
    methods: Callable[..., object],
    problem: Problem,
    budget: Budget | None = None,
    clock: Callable[[], float] | None = None,
) -> tuple[Solution, Evaluator]:
    patch.setattr(turn, "make_placer", methods)
    patch.setattr(turn, "search_within_limits", lambda evaluator, **_: evaluator.solution())
    evaluator = Evaluator(problem, budget, **({} if clock is None else {"clock": clock}))
    return Auto(at_once=1).place(problem, evaluator, np.random.default_rng(0)), evaluator


def exact_and_searches(objective: Objective) -> list[str]:
    """Names after the quick ones where nobody asks anything: each search has one turn."""
    names: list[str] = []
    for name in auto._EXACT[objective]:
        names += auto._SEARCHES[objective] if name == SEARCHES else (name,)
    return names


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_quick_methods_come_before_exact_ones_and_searches(
    objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = Methods()
    run(monkeypatch, methods, open_problem(objective), Budget(evaluations=100))
    quick = list(auto._QUICK[objective])
    assert methods.names == [*quick, *exact_and_searches(objective)]
    assert quick[0] == "single"
    assert not {"local-search", "latency-ip", "cp-sat", "ideal-dp", "maxload-ip"} & set(quick)
    for name in methods.names:
        assert objective in placer_class(name).objectives, name


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_what_a_method_does_not_support_or_is_too_large_for_it_is_left_out(
    objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirteen units are one more than the first exact method may have here."""
    first = next(name for name in auto._EXACT[objective] if name != SEARCHES)
    limits = {**auto._EXACT, objective: {**auto._EXACT[objective], first: (0.5, 12)}}
    monkeypatch.setattr(auto, "_EXACT", limits)
    methods = Methods(refuse=("expert",))
    run(monkeypatch, methods, open_problem(objective))
    assert "expert" not in methods.names
    assert first not in methods.names
    rest = [name for name in exact_and_searches(objective) if name != first]
    assert methods.names[-len(rest) :] == rest


def test_without_any_limit_each_search_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends by its own number of rounds, which `auto` gives it."""
    methods = Methods()
    run(monkeypatch, methods, open_problem())
    calls = [call for call in methods.calls if call.name in auto._SEARCHES["latency"]]
    settings = {call.name: call.settings for call in calls}
    assert settings == {
        "problem-space": {"rounds": "50"},
        "local-search": {"descents": "50"},
        "multilevel": {"batches": "500"},
    }
    assert len(calls) == 3


def test_a_budget_of_evaluations_ends_the_program_of_a_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Evaluations do not limit a solver: its own ten units of work took minutes of processor time,
    beside some seconds of all other members."""
    works = []
    for objective in OBJECTIVES:
        methods = Methods()
        run(monkeypatch, methods, open_problem(objective), Budget(evaluations=100))
        asked = next(call.settings for call in methods.calls if call.name == "cp-sat")
        works.append(asked.get("deterministic_seconds"))
    assert works == ["1", "1", None]


def test_shares_of_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1000: `single` takes 1; greedy a tenth of 999; turns 0.4 of the rest, then what is left.

    100 of 999, then 360 of 899, then (two exact methods that ask nothing) 539.
    """
    acts = {"single": evaluate_once, "greedy": spend, "local-search": spend}
    methods = Methods(acts)
    found, evaluator = run(monkeypatch, methods, open_problem(), Budget(evaluations=1000))
    at = methods.names.index("cp-sat")
    early = [call.evaluations_used for call in methods.calls[:at] if call.name == "local-search"]
    late = [call.evaluations_used for call in methods.calls[at:] if call.name == "local-search"]
    assert methods.calls[methods.names.index("greedy")].evaluations_used == 100
    assert (sum(early), sum(late)) == (360, 539)
    assert max(early + late) == 48
    assert found.evaluations == 1000
    assert evaluator.budget == Budget(evaluations=1000)


def test_shares_of_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 s: greedy 10, turns 0.4 of 90, cp-sat half of 54, turns 27.

    Each method uses up the seconds that it is given."""
    now = [0.0]

    def until_the_end(evaluator: Evaluator) -> None:
        now[0] += evaluator.remaining_seconds
        evaluate_once(evaluator)

    exact = ("greedy", "cp-sat")
    names = (*exact, "local-search")
    methods = Methods({"single": evaluate_once, **dict.fromkeys(names, until_the_end)})
    found, _ = run(
        monkeypatch, methods, open_problem(), Budget(seconds=100.0), clock=lambda: now[0]
    )
    given = {call.name: call.seconds_left for call in methods.calls if call.name in exact}
    assert [given[name] for name in exact] == pytest.approx([10.0, 27.0])
    at = methods.names.index("cp-sat")
    turns = [call.seconds_left for call in methods.calls[:at] if call.name == "local-search"]
    assert sum(turns) == pytest.approx(36.0)
    assert found.placement is not None
    assert now[0] == pytest.approx(100.0)


@pytest.mark.parametrize("greedy_one", ["single", "heft", "m-etf", "expert"])
def test_a_quick_method_that_never_ends_leaves_time_for_the_others(
    greedy_one: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def hang(evaluator: Evaluator) -> None:
        while True:
            now[0] += 0.01
            evaluate_once(evaluator)

    methods = Methods({greedy_one: hang})
    run(monkeypatch, methods, open_problem(), Budget(seconds=100.0), clock=lambda: now[0])
    used = now[0]
    assert used <= 31.0
    assert "cp-sat" in methods.names


def test_the_search_that_gains_gets_the_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One search improves a little whenever it is asked, the other never: most turns are its own.

    The other one still has its turn now and then.
    """
    value = [100.0]

    def gain(evaluator: Evaluator) -> None:
        value[0] *= 0.99
        spend(evaluator)

    def simulated(self: Simulator, placement: Placement) -> float:
        return value[0] if placement.device_of[0] == 0 else 100.0

    def lose(evaluator: Evaluator) -> None:
        while True:
            evaluator.evaluate(np.ones(evaluator.problem.n_units, dtype=np.int64))

    monkeypatch.setattr(Simulator, "value", simulated)
    monkeypatch.setattr(schedule, "quick_bounds", lambda problem: [])
    monkeypatch.setattr(turn, "relaxed_bounds", lambda problem, seconds: [])
    monkeypatch.setattr(turn, "search_parts", lambda *given: None)
    methods = Methods({"single": evaluate_once, "local-search": gain, "problem-space": lose})
    run(monkeypatch, methods, open_problem(), Budget(evaluations=3000))
    turns = methods.names.count("local-search"), methods.names.count("problem-space")
    assert turns[0] > 2 * turns[1]
    assert turns[1] > 5


def test_incumbent_and_bound_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `single` found and `heft` proved is there for all that come later."""
    acts = {"single": evaluate_once, "heft": lambda evaluator: evaluator.offer_bound(0.5, "told")}
    methods = Methods(acts)
    problem = open_problem()
    monkeypatch.setattr(schedule, "quick_bounds", lambda problem: [])
    found, _ = run(monkeypatch, methods, problem, Budget(evaluations=10))
    assert math.isinf(methods.calls[0].best_value)
    after = methods.calls[methods.names.index("heft") + 1 :]
    assert {call.best_value for call in after} == {found.value}
    assert all(call.lower_bound >= 0.5 for call in after)


@pytest.mark.parametrize("placer", ["auto", "single"])
def test_the_relaxation_is_solved_once(placer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `auto` itself, or after another placer."""
    solved: list[float] = []

    def solve(problem: Problem, seconds: float) -> float:
        solved.append(relaxation_bound(problem, seconds))
        return solved[-1]

    relaxation_bound = lower.relaxation_bound
    monkeypatch.setattr(lower, "relaxation_bound", solve)
    search(open_problem(), make_placer(placer), Budget(evaluations=3))
    assert len(solved) == 1
    assert solved[0] > 0


@pytest.mark.parametrize("closing", ["heft", "local-search"])
def test_it_stops_when_the_gap_is_closed(closing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Value and bound meet within one method: nothing runs after it.

    So few evaluations are left that `heft` is in a later round than `single`.
    """

    def close(evaluator: Evaluator) -> None:
        evaluator.offer_bound(evaluator.best_value, "a proof")

    methods = Methods({"single": evaluate_once, closing: close})
    found, _ = run(monkeypatch, methods, open_problem(), Budget(evaluations=100))
    assert methods.names[-1] == closing
    assert methods.names.count(closing) == 1
    assert found.status == "optimal"


def test_a_wider_gap_may_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With gap=1 a value of twice the bound is good enough, and is not called optimal."""
    methods = Methods(
        {
            "single": evaluate_once,
            "even-split": lambda evaluator: evaluator.offer_bound(
                evaluator.best_value / 1.9, "told"
            ),
        }
    )
    monkeypatch.setattr(turn, "make_placer", methods)
    monkeypatch.setattr(schedule, "quick_bounds", lambda problem: [])
    problem = open_problem()
    evaluator = Evaluator(problem, Budget(evaluations=40))
    found = Auto(gap=1.0).place(problem, evaluator, np.random.default_rng(0))
    assert methods.names == ["single", "even-split"]
    assert found.status == "feasible"


def test_a_missing_extra_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is missed when the placer is made or when it runs."""

    def without_library(evaluator: Evaluator) -> None:
        raise MissingExtraError("scotch", "partitioning", "placer 'scotch'")

    methods = Methods({"single": evaluate_once, "scotch": without_library})

    def make(name: str, settings: Mapping[str, str] | None = None) -> _Method:
        if name == "metis":
            raise MissingExtraError("pymetis", "partitioning", "placer 'metis'")
        return methods(name, settings)

    found, evaluator = run(monkeypatch, make, open_problem(), Budget(evaluations=50))
    assert "metis" not in methods.names
    assert methods.names[-1] == "cp-sat"
    assert found.placement is not None
    assert evaluator.budget == Budget(evaluations=50)


def test_an_interrupt_returns_the_incumbent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a method ends `auto`, too, not only that method."""

    def interrupt(evaluator: Evaluator) -> None:
        evaluate_once(evaluator)
        raise KeyboardInterrupt

    methods = Methods({"peft": interrupt})
    found, evaluator = run(monkeypatch, methods, open_problem(), Budget(evaluations=50))
    assert methods.names[-1] == "peft"
    assert found.stop is Stop.INTERRUPTED
    assert found.value == evaluator.best_value < math.inf


def test_the_end_of_the_budget_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = Methods({"single": spend})
    found, _ = run(monkeypatch, methods, open_problem(), Budget(evaluations=5))
    assert (methods.names, found.evaluations) == (["single"], 5)


def test_turns_of_a_round_begin_from_the_same_incumbent(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1000 evaluations all quick methods are one round: none sees what `single` found.

    The first search after them does.
    """
    methods = Methods({"single": evaluate_once})
    found, _ = run(monkeypatch, methods, open_problem(), Budget(evaluations=1000))
    quick = methods.calls[: len(auto._QUICK["latency"])]
    assert all(math.isinf(call.best_value) for call in quick)
    assert methods.calls[len(quick)].best_value == found.value


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_same_seed_and_evaluations_same_answer(objective: Objective) -> None:
    """The real methods, all that are installed, twice."""
    problem = random_problem(
        np.random.default_rng(8), n_ops=12, n_devices=3, objective=objective, constrained=False
    )
    runs = []
    for _ in range(2):
        evaluator = Evaluator(problem, Budget(evaluations=120))
        found = Auto().place(problem, evaluator, np.random.default_rng(5))
        assert found.placement is not None
        history = [(point.evaluations, point.value) for point in found.history]
        runs.append((found.placement.device_of.tolist(), found.evaluations, history))
    assert runs[0] == runs[1]


def test_it_tells_what_a_solver_found_where_there_is_no_placement() -> None:
    """Thirteen ops that cannot be packed on two devices: unknown, with the solver's word."""
    problem = packing_problem(objective="throughput", n_ops=13)
    assert prove_infeasible(problem) is None
    found = Auto().place(problem, Evaluator(problem), np.random.default_rng(0))
    assert found.status == "unknown"
    assert "the solver says that no placement that keeps support, resident" in found.message


def test_the_word_of_a_solver_is_kept_and_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches after it would only say that their placements break a limit."""
    everything = Methods()

    class Verdict(_Method):
        def place(
            self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator
        ) -> Solution:
            everything.calls.append(Call(self.name, math.inf, 0.0, 0.0, 0.0))
            return evaluator.solution(message=found_none("packing"))

    def make(name: str, settings: Mapping[str, str] | None = None) -> _Method:
        return (Verdict if name == "greedy" else _Method)(name, everything, {})

    monkeypatch.setattr(turn, "search_parts", lambda *given: None)
    found, _ = run(monkeypatch, make, open_problem(), Budget(evaluations=50))
    assert found.message == found_none("packing")
    assert everything.names[-1] == "greedy"


def test_auto_looks_for_a_first_placement_before_it_proves(monkeypatch: pytest.MonkeyPatch) -> None:
    """No quick method evaluates anything: half of the evaluations go to a search for limits."""
    methods, asked = Methods(), []

    def search(evaluator: Evaluator, **given: int) -> Solution:
        asked.append((len(methods.calls), evaluator.remaining_evaluations, given))
        return evaluator.solution(message="the closest")

    problem = open_problem()
    monkeypatch.setattr(turn, "search_parts", lambda *given: None)
    monkeypatch.setattr(turn, "make_placer", methods)
    monkeypatch.setattr(turn, "search_within_limits", search)
    evaluator = Evaluator(problem, Budget(evaluations=80))
    found = Auto(at_once=1).place(problem, evaluator, np.random.default_rng(0))
    n_quick = len(auto._QUICK["latency"])
    assert asked[0] == (n_quick, 40.0, {"seed": 0})
    assert [given["seed"] for _, _, given in asked] == list(range(len(asked)))
    assert found.message == "the closest"


def test_an_unknown_does_not_quote_what_a_quick_method_lacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The expert's placement breaks a limit, which says nothing of others."""

    class Failing(_Method):
        def place(
            self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator
        ) -> Solution:
            return evaluator.solution(message="the expert's placement is infeasible: too large")

    def make(name: str, settings: Mapping[str, str] | None = None) -> _Method:
        return (Failing if name == "expert" else _Method)(name, Methods(), {})

    monkeypatch.setattr(turn, "search_parts", lambda *given: None)
    found, _ = run(monkeypatch, make, open_problem(), Budget(evaluations=50))
    assert (found.status, found.placement) == ("unknown", None)
    assert found.message.startswith("no placement that keeps every constraint was found")
