"""Bases of placers, the decorator of every `place` method, and checks of settings."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution, Stop
from placewright.errors import BudgetSpent, InputError
from placewright.simulation.bounds.feasibility import prove_infeasible
from placewright.simulation.evaluator import Evaluator

P = TypeVar("P")
FOUND_NOTHING = "no placement that keeps every constraint was found, which proves nothing"
_NONE_EXISTS = "the solver says that no"
Place = Callable[[P, Problem, Evaluator, np.random.Generator], Solution]


def anytime(place: Place[P]) -> Place[P]:
    """Decorate a `place` method.

    If no placement can exist, the solution is `infeasible` with the proof, and the method does not
    run. `BudgetSpent` and Ctrl-C return the evaluator's incumbent.
    """

    @functools.wraps(place)
    def guarded(
        self: P, problem: Problem, evaluator: Evaluator, rng: np.random.Generator
    ) -> Solution:
        if proof := prove_infeasible(problem):
            return evaluator.solution("infeasible", proof)
        try:
            return place(self, problem, evaluator, rng)
        except BudgetSpent:
            return evaluator.solution()
        except KeyboardInterrupt:
            return evaluator.solution(message="interrupted", stop=Stop.INTERRUPTED)

    return guarded


def pass_interrupt_on(solution: Solution) -> Solution:
    """Raise Ctrl-C again if it ended a method that runs within another method.

    Returns:
        The solution, if the method was not interrupted.

    Raises:
        KeyboardInterrupt: it was, so that its solution is not the result of its budget.
    """
    if solution.stop is Stop.INTERRUPTED:
        raise KeyboardInterrupt
    return solution


def found_none(what: str) -> str:
    """The message of an exact method whose solver proved that there is no solution.

    Its status is `unknown`: unlike the proofs behind `infeasible`, the result of a solver cannot be
    checked.
    """
    return f"{_NONE_EXISTS} {what} exists, but there is no short proof of it"


def says_none_exists(message: str) -> bool:
    """True if the message is that of `found_none`."""
    return message.startswith(_NONE_EXISTS)


class ForEveryProblem:
    """A placer without conditions on the problem and without training."""

    objectives: ClassVar[tuple[str, ...]] = (
        "latency", "training", "throughput", "energy", "price",
    )  # fmt: skip
    needs_training: ClassVar[bool] = False

    def why_not(self, problem: Problem) -> str | None:
        """Defined for every problem."""
        del problem
        return None


class ForLatency:
    """A placer without training that minimises the seconds of one sample or one step.

    What it proposes for them may also take little energy or cost little.
    """

    name: ClassVar[str]
    objectives: ClassVar[tuple[str, ...]] = ("latency", "training", "energy", "price")
    needs_training: ClassVar[bool] = False

    def why_not(self, problem: Problem) -> str | None:
        """None unless the objective is throughput."""
        return f"{self.name} minimises latency" if problem.objective == "throughput" else None


def why_not_time_alone(problem: Problem) -> str | None:
    """None if the value is time without limits of `core.charges`, which is all a program knows."""
    if not problem.charges:
        return None
    return f"its program knows time alone, not {' or '.join(problem.charges)}; use auto"


def require_one_of(placer: str, settings: object, known: Sequence[object], what: str) -> None:
    """Raise unless a setting is one of the known values.

    Raises:
        InputError: naming placer, setting and value.
    """
    value = getattr(settings, what)
    if value not in known:
        raise InputError(f"{placer}: {what} must be one of {tuple(known)}, got '{value}'")


def require_counts(placer: str, settings: object, *names: str, least: int = 1) -> None:
    """Raise if a setting that counts something is below `least`.

    Raises:
        InputError: naming placer, setting and value.
    """
    for what in names:
        if getattr(settings, what) < least:
            raise InputError(f"{placer}: {what} must be >= {least}, got {getattr(settings, what)}")


CONDITIONS: Mapping[str, Callable[[float], bool]] = {
    "> 0": lambda value: 0 < value < math.inf,
    ">= 0": lambda value: value >= 0,
    "in [0, 1)": lambda value: 0 <= value < 1,
    "in (0, 1]": lambda value: 0 < value <= 1,
    "in [0, 1]": lambda value: 0 <= value <= 1,
}


def require_numbers(placer: str, settings: object, condition: str, *names: str) -> None:
    """Raise unless settings fulfil a condition of `CONDITIONS`.

    Raises:
        InputError: naming placer, setting and value.
    """
    for what in names:
        value = getattr(settings, what)
        if not CONDITIONS[condition](value):
            raise InputError(f"{placer}: {what} must be {condition}, got {value}")
