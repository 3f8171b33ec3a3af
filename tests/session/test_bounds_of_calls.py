"""Bound and status of calls of several shapes, beside brute force over the calls themselves."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.session.call_mix import _mean, proven_of_calls
from placewright.session.plans import plan_of
from placewright.simulation.model import Simulator

N_OPS = 3


def call(sizes: list[float], seconds: list[list[float]]) -> Problem:
    """Op 0 feeds ops 1 and 2; tensors of these sizes, and a byte takes a second."""
    builder = GraphBuilder()
    x = builder.add_input(1)
    builder.add_op("op 0", "Add", inputs=[x])
    t = builder.add_tensor(0, sizes[0])
    for op in (1, 2):
        builder.add_op(f"op {op}", "Add", inputs=[t])
        builder.add_tensor(op, sizes[op], is_output=True)
    graph = builder.build()
    devices = (Device("a"), Device("b"))
    to_host = [(a, b) for name in "ab" for a, b in ((name, "host"), ("host", name))]
    links = (Link("a", "b", 0.0, 1.0), Link("b", "a", 0.0, 1.0))
    links += tuple(Link(a, b, 0.0, 1e30) for a, b in to_host)
    costs = CostTable(frozen_floats(np.array(seconds)))
    return Problem(graph, Cluster(devices, links, "host"), costs, Grouping.identity(N_OPS))


def best(problems: list[Problem], shares: np.ndarray) -> tuple[float, Placement]:
    """The least weighted value of all placements; ops 1 and 2 need no order beside each other."""
    found = []
    for devices in product(range(2), repeat=N_OPS):
        placement = Placement.of(np.array(devices))
        values = []
        for problem in problems:
            orders = [None, np.array([0, 1, 2]), np.array([0, 2, 1])]
            ways = [Placement.of(placement.device_of, order) for order in orders]
            values.append(min(Simulator(problem).value(way) for way in ways))
        found.append((float(shares @ values), placement))
    return min(found, key=lambda one: one[0])


def mean_plan(parts: list[Problem], times: list[int]) -> tuple[Plan, np.ndarray]:
    """The optimum of the mean call, with the proof that a search would give it."""
    shares = np.array(times) / sum(times)
    mean = _mean(parts, shares)
    value, placement = best([mean], np.ones(1))
    found = Solution(Placement.of(placement.device_of), value, "optimal", value)
    return plan_of(mean, found, PlacerRecord("manual", "0", 0, 0, 0.0), "torch"), shares


def test_the_optimum_of_the_mean_call_is_not_that_of_the_calls() -> None:
    """A tensor of 100 bytes in one call and none in the other takes 50 s on average, not 100 s.

    The share of the mean call is almost 1, because another tensor is large in both calls. By the
    mean call op 1 stays beside op 0 for 80 s; by the calls it moves, for 1 + 50 s.
    """
    seconds = [[1.0, 1e6], [80.0, 1.0], [0.0, 1e6]]
    parts = [call([100.0, 1e6, 1.0], seconds), call([0.0, 1e6, 1.0], seconds)]
    plan, shares = mean_plan(parts, [1, 1])
    least, _ = best(parts, shares)
    assert plan.value == pytest.approx(81.0)
    assert least == pytest.approx(52.0)
    checked = proven_of_calls(plan, parts, [1, 1])
    assert checked.status == "feasible"
    assert checked.lower_bound <= least


@settings(max_examples=15)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=2, max_size=3),
    st.lists(st.lists(st.integers(1, 9), min_size=2, max_size=2), min_size=3, max_size=3),
    st.lists(st.integers(1, 5), min_size=3, max_size=3),
)
def test_no_bound_is_above_the_best_of_all_placements(
    sizes: list[list[int]], seconds: list[list[int]], times: list[int]
) -> None:
    times = times[: len(sizes)]
    parts = [
        call([float(size) for size in row], [[float(s * (at + 1)) for s in one] for one in seconds])
        for at, row in enumerate(sizes)
    ]
    plan, shares = mean_plan(parts, times)
    least, _ = best(parts, shares)
    checked = proven_of_calls(plan, parts, times)
    assert checked.lower_bound <= least * (1 + 1e-9)
    assert checked.lower_bound <= plan.value
    values = [Simulator(part).value(plan.placement) for part in parts]
    if checked.status == "optimal":
        assert float(shares @ values) == pytest.approx(least)


def test_equal_calls_keep_their_proof() -> None:
    """Ops 0 and 1 take 5 s one after the other, wherever they are."""
    parts = [call([100.0, 1.0, 1.0], [[2.0, 2.0], [3.0, 3.0], [0.0, 0.0]]) for _ in range(2)]
    plan, _ = mean_plan(parts, [1, 3])
    checked = proven_of_calls(plan, parts, [1, 3])
    assert (checked.value, checked.lower_bound) == (pytest.approx(5.0), pytest.approx(5.0))
    assert checked.status == "optimal"
