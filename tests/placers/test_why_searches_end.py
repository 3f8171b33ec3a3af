"""Every search says why it ended: what it met of its budget, a proof, or nothing left to do."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.core.solution import Budget, Stop
from placewright.placers.registry import make_placer
from placewright.session.search import search
from placewright.testing.problems import random_problem


@pytest.mark.parametrize("name", ["auto", "cem", "hsdag", "local-search", "random", "multilevel"])
def test_evaluations_that_were_used_up(name: str) -> None:
    """The problem is too large for a proof within 25 evaluations."""
    if name == "hsdag":
        pytest.importorskip("torch")
    problem = random_problem(np.random.default_rng(2), n_ops=40, n_devices=3, constrained=False)
    found = search(problem, make_placer(name), Budget(evaluations=25))
    assert (found.evaluations, found.stop) == (25, Stop.EVALUATIONS)


@pytest.mark.parametrize("name", ["auto", "cem", "random"])
def test_seconds_that_were_used_up(name: str) -> None:
    problem = random_problem(np.random.default_rng(2), n_ops=40, n_devices=3, constrained=False)
    found = search(problem, make_placer(name), Budget(seconds=0.3))
    assert found.status != "optimal"
    assert found.stop is Stop.SECONDS


@pytest.mark.parametrize("name", ["auto", "local-search"])
def test_core_seconds_that_were_used_up(name: str) -> None:
    problem = random_problem(np.random.default_rng(2), n_ops=40, n_devices=3, constrained=False)
    found = search(problem, make_placer(name), Budget(core_seconds=0.3))
    assert (found.status, found.stop) == ("feasible", Stop.CORE_SECONDS)
    assert found.core_seconds >= 0.3


def test_a_method_with_nothing_left_to_do() -> None:
    problem = random_problem(np.random.default_rng(2), n_ops=40, n_devices=3, constrained=False)
    assert search(problem, make_placer("heft"), Budget(evaluations=25)).stop is Stop.DONE


def test_a_proof_ends_a_search() -> None:
    problem = random_problem(np.random.default_rng(2), n_ops=4, n_devices=2, constrained=False)
    found = search(problem, make_placer("auto"), Budget(evaluations=2000))
    assert (found.status, found.stop) == ("optimal", Stop.PROVEN)
