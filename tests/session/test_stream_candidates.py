"""Candidates for a stream: the played period decides, not the largest load."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest

from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.session.search import plan_of
from placewright.session.stream_candidates import candidates, improved, played_period
from placewright.simulation.model import Simulator
from placewright.testing.problems import random_problem


def problem_of(seed: int) -> Problem:
    made = random_problem(
        np.random.default_rng(seed), n_ops=25, objective="throughput", constrained=False
    )
    devices = tuple(
        replace(one, memory_bytes=np.inf, dispatch_seconds=1.0) for one in made.cluster.devices
    )
    cluster = replace(made.cluster, devices=devices)
    return replace(made, cluster=cluster, execution_model=MaxLoad(samples_in_flight=0))


@pytest.mark.parametrize("seed", range(5))
def test_candidates_are_legal_distinct_and_sorted_by_their_played_period(seed: int) -> None:
    problem = problem_of(seed)
    start = Placement.of(np.random.default_rng(seed).integers(0, 2, problem.n_units))
    found = Solution(start, Simulator(problem).value(start), "feasible", 0.0)
    plan = plan_of(problem, found, PlacerRecord("auto", "1", 0, 1, 1.0), "openvino")
    listed = candidates(plan, np.random.default_rng(0))
    periods = [played_period(problem, one) for one in listed]
    assert periods == sorted(periods)
    assert len({one.device_of.tobytes() for one in listed}) == len(listed)
    assert start.device_of.tobytes() in {one.device_of.tobytes() for one in listed}
    assert all(np.isfinite(Simulator(problem).value(one)) for one in listed)


@pytest.mark.parametrize("seed", range(5))
def test_moving_units_never_lengthens_the_played_stream(seed: int) -> None:
    problem = problem_of(seed)
    start = Placement.of(np.random.default_rng(seed).integers(0, 2, problem.n_units))
    period, placement = improved(problem, start, np.random.default_rng(0))
    assert period <= played_period(problem, start)
    assert period == played_period(problem, placement)


@pytest.mark.parametrize("seed", range(2))
def test_the_seed_decides_what_improving_finds_and_no_clock(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine on which an hour passes between any two looks at the clock, too."""
    problem = problem_of(seed)
    start = Placement.of(np.random.default_rng(seed).integers(0, 2, problem.n_units))
    found = Solution(start, Simulator(problem).value(start), "feasible", 0.0)
    plan = plan_of(problem, found, PlacerRecord("auto", "1", 0, 1, 1.0), "openvino")
    usual = candidates(plan, np.random.default_rng(1), is_counted=True)
    hours = itertools.count(0.0, 3600.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(hours))
    monkeypatch.setattr(time, "perf_counter", lambda: next(hours))
    slow = candidates(plan, np.random.default_rng(1), is_counted=True)
    assert [one.device_of.tolist() for one in slow] == [one.device_of.tolist() for one in usual]
