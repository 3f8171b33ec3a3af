"""Every execution model has one behaviour, and parameters that belong to it alone."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placewright.core.arrays import frozen_floats
from placewright.core.costs import CostTable
from placewright.core.execution_models import (
    EVENT,
    EXECUTION_MODELS,
    ExecutionModel,
    MaxLoad,
    Subgraph,
    SubgraphIP,
)
from placewright.core.placement import Placement
from placewright.errors import InfeasibleError, InputError, UnknownNameError
from placewright.files.model_names import MODEL_NAMES, model_of
from placewright.files.problem_file import read_problem, write_problem
from placewright.simulation.behaviours import BEHAVIOURS, behaviour_of
from placewright.simulation.model import Simulator
from placewright.testing.problems import random_problem

ALL: list[ExecutionModel] = [
    *(model() for model in EXECUTION_MODELS),
    MaxLoad(samples_in_flight=3, split_phases=True),
    SubgraphIP(per_accelerator=2),
]


def test_each_model_is_registered_once() -> None:
    assert tuple(BEHAVIOURS) == EXECUTION_MODELS
    assert len(set(MODEL_NAMES)) == len(MODEL_NAMES)


@pytest.mark.parametrize("model", ALL)
def test_value_values_and_evaluate_agree(model: ExecutionModel) -> None:
    """And where a behaviour says that a general bound holds, no value is below it."""
    from placewright.simulation.bounds.lower import quick_bounds

    rng = np.random.default_rng(3)
    problem = random_problem(rng, n_ops=6)
    if isinstance(model, Subgraph | SubgraphIP):
        seconds = frozen_floats(np.ones(problem.graph.n_tensors))
        problem = replace(problem, transfer_seconds=seconds)
    problem = problem.under(model)
    simulator, rows = Simulator(problem), rng.integers(0, problem.n_devices, (12, 6))
    values = simulator.values(rows)
    assert f"{behaviour_of(problem).__name__}" == BEHAVIOURS[type(model)].partition(":")[2]
    for row, value in zip(rows, values.tolist(), strict=True):
        assert simulator.value(Placement.of(row)) == value
        assert simulator.value_and_peaks(Placement.of(row))[0] == value
        check_explained(simulator, Placement.of(row), value)
        assert all(value >= bound.value * (1 - 1e-9) for bound in quick_bounds(problem))


def check_explained(simulator: Simulator, placement: Placement, value: float) -> None:
    """A timeline ends at the value, the largest load or the sum is it, and a fault is named."""
    if simulator.value_and_peaks(placement)[0] == math.inf:
        violation = simulator.violation(placement)
        assert violation is not None
        with pytest.raises(InfeasibleError, match=re.escape(violation.message)):
            simulator.explain(placement)
        return
    found = simulator.explain(placement)
    assert found.broken is None
    assert (found.timeline is not None) == simulator.has_timeline
    if found.timeline is not None:
        assert found.timeline.value == value
    if found.loads is not None:
        assert found.loads.max(axis=1).sum() == pytest.approx(value)
    if found.sums is not None:
        assert found.sums.sum() == pytest.approx(value)


@pytest.mark.parametrize("model", ALL)
def test_every_model_proves_that_a_pin_fits_nowhere(model: ExecutionModel) -> None:
    problem = random_problem(np.random.default_rng(3), n_ops=6)
    costs = problem.costs.seconds.copy()
    costs[0] = [np.inf, 1.0]
    pinned = replace(problem, costs=CostTable(frozen_floats(costs)), pins={0: 0}).under(model)
    assert "is pinned to" in str(behaviour_of(pinned).why_nothing_fits(pinned))


@pytest.mark.parametrize("model", ALL)
def test_a_problem_file_keeps_the_model_and_its_parameters(
    model: ExecutionModel, tmp_path: Path
) -> None:
    problem = random_problem(np.random.default_rng(0)).under(model)
    write_problem(tmp_path / "a.problem.json", problem)
    assert read_problem(tmp_path / "a.problem.json").execution_model == model


def test_what_is_no_execution_model_is_refused() -> None:
    problem = random_problem(np.random.default_rng(0))
    with pytest.raises(InputError, match="'max-load' is none: give an object"):
        replace(problem, execution_model="max-load")
    with pytest.raises(UnknownNameError, match="max-lode"):
        model_of("max-lode")
    with pytest.raises(InputError, match="'event' has no parameter 'pause'"):
        model_of("event", pause=1.0)
    with pytest.raises(InputError, match="per accelerator must be >= 1, got 0"):
        SubgraphIP(per_accelerator=0)
    with pytest.raises(InputError, match="execution model 'event' has none"):
        replace(problem, execution_model=EVENT).with_samples_in_flight(2)
