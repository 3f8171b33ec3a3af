"""Kernels are compiled once, before a search, and survive signals at any moment.

A kernel is compiled again for each combination of argument types, and a read-only array is of
another type than a writable one; a slip costs every user tens of seconds.
"""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher
from support.warm import run_warm

import placewright
from placewright import simulation
from placewright.core.arrays import frozen_floats
from placewright.core.costs import CostTable
from placewright.core.execution_models import EXECUTION_MODELS, ExecutionModel, Subgraph, SubgraphIP
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.placers import list_scheduling, partitioning, portfolio, search
from placewright.simulation.evaluator import compile_kernels
from placewright.simulation.model import Simulator
from placewright.testing.problems import random_problem, under_subgraphs


def compiled_kernels() -> dict[str, int]:
    """Name of each kernel of the simulator -> for how many combinations of types it is compiled."""
    found = {}
    for module in pkgutil.walk_packages(simulation.__path__, f"{simulation.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, Dispatcher):
                found[f"{value.py_func.__module__}.{name}"] = len(value.signatures)
    return found


def test_no_kernel_stalls_other_threads() -> None:
    """Python's lock is free while a kernel runs, in whichever room the kernel is."""
    rooms = [simulation, list_scheduling, partitioning, portfolio, search]
    stalling, count = [], 0
    for room in rooms:
        for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, Dispatcher):
                    count += 1
                    if not value.targetoptions.get("nogil"):
                        stalling.append(f"{module.name}.{name}")
    assert count > 20
    assert stalling == []


def problem_under(model: ExecutionModel, rng: np.random.Generator, *, constrained: bool) -> Problem:
    """A random problem, its costs as callers make them: writable, in any layout."""
    problem = random_problem(rng, n_devices=2, constrained=constrained)
    seconds = np.asfortranarray(problem.costs.seconds.copy())
    problem = replace(problem, costs=CostTable(seconds))
    if isinstance(model, Subgraph | SubgraphIP):
        return under_subgraphs(problem, model)
    if constrained:  # transfers of its own beside those that links make
        own = np.ones(problem.graph.n_tensors)
        problem = replace(problem, transfer_seconds=frozen_floats(own))
    return problem.under(model)


@pytest.mark.parametrize("model", [model() for model in EXECUTION_MODELS])
def test_evaluating_compiles_nothing_that_is_not_there(model: ExecutionModel) -> None:
    compile_kernels(model)
    before = compiled_kernels()
    assert before
    rng = np.random.default_rng(5)
    for constrained in (False, True):
        problem = problem_under(model, rng, constrained=constrained)
        simulator = Simulator(problem)
        devices = rng.integers(0, problem.n_devices, (3, problem.n_units))
        order = problem.unit_graph.topological_order
        simulator.values(devices)
        simulator.value(Placement.of(devices[0]))
        simulator.value(Placement.of(devices[0], order))
        simulator.violation(Placement.of(devices[1], order.tolist()))
        simulator.memory_peaks(Placement.of(devices[2]))
    new = {name: n for name, n in compiled_kernels().items() if n > before.get(name, 0)}
    assert new == {}


_SCRIPT = """
import contextlib, faulthandler, random, signal, sys, time
import numpy as np
faulthandler.enable()
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.core.placement import Placement
from placewright.testing.problems import random_problem

class Raised(BaseException):
    pass

def raises(number, frame):
    raise Raised

problem = random_problem(np.random.default_rng(2), n_ops=60, n_devices=3, constrained=False)
simulator = Simulator(problem)
placement = Placement.of(np.zeros(60, dtype=np.int64))

def heft():
    make_placer("heft").place(problem, Evaluator(problem), np.random.default_rng(0))

call = {
    "timeline": lambda: simulator.timeline(placement),
    "value": lambda: simulator.value_and_peaks(placement),
    "stream": lambda: simulator.stream(placement, samples=5),
    "heft": heft,
}[sys.argv[1]]
call()
signal.signal(signal.SIGALRM, raises)
random.seed(0)
for _ in range(3000):
    with contextlib.suppress(Raised):
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 4e-4))
            for _ in range(100_000):
                call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
print("alive")
"""


@pytest.mark.parametrize("call", ["timeline", "value", "stream", "heft"])
def test_the_process_lives_on(call: str, tmp_path: Path) -> None:
    done = run_warm(_SCRIPT, [call], cwd=tmp_path, timeout=300)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-2000:]


def test_no_kernel_gives_a_named_tuple_to_python() -> None:
    """Numba calls the tuple's class and does not look whether that raised."""
    plain = {"tuple", "int", "float", "bool", "None", "FloatArray", "IntArray", "BoolArray", "np"}
    found = []
    for file in sorted(Path(placewright.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and node.returns is not None:
                marks = {ast.unparse(mark).split(".")[-1] for mark in node.decorator_list}
                names = {n.id for n in ast.walk(node.returns) if isinstance(n, ast.Name)}
                if marks & {"compiled", "uncounted"} and names - plain:
                    found.append(f"{file.name}: {node.name} -> {ast.unparse(node.returns)}")
    assert found == []


def test_the_package_is_imported_where_numba_compiles_nothing() -> None:
    """NUMBA_DISABLE_JIT=1, for faults in kernels, leaves all functions as they are."""
    code = "import placewright; from placewright.simulation import model; print('imported')"
    variables = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "imported", done.stderr
