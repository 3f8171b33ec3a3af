"""What is ready before a search is all that the search runs: no kernel is compiled a second time.

A kernel is compiled again for each combination of argument types, and a read-only array is of
another type than a writable one; a slip costs every user tens of seconds.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from placewright import simulation
from placewright.core.arrays import frozen_floats
from placewright.core.costs import CostTable
from placewright.core.execution_models import EXECUTION_MODELS, ExecutionModel, Subgraph, SubgraphIP
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.simulation.evaluator import compile_kernels
from placewright.simulation.model import Simulator
from placewright.testing.problems import random_problem, under_subgraphs


def compiled_kernels() -> dict[str, int]:
    """Name of each kernel of the simulator -> for how many combinations of types it is compiled."""
    found = {}
    for module in pkgutil.iter_modules(simulation.__path__, f"{simulation.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, Dispatcher):
                found[f"{value.py_func.__module__}.{name}"] = len(value.signatures)
    return found


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
