"""The fit of overheads and contention, on segments whose costs are known."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.core.cluster import Cluster, Device, Link
from placewright.profiling.calibration import _fitted, _Row

CLUSTER = Cluster(
    tuple(Device(name, memory_domain="cpu", fingerprint="core") for name in ("a", "b")),
    (Link("a", "b"), Link("b", "a")),
)


def segments(rng: np.random.Generator, count: int, own: float, factor: float) -> list[_Row]:
    """Segments that cost 30 us, 5 us and 0.1 ns per byte in, 20 us and 0.2 ns per byte out."""
    rows = []
    for number in range(count):
        n_in, n_out = rng.integers(0, 5, 2).tolist()
        bytes_in, bytes_out = (rng.random(2) * [n_in, n_out] * 1e6).tolist()
        overhead = 30e-6 + 5e-6 * n_in + 1e-10 * bytes_in + 20e-6 * n_out + 2e-10 * bytes_out
        seconds = own * (0.5 + rng.random())
        counts = (float(n_in), bytes_in, float(n_out), bytes_out)
        both = 2 if factor > 1.0 or number % 2 else 1
        slowed = factor if both == 2 else 1.0
        rows.append(_Row(number % 2, both, seconds, counts, seconds * slowed + overhead))
    return rows


def test_what_segments_cost_comes_out() -> None:
    """All six costs, from segments of one and of two devices in use."""
    rng = np.random.default_rng(0)
    alone = [
        _Row(row.device, 1, row.unit_seconds, row.counts, row.seconds)
        for row in segments(rng, 60, 1e-3, 1.0)
    ]
    cluster = _fitted(CLUSTER, alone + segments(rng, 60, 1e-3, 1.25), [])
    device = cluster.devices[0]
    assert device.dispatch_seconds == pytest.approx(30e-6, rel=0.01)
    assert device.cut_seconds == pytest.approx(5e-6, rel=0.01)
    assert device.cut_seconds_per_byte == pytest.approx(1e-10, rel=0.01)
    assert device.layout_seconds == pytest.approx(20e-6, rel=0.01)
    assert device.layout_seconds_per_byte == pytest.approx(2e-10, rel=0.01)
    assert cluster.contention["cpu"] == pytest.approx((1.0, 1.25), rel=0.001)
    assert cluster.devices[1].layout_seconds == device.layout_seconds


def test_a_few_disturbed_segments_decide_nothing() -> None:
    """Five of 120 took a millisecond longer for a reason of their own."""
    rng = np.random.default_rng(1)
    rows = segments(rng, 120, 5e-3, 1.1)
    for number in range(0, 100, 20):
        row = rows[number]
        rows[number] = _Row(row.device, 2, row.unit_seconds, row.counts, row.seconds + 1e-3)
    cluster = _fitted(CLUSTER, rows, [])
    assert cluster.contention["cpu"][1] == pytest.approx(1.1, rel=0.005)
    assert cluster.devices[0].dispatch_seconds == pytest.approx(30e-6, rel=0.05)


def test_costs_are_never_negative() -> None:
    """Segments that were faster than the sum of their units."""
    rng = np.random.default_rng(3)
    rows = [
        _Row(row.device, 2, row.unit_seconds, row.counts, 0.8 * row.unit_seconds)
        for row in segments(rng, 50, 1e-3, 1.0)
    ]
    cluster = _fitted(CLUSTER, rows, [])
    assert cluster.contention["cpu"] == (1.0, 1.0)
    for device in cluster.devices:
        assert device.dispatch_seconds == device.cut_seconds == device.layout_seconds == 0.0
