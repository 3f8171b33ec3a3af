"""What streams cost: weights that made the streams are found again, and predictions with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.profiling.stream_calibration import (
    MeasuredStream,
    calibration_placements,
    fitted_to,
    has_stream_overheads,
    played_period,
    with_stream_costs,
)
from placewright.simulation.model import Simulator
from placewright.testing.problems import random_problem


def problem_of(seed: int) -> Problem:
    """A random model of 60 ops on two devices of one memory, without limits and transfers."""
    made = random_problem(
        np.random.default_rng(seed),
        n_ops=60,
        n_devices=2,
        objective="throughput",
        constrained=False,
    )
    devices = tuple(
        replace(one, memory_domain="ram", memory_bytes=np.inf, streams=1, pays_transfers=False)
        for one in made.cluster.devices
    )
    cluster = replace(made.cluster, devices=devices, contention={})
    return replace(made, cluster=cluster, execution_model=MaxLoad(samples_in_flight=0), pins={})


def streams_of(problem: Problem, weights: list[float], noise: float) -> list[MeasuredStream]:
    """What a machine with these weights would have measured."""
    truth, rng = with_stream_costs(problem, np.array(weights)), np.random.default_rng(1)
    found = []
    for placement in calibration_placements(problem, np.random.default_rng(0)):
        in_flight = 3
        if placement is not None:
            in_flight = Simulator(problem).stream(placement, samples=20).in_flight
        period = played_period(truth, MeasuredStream(placement, 1.0, in_flight))
        found.append(MeasuredStream(placement, period * (1 + noise * rng.normal()), in_flight))
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "weights", [[1.0, 0.0, 0.0, 0.0], [1.3, 0.5, 0.0, 0.0], [1.1, 0.2, 0.1, 0]]
)
def test_streams_of_known_costs_are_predicted_again(seed: int, weights: list[float]) -> None:
    """Also of placements that the fit has not seen; without the fit some are far off."""
    problem = problem_of(seed)
    fitted = fitted_to(problem, streams_of(problem, weights, 0.0))
    truth = with_stream_costs(problem, np.array(weights))
    rng = np.random.default_rng(seed + 100)
    errors = []
    for _ in range(10):
        placement = Placement.of(rng.integers(0, 2, problem.n_units))
        if not np.isfinite(Simulator(problem).value(placement)):
            continue
        one = MeasuredStream(placement, 1.0, 4)
        errors.append(abs(played_period(fitted, one) / played_period(truth, one) - 1.0))
    assert np.median(errors or [0.0]) < 0.05


def test_noise_of_a_few_percent_moves_the_fit_by_no_more() -> None:
    problem = problem_of(3)
    fitted = fitted_to(problem, streams_of(problem, [1.2, 0.3, 0.0, 0.0], 0.03))
    for one in streams_of(problem, [1.2, 0.3, 0.0, 0.0], 0.0):
        assert abs(played_period(fitted, one) / one.period - 1.0) < 0.1


def test_only_streams_of_several_single_devices_are_calibrated() -> None:
    problem = problem_of(0)
    assert has_stream_overheads(problem)
    assert not has_stream_overheads(replace(problem, objective="latency"))
