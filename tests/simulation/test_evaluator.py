"""A placement that a placer's own rules forbid is a query like any other, and is never kept."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.simulation.evaluator import Evaluator


def two_ops() -> Problem:
    """Two ops without edges; device 1 is faster."""
    builder = GraphBuilder()
    for index in range(2):
        builder.add_op(f"op{index}", "Op", inputs=[builder.add_input(0.0)])
        builder.add_tensor(index, 0.0, is_output=True)
    links = (Link("cpu", "gpu", 0.0, 1e9), Link("gpu", "cpu", 0.0, 1e9))
    cluster = Cluster((Device("cpu"), Device("gpu", "gpu")), links, host="cpu")
    return Problem.of_ops(
        builder.build(), cluster, CostTable(frozen_floats([[3.0, 1.0], [3.0, 1.0]]))
    )


def seconds_of(placement: Placement) -> float:
    return float(np.where(placement.device_of == 1, 1.0, 3.0).sum())


@pytest.mark.parametrize("measure", [None, seconds_of])
def test_what_is_not_kept_counts_and_never_becomes_the_incumbent(measure: object) -> None:
    evaluator = Evaluator(two_ops(), Budget(evaluations=6), measure=measure)  # type: ignore[arg-type]
    best = evaluator.evaluate([1, 1], keep=False)
    assert (evaluator.evaluations, evaluator.best, evaluator.history) == (1, None, [])
    rows = np.array([[1, 1], [0, 1], [1, 1], [0, 0], [1, 0], [1, 1]])
    values = evaluator.evaluate_many(rows, keep=rows.min(axis=1) != rows.max(axis=1))
    assert len(values) == 5  # one query was used before
    assert evaluator.evaluations == 6
    assert evaluator.best is not None
    assert evaluator.best.device_of.tolist() == [0, 1]
    assert evaluator.best_value == values[1] > best == values[0]
    assert [point.evaluations for point in evaluator.history] == [3]
    assert evaluator.solution().value == values[1]
