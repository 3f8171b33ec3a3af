"""The yardstick of `python -m benchmarks.kernel` follows the same rules as the kernel."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.kernel import (
    KernelRow,
    add_results,
    growth,
    read_results,
    run_kernel_benchmark,
)
from benchmarks.plain_simulator import PlainSimulator
from placewright.core.placement import Placement
from placewright.errors import FileFormatError
from placewright.simulation.model import Simulator
from placewright.suites.suite.runs import random_layered_problem


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
    (row,) = run_kernel_benchmark([50], [2], seconds_per_row=0.001)
    assert (row.ops, row.devices) == (50, 2)
    assert row.ops_per_second == row.ops / row.seconds
    assert row.times_plain_python == row.plain_seconds / row.seconds


def test_growth_of_n_log_n_is_one() -> None:
    sizes = (1000, 10_000, 100_000)
    rows = [
        KernelRow(n, 4, 2 * n, 1e-8 * n * math.log2(n), 0.0, math.nan, math.nan, 0) for n in sizes
    ]
    assert growth(rows) == pytest.approx(1.0)
    assert {row.inputs for row in rows} == {2}
    assert math.isnan(growth(rows[:1]))


def test_results_keep_rows_of_other_problems(tmp_path: Path) -> None:
    rows = [KernelRow(n, 4, 2 * n, 1.0, float(n), math.nan, math.nan, 5) for n in (20, 10)]
    path = tmp_path / "rates.json"
    assert [row.ops for row in add_results(rows, path)] == [10, 20]
    assert len(add_results([replace(rows[0], seconds=2.0)], path)) == 2
    assert [row.seconds for row in read_results(path)] == [1.0, 2.0]
    path.write_text("{}")
    with pytest.raises(FileFormatError, match=r"rates\.json"):
        read_results(path)
