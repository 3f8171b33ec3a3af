"""The reference that exact placers are held against: what it leaves out cannot be better."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from placewright.core.cluster import Cluster
from placewright.core.execution_models import EVENT
from placewright.core.placement import Placement
from placewright.core.problem import Objective, Problem
from placewright.errors import InputError
from placewright.simulation.model import Simulator
from placewright.testing.brute_force import (
    brute_force,
    distinct_orders,
    legal_placements,
    placement_bounds,
    topological_orders,
)
from placewright.testing.problems import random_problem


def all_of_them(problem: Problem) -> dict[tuple[int, ...], list[float]]:
    """Values of every order of every legal placement, rank dispatch first."""
    simulator = Simulator(problem)
    orders = list(topological_orders(problem)) if problem.execution_model == EVENT else []
    return {
        tuple(device_of.tolist()): [
            simulator.value(Placement.of(device_of)),
            *(simulator.value(Placement.of(device_of, order)) for order in orders),
        ]
        for device_of in legal_placements(problem)
    }


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_it_is_the_least_of_all_values(seed: int, objective: Objective) -> None:
    problem = random_problem(
        np.random.default_rng(seed), n_ops=5, n_devices=2 + seed % 2, objective=objective
    )
    values = all_of_them(problem).values()
    assert brute_force(problem) == min(itertools.chain(*values), default=math.inf)


@pytest.mark.parametrize("seed", range(8))
def test_bounds_are_below_every_order(seed: int) -> None:
    """Also through the host, where two devices have no link."""
    problem = random_problem(np.random.default_rng(seed), n_ops=5, n_devices=3)
    links = [link for link in problem.cluster.links if "host" in (link.source, link.destination)]
    for cluster in (problem.cluster, Cluster(problem.cluster.devices, tuple(links))):
        problem = replace(problem, cluster=cluster)
        values = all_of_them(problem)
        bounds = placement_bounds(problem, np.array(list(values)))
        for bound, row in zip(bounds.tolist(), values.values(), strict=True):
            assert bound <= min(row)
        assert bounds.max() > 0


@pytest.mark.parametrize("seed", range(6))
def test_orders_that_are_left_out_are_worth_as_much_as_one_that_stays(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), n_ops=5, n_devices=2)
    simulator = Simulator(problem)
    orders = np.array(list(topological_orders(problem)))
    for device_of in legal_placements(problem):
        kept = distinct_orders(device_of, orders)
        values = [
            {simulator.value(Placement.of(device_of, order)) for order in some}
            for some in (orders, kept)
        ]
        assert values[0] == values[1]
        assert len(kept) <= len(orders)


def test_orders_of_two_devices_in_parallel() -> None:
    """Four independent ops, two on each device: 2 x 2 sequences among 24 orders."""
    orders = np.array(list(itertools.permutations(range(4))))
    assert len(distinct_orders(np.array([0, 0, 1, 1]), orders)) == 4
    assert len(distinct_orders(np.array([0, 0, 0, 0]), orders)) == 24


def test_more_than_eight_units_are_refused() -> None:
    problem = random_problem(np.random.default_rng(0), n_ops=9, n_devices=2)
    with pytest.raises(InputError, match="at most 8 units, got 9"):
        brute_force(problem)


def test_too_many_placements_are_refused() -> None:
    problem = random_problem(np.random.default_rng(0), n_ops=8, n_devices=16)
    with pytest.raises(InputError, match="at most 1000000 placements, got"):
        brute_force(problem)
