"""The linear relaxation: its cheapest transfers, its time limit, and energy without idle power."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy.sparse import csr_array
from strategies import random_problem

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.problem import Problem
from placewright.simulation.bounds.lower import relaxation_bound
from placewright.simulation.bounds.relaxation import (
    LatencyRelaxation,
    LoadRelaxation,
    RelaxedProgram,
    safe_dual_bound,
)
from placewright.testing import problems
from placewright.testing.brute_force import brute_force


def least_way(program: RelaxedProgram, tensor: int, *, last_hop: bool) -> float:
    """The definition, pair by pair."""
    linked, host = program.problem.cluster.link_channel >= 0, program.arrays.host
    ways = []
    for source in range(program.n_devices):
        for target in range(program.n_devices):
            is_direct = bool(linked[source, target])
            through = bool(linked[source, host] and linked[host, target])
            if source != target and (is_direct or through):
                begin = source if is_direct or not last_hop else host
                ways.append(program.way(tensor, begin, target))
    return min(ways, default=0.0)


@pytest.mark.parametrize("seed", range(40))
def test_the_cheapest_transfer_is_that_of_all_pairs(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), n_ops=6)
    for kind, last_hop in ((LatencyRelaxation, False), (LoadRelaxation, True)):
        program = kind(problem)
        expected = [
            least_way(program, tensor, last_hop=last_hop)
            for tensor in range(problem.unit_graph.n_tensors)
        ]
        assert program.cheapest == expected


def test_time_that_the_rows_take_is_time_of_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problems.random_problem(np.random.default_rng(0), n_ops=6)
    given: list[float] = []
    monkeypatch.setattr(LatencyRelaxation, "solved", lambda self, seconds: given.append(seconds))
    assert relaxation_bound(problem, 1e-9) == 0.0
    relaxation_bound(problem, 1e6)
    (left,) = given
    assert left < 1e6


def without_idle_power(seed: int) -> Problem:
    """A small problem of energy whose devices draw none while they idle."""
    rng = np.random.default_rng(seed)
    problem = problems.random_problem(rng, n_ops=4)
    devices = tuple(
        replace(device, busy_watts=float(rng.integers(1, 9)), idle_watts=0.0)
        for device in problem.cluster.devices
    )
    cluster = replace(problem.cluster, devices=devices)
    return replace(problem, cluster=cluster, objective="energy")


def test_energy_without_idle_power_has_a_bound() -> None:
    """The makespan costs nothing then: the bound is the least energy that memory allows."""
    n_positive = 0
    for seed in range(12):
        problem = without_idle_power(seed)
        bound, best = relaxation_bound(problem), brute_force(problem)
        assert bound <= best * (1.0 + 1e-9)
        n_positive += math.isfinite(best) and bound > 0.5 * best
    assert n_positive >= 6


def test_rounding_of_reduced_costs_is_taken_off_a_dual_bound() -> None:
    """Terms of 1e12 cancel in them; the bound by the same multipliers in fractions is exact."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        matrix, multipliers = rng.uniform(-1e12, 1e12, (6, 3)), -rng.uniform(0.5, 1.0, 6)
        matrix[5] = -(multipliers[:5] @ matrix[:5]) / multipliers[5]
        free = Fraction(float(rng.uniform(0.5, 1.0)))
        exact = free
        for column in matrix.T.tolist():
            pairs = zip(multipliers.tolist(), column, strict=True)
            exact += min(Fraction(0), -sum(Fraction(y) * Fraction(a) for y, a in pairs) - free)
        found = safe_dual_bound(
            (csr_array(matrix), np.zeros(6), multipliers),
            (csr_array(np.ones((1, 3))), np.ones(1), np.array([float(free)])),
            np.zeros(3),
            np.ones(3),
        )
        assert found <= exact


@pytest.mark.parametrize("seconds", [1e-9, 1e-6, 1.0, 1e6])
def test_a_bound_does_not_depend_on_the_unit_of_time(seconds: float) -> None:
    """Tolerances of the solver are absolute, and shares of units are at most 1 in any unit."""
    rng = np.random.default_rng(3)
    builder = GraphBuilder()
    tensors: list[int] = []
    for op in range(30):
        read = [tensors[at] for at in rng.integers(0, op, 2)] if op else []
        tensors.append(builder.add_tensor(builder.add_op(f"{op}", "Op", inputs=read), 1.0))
    plain = rng.uniform(1.0, 9.0, (30, 2))
    links = (Link("a", "b", 2.0 * seconds), Link("b", "a", 3.0 * seconds))
    cluster = Cluster((Device("a"), Device("b")), links, "a")
    costs = CostTable(frozen_floats(plain * seconds))
    problem = Problem.of_ops(builder.build(), cluster, costs)
    assert relaxation_bound(problem) / seconds == pytest.approx(55.459929, rel=1e-6)
