"""The small runs of `make setup` that compile kernels end with a placement."""

from __future__ import annotations

import pytest

from benchmarks.compile_kernels import OTHERS, run_small
from placewright.core.execution_models import ExecutionModel
from placewright.core.problem import Objective


@pytest.mark.parametrize(("name", "objective", "model"), OTHERS)
def test_a_method_places_its_small_problem(
    name: str, objective: Objective, model: ExecutionModel
) -> None:
    run_small(name, objective, model)
