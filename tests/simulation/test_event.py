"""The event kernel against the slow reference, on random problems."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import example, given, settings
from simulation.oracle import Reference
from strategies import random_placement, random_problem, seeds

from placewright.core.placement import Placement
from placewright.simulation.bounds.lower import lower_bound
from placewright.simulation.model import Simulator
from placewright.suites.suite.runs import random_layered_problem


@settings(max_examples=200, deadline=None)
@given(seeds)
@example(72006)  # two tensors reach the host at once, by transfers that take no time
def test_value_and_memory_equal_the_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    placement = random_placement(rng, problem)
    reference = Reference(problem, placement)
    simulator = Simulator(problem)
    expected = reference.value()
    assert simulator.value(placement) == expected
    assert (simulator.violation(placement) is None) == math.isfinite(expected)
    if reference.is_legal() and not reference.is_cut_off:
        assert simulator.memory_peaks(placement).tolist() == reference.peaks()
    assert lower_bound(problem).value <= expected


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_timeline_equals_the_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    placement = random_placement(rng, problem)
    reference = Reference(problem, placement)
    expected = reference.value()
    if math.isinf(expected):
        return
    timeline = Simulator(problem).timeline(placement)
    units = range(problem.n_units)
    assert timeline.value == expected
    assert timeline.start.tolist() == [reference.start[unit] for unit in units]
    assert timeline.end.tolist() == [reference.end[unit] for unit in units]
    pairs = {(int(timeline.segment_of[unit]), reference.segment[unit]) for unit in units}
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
    queues = problem.cluster.link_queues
    _check_channels([hop for hop in timeline.transfers if queues[hop.source, hop.destination]])


def _check_channels(transfers) -> None:  # type: ignore[no-untyped-def]
    for number, hop in enumerate(transfers):
        for other in transfers[number + 1 :]:
            if other.channel == hop.channel:
                assert other.start >= hop.end or hop.start >= other.end


def test_any_layout_of_the_devices_has_the_same_value() -> None:
    """The kernel takes its arguments unseen, so that a column must be copied before."""
    problem = random_layered_problem(np.random.default_rng(3), 40, 4)
    rows = np.random.default_rng(4).integers(0, problem.n_devices, (problem.n_units, 5))
    simulator, column = Simulator(problem), rows[:, 2]
    expected = simulator.value_and_peaks(Placement.of(column))
    for device_of in (column, column.astype(np.int32)):
        value, peaks = simulator.value_and_peaks(Placement(device_of))
        assert value == expected[0] == simulator.value(Placement(device_of))
        assert peaks.tolist() == expected[1].tolist()
