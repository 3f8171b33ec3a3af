"""The table of costs: its numbers, what it refuses, and that to look at it takes no copy of it."""

from __future__ import annotations

import numpy as np
import pytest
from memory_use import peak_bytes

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device
from placewright.core.costs import CostTable
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import CostError
from placewright.simulation.model import Simulator


def test_costs_whose_sum_overflows_are_refused_by_name() -> None:
    """Two ops that together end at infinity: the second would seem never to run."""
    seconds = np.array([[1.0, np.inf], [1e308, 2.0], [np.inf, 1.7e308]])
    with pytest.raises(CostError, match=r"unit 2 takes 1\.7e\+308 s on device 1"):
        CostTable(seconds)
    CostTable(np.array([[1.0, np.inf], [1e299, 2.0], [np.inf, 3.0]]))
    CostTable(np.full((2, 2), np.inf))


def test_a_large_table_is_not_copied() -> None:
    """It takes half a gibibyte at a million ops on 64 devices."""
    seconds = frozen_floats(np.ones((50_000, 16)))
    assert peak_bytes(lambda: CostTable(seconds)) < 0.6 * seconds.nbytes


@pytest.mark.parametrize("kind", ["int64", "float32"])
def test_costs_of_other_numbers_are_those_numbers(kind: str) -> None:
    """Kernels take arrays as they are: the bits of an integer are those of another float."""
    builder = GraphBuilder()
    builder.add_op("a", "Op")
    costs = CostTable(np.array([[2]], dtype=kind))
    assert costs.seconds.dtype == np.float64
    problem = Problem.of_ops(builder.build(), Cluster((Device("cpu"),), host="cpu"), costs)
    assert Simulator(problem).value(Placement.of([0])) == 2.0


def test_costs_stay_when_the_array_of_the_caller_changes() -> None:
    seconds = np.ones((2, 2))
    costs = CostTable(seconds)
    seconds *= 10.0
    assert costs.seconds.tolist() == [[1.0, 1.0], [1.0, 1.0]]
