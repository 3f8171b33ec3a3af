"""The yardstick of `bench kernel` follows the same rules as the kernel."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.benchmarks.kernel import random_layered_problem, run_kernel_benchmark
from placewright.benchmarks.plain_simulator import PlainSimulator
from placewright.core.placement import Placement
from placewright.simulation.model import Simulator


@pytest.mark.parametrize("seed", range(20))
def test_plain_python_equals_the_kernel(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_layered_problem(rng, 60, 3)
    device_of = rng.integers(0, 3, 60)
    makespan, peaks = PlainSimulator(problem).makespan(device_of.tolist())
    simulator, placement = Simulator(problem), Placement.of(device_of)
    assert simulator.value(placement) == makespan
    assert simulator.memory_peaks(placement).tolist() == peaks


def test_rows_are_consistent() -> None:
    (row,) = run_kernel_benchmark([50], 2, repeats=3)
    assert (row.ops, row.devices) == (50, 2)
    assert row.ops_per_second == row.ops / row.seconds
    assert row.times_plain_python == row.plain_seconds / row.seconds
