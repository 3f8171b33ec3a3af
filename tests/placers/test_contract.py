"""The contract holds for every registered placer, in this process and in another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.baselines.simple import Single
from placewright.placers.registry import Placer, placer_class, placer_names
from placewright.session.comparison import named_placer
from placewright.simulation.evaluator import Evaluator
from placewright.testing.contract import check_interrupt, check_placer, fingerprints
from placewright.testing.problems import random_problem

# Networks whose default width takes most of a run; the contract says nothing about width.
NARROW = {"hierarchical": "hidden=16", "seq2seq-hsdag-rnn": "hidden=16"}
SHORT = {"hsdag": "steps=6", "hsdag-released": "steps=6"}  # of 20, before each update
LEARNED = "placewright.placers.learned."  # three problems of an objective have all constraints
FEW = 24  # evaluations of each run of a learner: starts, and an update of every one of them
_CHILD = """
import json, sys
from placewright.testing.contract import fingerprints
sys.stdout.write(json.dumps(fingerprints(json.loads(sys.argv[1]), int(sys.argv[2]))))
"""


@pytest.mark.parametrize("name", placer_names())
def test_contract(name: str) -> None:
    """Legal, honest, repeatable, within budget, interruptible."""
    kind = placer_class(name)
    n_problems, evaluations = (3, FEW) if kind.__module__.startswith(LEARNED) else (6, 40)
    if n_problems == 3 and is_preset(kind):
        n_problems = 2  # the same code under other settings
    if name in SHORT:
        evaluations = 10
    check_placer(
        lambda: named_placer(narrow(name), {}), evaluations=evaluations, n_problems=n_problems
    )
    assert kind.name == name


def is_preset(kind: type[Placer]) -> bool:
    """True for a class that is another registered placer with other settings."""
    return any(placer_class(name) in kind.__mro__[1:] for name in placer_names())


def narrow(name: str) -> str:
    """The placer's text, with the settings of `NARROW` and `SHORT`."""
    settings = {**NARROW, **SHORT}.get(name)
    return name if settings is None else f"{name}:{settings}"


def test_other_hash_seed_and_threads() -> None:
    """One child process with another hash seed and one thread gives the same answers.

    Presets are left out: their code is that of another placer.
    """
    names = [narrow(name) for name in placer_names() if not is_preset(placer_class(name))]
    environment = dict(
        os.environ, PYTHONHASHSEED="4242", NUMBA_NUM_THREADS="1", OMP_NUM_THREADS="1"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, json.dumps(names), str(FEW)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    here = fingerprints(names, FEW)
    out, told = child.communicate()
    assert child.returncode == 0, told
    assert json.loads(out) == here


class AsksForShortages(Single):
    """Asks twice how far all units on the first device are from keeping every limit."""

    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        for _ in range(2):
            evaluator.evaluate_shortage(np.zeros(problem.n_units, dtype=np.int64))
        return evaluator.solution()


def test_queries_of_shortages_are_interrupted() -> None:
    """This placer does not end its search at an interrupt, so that the check must fail."""
    problem = random_problem(np.random.default_rng(0), n_ops=4)
    with pytest.raises(KeyboardInterrupt):
        check_interrupt(AsksForShortages(), problem, 5)
