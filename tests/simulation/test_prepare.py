"""Dispatch by rank, whatever the ranks look like: spread out, crowded, equal, nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.plain_simulator import PlainSimulator
from placewright.core.arrays import FloatArray, frozen_floats
from placewright.core.costs import CostTable
from placewright.core.placement import Placement
from placewright.simulation.model import Simulator
from placewright.suites.suite.runs import random_layered_problem


def spread(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    return rng.random(shape)


def crowded(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    """Last of all one long op, and before it ops whose ranks differ by next to nothing."""
    seconds = rng.random(shape) * 1e-3
    seconds[-1] = 1e4
    return seconds


def at_two_places(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    """Ranks near 0 and near the largest, each crowded twice over: only a heap sorts them."""
    seconds = rng.random(shape) * 1e-9
    seconds[shape[0] // 2] = 1e6
    seconds[shape[0] // 4] = 1e-3
    return seconds


def heavy_tailed(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    return np.exp(5.0 * rng.standard_normal(shape))


def few_values(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    return rng.integers(0, 2, shape).astype(np.float64)


def nothing(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    del rng
    return np.zeros(shape)


@pytest.mark.parametrize(
    "draw", [spread, crowded, at_two_places, heavy_tailed, few_values, nothing]
)
@pytest.mark.parametrize(
    ("n_ops", "n_devices", "n_inputs"), [(60, 2, 1), (700, 3, 2), (5000, 4, 1)]
)
def test_equals_plain_python(draw, n_ops: int, n_devices: int, n_inputs: int) -> None:  # type: ignore[no-untyped-def]
    """Value and memory, also with more than 64 and 4,096 units of one device: more levels."""
    rng = np.random.default_rng(n_ops)
    problem = random_layered_problem(rng, n_ops, n_devices, n_inputs)
    costs = CostTable(frozen_floats(draw(rng, (n_ops, n_devices))))
    problem = replace(problem, costs=costs)
    simulator, plain = Simulator(problem), PlainSimulator(problem)
    mostly_one = np.where(rng.random(n_ops) < 0.95, 0, rng.integers(0, n_devices, n_ops))
    for device_of in (rng.integers(0, n_devices, n_ops), mostly_one):
        value, peaks = simulator.value_and_peaks(Placement.of(device_of))
        expected, expected_peaks = plain.makespan(device_of.tolist())
        assert value == expected
        assert peaks.tolist() == expected_peaks
