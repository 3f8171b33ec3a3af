"""Which ready unit a device begins: by rank or in the order in which they became ready."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from simulation.oracle import Reference
from strategies import random_order, random_placement, random_problem, seeds
from support.small_problems import graph_of, problem_of

from placewright.core.cluster import Link
from placewright.core.execution_models import DISPATCH_RULES, Dispatch, Event
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.simulation.bounds.lower import lower_bound
from placewright.simulation.model import Simulator


def under(problem: Problem, dispatch: Dispatch) -> Problem:
    return replace(problem, execution_model=Event(dispatch=dispatch))


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_the_kernel_equals_the_reference_in_turn(seed: int) -> None:
    """Value, memory and timeline, to the last bit; by rank it is held so in `test_event`."""
    rng = np.random.default_rng(seed)
    problem = under(random_problem(rng), "fifo")
    device_of = random_placement(rng, problem).device_of
    placement = Placement.of(device_of)
    reference, simulator = Reference(problem, placement), Simulator(problem)
    expected = reference.value()
    assert simulator.value(placement) == expected
    assert simulator.values(device_of[None, :])[0] == expected
    if reference.is_legal() and not reference.is_cut_off:
        assert simulator.memory_peaks(placement).tolist() == reference.peaks()
    assert lower_bound(problem).value <= expected
    if math.isfinite(expected):
        timeline = simulator.timeline(placement)
        units = range(problem.n_units)
        assert timeline.start.tolist() == [reference.start[unit] for unit in units]
        assert timeline.end.tolist() == [reference.end[unit] for unit in units]


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_an_order_means_the_same_under_both_rules(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    device_of = random_placement(rng, problem).device_of
    placement = Placement.of(device_of, random_order(rng, problem))
    values = [Simulator(under(problem, rule)).value(placement) for rule in DISPATCH_RULES]
    assert values[0] == values[1]


def starts(problem: Problem, rule: Dispatch, device_of: list[int]) -> list[float]:
    return Simulator(under(problem, rule)).timeline(Placement.of(device_of)).start.tolist()


def test_first_ready_first_served_by_hand() -> None:
    """While op0 keeps d0 until 3, op3 becomes ready at 1.25 and op4, before a long path, at 2.25.

    By rank op4 goes first, then op5 behind it; in turn op3, op4 and op5 go.
    """
    graph = graph_of(6, [(1, [3]), (2, [4]), (4, [5])])
    seconds = [[3, 9], [9, 1], [9, 1], [1, 9], [1, 9], [10, 9]]
    problem = problem_of(graph, seconds, [Link("d0", "d1", 0.25), Link("d1", "d0", 0.25)])
    device_of = [0, 1, 1, 0, 0, 0]
    assert starts(problem, "fifo", device_of) == [0.0, 0.0, 1.0, 3.0, 4.0, 5.0]
    # d1 begins op2 first by rank, so that op4 is ready at 1.25 and op3 at 2.25
    assert starts(problem, "rank", device_of) == [0.0, 1.0, 0.0, 14.0, 3.0, 4.0]


def test_units_that_become_ready_at_one_instant_go_by_their_index() -> None:
    """op2 and op3 read one tensor that arrives at 1.5; op3 has the higher rank."""
    graph = graph_of(5, [(0, [3, 2]), (3, [4])])
    seconds = [[9, 1], [2, 9], [1, 9], [1, 9], [5, 9]]
    problem = problem_of(graph, seconds, [Link("d0", "d1", 0.5), Link("d1", "d0", 0.5)])
    device_of = [1, 0, 0, 0, 0]
    assert starts(problem, "fifo", device_of) == [0.0, 0.0, 2.0, 3.0, 4.0]
    assert starts(problem, "rank", device_of) == [0.0, 0.0, 8.0, 2.0, 3.0]


def test_a_crowd_that_becomes_ready_out_of_order_leaves_in_order() -> None:
    """More units than the queue's window holds; each one's input comes by its own link's time."""
    n = 150
    rng = np.random.default_rng(0)
    graph = graph_of(2 * n, [(op, [n + op]) for op in range(n)])
    times = rng.permutation(n) + 1.0
    seconds = [[1e3, float(times[op])] if op < n else [1.0, 1e3] for op in range(2 * n)]
    problem = problem_of(graph, seconds, [Link("d0", "d1"), Link("d1", "d0")], streams=n)
    devices = tuple(
        replace(device, streams=streams)
        for device, streams in zip(problem.cluster.devices, (1, n), strict=True)
    )
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    begun = starts(problem, "fifo", [1] * n + [0] * n)[n:]
    assert np.argsort(begun).tolist() == np.argsort(times).tolist()


def test_other_rules_are_refused() -> None:
    with pytest.raises(InputError, match="dispatch of execution model 'event' is rank or fifo"):
        Event(dispatch="lifo")  # type: ignore[arg-type]
