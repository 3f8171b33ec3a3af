"""Energy and price: a reference in their own unit, so that rewards carry a signal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import toys

from placewright.core.charges import CHARGED
from placewright.core.cluster import Device
from placewright.core.problem import Objective, Problem
from placewright.placers.learned.shared.returns import (
    FAILING_TIMES,
    reference_value,
    relative_times,
)
from placewright.placers.registry import make_placer

LEARNERS = {
    "seq2seq": {"hidden": "8"},
    "hierarchical": {"hidden": "8"},
    "grouper-placer": {"hidden": "8"},
    "placeto": {"rounds": "2"},
    "post": {},
    "hsdag": {"hidden": "8"},
}


def charged(objective: Objective, scale: float = 1.0) -> Problem:
    """The two ladders; device 0 draws 10 W busy and 2 W idle for 4/s, device 1 30 W, 6 W, 1/s."""
    problem = toys.two_cluster_problem(2)
    watts, prices = np.array([[10.0, 2.0], [30.0, 6.0]]) * scale, np.array([4.0, 1.0]) * scale
    devices = tuple(
        Device(device.name, device.kind, device.memory_bytes, busy_watts=busy, idle_watts=idle,
               price_per_hour=3600.0 * price)
        for device, (busy, idle), price in zip(
            problem.cluster.devices, watts.tolist(), prices.tolist(), strict=True)
    )  # fmt: skip
    return replace(problem, cluster=replace(problem.cluster, devices=devices), objective=objective)


def test_the_reference_by_hand() -> None:
    """Four units of 1 s and 3 s, four of 3 s and 1 s; 8 W of idle power in both devices.

    Energy: min(1 x (8 + 8), 3 x (24 + 8)) = 16 and min(3 x (8 + 8), 1 x (24 + 8)) = 32 J.
    Price: min(1 x 4, 3 x 1) = 3 and min(3 x 4, 1 x 1) = 1.
    """
    assert reference_value(charged("energy")) == pytest.approx(4 * 16.0 + 4 * 32.0)
    assert reference_value(charged("price")) == pytest.approx(4 * 3.0 + 4 * 1.0)
    assert reference_value(charged("latency")) == 8.0


@pytest.mark.parametrize("objective", CHARGED)
@pytest.mark.parametrize("learner", LEARNERS)
def test_a_learner_sees_differences_on_any_scale(learner: str, objective: Objective) -> None:
    """Watts and prices times 2^12: the same draws, which only rewards could change."""
    drawn = {}
    for scale in (1.0, 2.0**12):
        problem = charged(objective, scale)
        found = toys.run(make_placer(learner, LEARNERS[learner]), problem, 60)
        drawn[scale] = np.asarray(found.samples) / scale
        times = relative_times(found.samples, reference_value(problem))
        assert times.max() < FAILING_TIMES
        assert np.ptp(times) > 0.1
    np.testing.assert_array_equal(*drawn.values())
