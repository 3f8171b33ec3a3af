"""Faults of a placer that a user wrote: each is named with the placer, and the reason."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import networkx
import numpy as np
import pytest

import placewright as pw
from placewright.core.problem import Problem
from placewright.errors import InfeasibleError, InputError
from placewright.simulation.evaluator import Evaluator


class Faulty:
    name: ClassVar[str] = "faulty"
    paper: ClassVar[str] = ""
    objectives: ClassVar[tuple[str, ...]] = ("latency",)
    needs_training: ClassVar[bool] = False

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def why_not(self, problem: Problem) -> str | None:
        return None

    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Any:
        if self.fault == "floats":
            evaluator.evaluate(np.full(problem.n_units, 0.7))
        if self.fault == "key":
            return {"other": 1}[self.fault]
        if self.fault == "outside":
            evaluator.evaluate(np.full(problem.n_units, 9))
            return evaluator.solution()
        if self.fault == "value":
            evaluator.evaluate(np.zeros(problem.n_units, dtype=np.int64))
            return replace(evaluator.solution(), value=0.5)
        if self.fault == "proof":
            evaluator.evaluate(np.zeros(problem.n_units, dtype=np.int64))
            return replace(evaluator.solution(), status="optimal", lower_bound=0.0)
        return None


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("floats", InputError, "an integer for each unit.*float64"),
        ("key", InputError, r"placer 'faulty' raised KeyError.*\(test_own_placers.py, line \d+\)"),
        ("outside", InfeasibleError, "breaks a constraint; op 'a' is on device 9"),
        ("nothing", InputError, "placer 'faulty' returned NoneType"),
        ("value", InputError, "returned the value 0.5, and its placement has 3; return eval"),
    ],
)
def test_a_fault_is_named(fault: str, error: type[Exception], message: str) -> None:
    chain = networkx.DiGraph([("a", "b", {"bytes": 8})])
    problem = pw.Problem.from_costs(chain, [[1.0, 2.0], [2.0, 1.0]], (0.0, 1e9))
    with pytest.raises(error, match=message):
        pw.place(problem, placer=Faulty(fault), evaluations=20)


@dataclass
class Mistyped(Faulty):
    fault: str = "key"


def test_an_optimum_without_a_bound_is_no_proof(tmp_path: Path) -> None:
    """The plan's file called it optimal, and could not be read."""
    chain = networkx.DiGraph([("a", "b", {"bytes": 8})])
    problem = pw.Problem.from_costs(chain, [[1.0, 2.0], [2.0, 1.0]], (0.0, 1e9))
    plan = pw.place(problem, placer=Mistyped("proof"), evaluations=20)
    assert (plan.status, plan.lower_bound) == ("feasible", 0.0)
    pw.write_plan(tmp_path / "plan.json", plan)
    assert pw.read_plan(tmp_path / "plan.json").status == "feasible"


def test_a_fault_in_a_comparison_is_named() -> None:
    chain = networkx.DiGraph([("a", "b", {"bytes": 8})])
    problem = pw.Problem.from_costs(chain, [[1.0, 2.0], [2.0, 1.0]], (0.0, 1e9))
    message = r"placer 'faulty' raised KeyError.*\(test_own_placers.py, line \d+\)"
    with pytest.raises(InputError, match=message):
        pw.compare(problem, placers=["heft", f"{__name__}:{Mistyped.__name__}"], evaluations=20)
