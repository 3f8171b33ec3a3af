"""The table of costs: what it refuses, and that to look at it takes no copy of it."""

from __future__ import annotations

import numpy as np
import pytest
from memory_use import peak_bytes

from placewright.core.costs import CostTable
from placewright.errors import CostError


def test_costs_whose_sum_overflows_are_refused_by_name() -> None:
    """Two ops that together end at infinity: the second would seem never to run."""
    seconds = np.array([[1.0, np.inf], [1e308, 2.0], [np.inf, 1.7e308]])
    with pytest.raises(CostError, match=r"unit 2 takes 1\.7e\+308 s on device 1"):
        CostTable(seconds)
    CostTable(np.array([[1.0, np.inf], [1e299, 2.0], [np.inf, 3.0]]))
    CostTable(np.full((2, 2), np.inf))


def test_a_large_table_is_not_copied() -> None:
    """It takes half a gibibyte at a million ops on 64 devices."""
    seconds = np.ones((50_000, 16))
    assert peak_bytes(lambda: CostTable(seconds)) < 0.6 * seconds.nbytes
