"""The max-load program with a limit on the loads in the place of its objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.execution_models import splits_phases
from placewright.core.problem import Problem
from placewright.placers.exact.integer_program.narrowing import Narrowing
from placewright.placers.exact.max_load.program import max_load_program
from placewright.placers.exact.max_load.symmetry import first_devices
from placewright.placers.pipelines.ideals.load_model import LoadModel, load_model_of
from placewright.simulation.evaluator import Evaluator


def max_load_limits(
    problem: Problem, evaluator: Evaluator, solver: Callable[[float], Any]
) -> Narrowing:
    """Questions about a problem whose transfers do not depend on the other end.

    Args:
        problem: of execution model `max-load`.
        evaluator: values what is found; balanced load is offered as a first bound.
        solver: see `Narrowing`.
    """
    model = load_model_of(problem, problem.colocation)
    evaluator.offer_bound(model.area_bound, "balanced load")
    program = max_load_program(
        model,
        split_phases=splits_phases(problem.execution_model),
        may_be=first_devices(model),
    )

    def decode(columns: FloatArray) -> IntArray:
        values = np.where(program.placed >= 0, columns[program.placed], -1.0)
        return problem.colocation.expand(values.argmax(axis=1))

    return Narrowing(program.program, decode, _everything(model), evaluator, solver)


def _everything(model: LoadModel) -> float:
    """More than any load, in seconds."""
    compute = np.where(np.isfinite(model.seconds), model.seconds, 0.0).max(axis=0).sum()
    moved = (model.receive + model.send).max(axis=0, initial=0.0).sum()
    return float(compute + moved + model.standing.sum())
