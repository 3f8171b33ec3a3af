"""Values after a move are those of a full evaluation, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import random_placement, random_problem, seeds

from placewright.benchmarks.incremental import run_incremental_benchmark
from placewright.core.arrays import frozen_floats, frozen_ints
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.simulation.incremental import Incremental
from placewright.simulation.model import Simulator


def uneven(problem: Problem, rng: np.random.Generator) -> Problem:
    """Costs whose sums depend on their order."""
    seconds = problem.costs.seconds * rng.uniform(0.9, 1.1, problem.costs.seconds.shape)
    return replace(problem, costs=CostTable(frozen_floats(seconds)))


def with_gradients(problem: Problem, rng: np.random.Generator) -> Problem:
    """A training graph whose devices, but for the host, stand for three that exchange gradients."""
    phases = frozen_ints(rng.integers(0, 3, problem.graph.n_ops))
    training = replace(problem, graph=replace(problem.graph, op_phases=phases))
    devices = tuple(
        replace(
            device, replicas=1 if device.name == problem.cluster.host else 3, replica_bandwidth=0.7
        )
        for device in problem.cluster.devices
    )
    try:
        return replace(training, cluster=replace(problem.cluster, devices=devices))
    except InputError:
        return training


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_throughput_is_bit_identical(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_ops = int(rng.choice([5, 12, 150]))
    problem = uneven(random_problem(rng, n_ops), rng)
    in_flight = int(rng.integers(0, 3))
    problem = replace(
        problem, objective="throughput", execution_model=MaxLoad(samples_in_flight=in_flight)
    )
    if rng.random() < 0.5:
        problem = with_gradients(problem, rng)
    simulator = Simulator(problem)
    held = Incremental(simulator, random_placement(rng, problem).device_of)
    for _ in range(6):
        count = int(rng.integers(1, min(4, problem.n_units) + 1))
        units = rng.choice(problem.n_units, count, replace=False)
        device = int(rng.integers(problem.n_devices))
        trial = held.device_of.copy()
        trial[units] = device
        before = held.device_of.copy()
        expected = simulator.value(Placement.of(trial))
        assert held.value_after(units, device) == expected
        assert held.device_of.tolist() == before.tolist()
        if rng.random() < 0.6:
            assert held.move(units, device) == expected == held.value


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_latency_is_bit_identical(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = uneven(random_problem(rng), rng)
    simulator = Simulator(problem)
    held = Incremental(simulator, random_placement(rng, problem).device_of)
    unit, device = int(rng.integers(problem.n_units)), int(rng.integers(problem.n_devices))
    trial = held.device_of.copy()
    trial[unit] = device
    expected = simulator.value(Placement.of(trial))
    assert held.value_after(unit, device) == expected
    assert held.move(unit, device) == expected
    assert held.device_of.tolist() == trial.tolist()


def test_unknown_units_and_devices_are_refused() -> None:
    problem = random_problem(np.random.default_rng(1))
    held = Incremental(Simulator(problem), np.zeros(problem.n_units))
    with pytest.raises(InputError, match="no device 99"):
        held.value_after(0, 99)
    with pytest.raises(InputError, match="got \\[-1\\]"):
        held.move(-1, 0)
    with pytest.raises(InputError, match="devices from 0 to"):
        Incremental(Simulator(problem), np.full(problem.n_units, 77))


def test_the_benchmark_finds_equal_values() -> None:
    rows = run_incremental_benchmark([80], 3, moves=3)
    assert [row.objective for row in rows] == ["throughput", "latency"]
    assert all(row.full > 0 and row.incremental > 0 for row in rows)
