"""The front of latency and energy, beside all placements listed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import FieldError
from placewright.session.comparison import charged_by_energy, pareto_front
from placewright.simulation.model import Simulator
from placewright.testing.brute_force import legal_placements
from placewright.testing.problems import random_problem, with_power


def unlike_devices(seed: int) -> Problem:
    """Five ops; the second device takes half the time and five times the power of the first."""
    plain = random_problem(np.random.default_rng(seed), n_ops=5, constrained=False)
    seconds = plain.costs.seconds.copy()
    seconds[:, 1] = seconds[:, 0] / 2.0
    return with_power(
        replace(plain, costs=replace(plain.costs, seconds=seconds)), objective="latency"
    )


@pytest.mark.parametrize("seed", range(4))
def test_every_point_is_one_that_no_placement_beats(seed: int) -> None:
    """Of placements without an order; the ends have the least latency and the least energy."""
    problem = unlike_devices(seed)
    rows = np.array(list(legal_placements(problem)))
    latency = Simulator(problem).values(rows)
    energy = Simulator(replace(problem, objective="energy")).values(rows)
    front = pareto_front(problem, Budget(evaluations=2000), points=4)
    assert front[0].latency == pytest.approx(latency.min())
    assert front[-1].energy == pytest.approx(energy.min())
    for point in front[1:]:
        beats = (latency <= point.latency * (1 - 1e-9)) & (energy <= point.energy * (1 - 1e-9))
        assert not beats.any()
    for earlier, later in itertools.pairwise(front):
        assert earlier.latency < later.latency
        assert earlier.energy > later.energy


def test_what_has_no_front_is_refused_before_a_search() -> None:
    problem = unlike_devices(0)
    with pytest.raises(FieldError, match="at least 2 searches, got 1"):
        charged_by_energy(problem, 1)
    with pytest.raises(FieldError, match="no energy of device"):
        charged_by_energy(random_problem(np.random.default_rng(0)), 3)
    stream = random_problem(np.random.default_rng(0), objective="throughput")
    with pytest.raises(FieldError, match="throughput has no front"):
        charged_by_energy(stream, 3)
