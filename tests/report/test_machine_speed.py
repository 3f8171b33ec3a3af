"""Each device that drifted is named with its own factor, by made-up seconds."""

from __future__ import annotations

import math

import pytest

from placewright.report.machine_speed import drifted, speed_note


def test_devices_that_drift_apart_are_both_named() -> None:
    """Predictions are 45 % too low on one device and 147 % too high on the other."""
    predicted = {"cpu:0": 0.055, "cpu:1": 0.247}
    measured = {"cpu:0": 0.1, "cpu:1": 0.1}
    for scatter in ({"cpu:0": 0.03, "cpu:1": 0.05}, dict[str, float | None]()):
        found = drifted(predicted, measured, scatter)
        assert found == {
            "cpu:0": pytest.approx(1.82, abs=0.01),
            "cpu:1": pytest.approx(0.405, abs=0.01),
        }
        note = speed_note(found)
        assert "'cpu:0' takes 1.82 times, 'cpu:1' takes 0.40 times as long" in note


def test_one_device_alone_is_named() -> None:
    predicted, measured = {"a": 1.0, "b": 1.0}, {"a": 1.3, "b": 1.0}
    assert list(drifted(predicted, measured, {"a": 0.1, "b": 0.1})) == ["a"]


def test_a_device_is_judged_by_its_own_scatter() -> None:
    """Both are 10 % slower: that is news of a steady device, not of a restless one."""
    predicted, measured = {"a": 1.0, "b": 1.0}, {"a": 1.1, "b": 1.1}
    assert list(drifted(predicted, measured, {"a": 0.02, "b": 0.2})) == ["a"]
    faster = {"a": 1 / 1.1, "b": 1 / 1.1}
    assert list(drifted(predicted, faster, {"a": 0.02, "b": 0.2})) == ["a"]
    assert drifted(predicted, measured, {"a": 0.1001, "b": 0.2}) == {}


def test_without_a_scatter_the_earlier_limits_hold_for_each_device() -> None:
    unknown: dict[str, float | None] = {}
    assert drifted({"a": 1.0}, {"a": 1.1}, unknown) == {}
    assert drifted({"a": 1.0}, {"a": 1.2}, unknown) == {"a": 1.2}
    assert drifted({"a": 2e-3}, {"a": 3e-3}, unknown) == {}
    assert list(drifted({"a": 1e-3}, {"a": 3e-3}, unknown)) == ["a"]


def test_what_cannot_be_compared_is_left_out() -> None:
    assert drifted({"a": math.inf, "b": 0.0}, {"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 0.1}) == {}
    assert drifted({"a": 50e-6}, {"a": 95e-6}, {"a": 0.05}) == {}  # threads hand requests over
    assert speed_note({}) == ""


def test_no_scatter_excuses_four_times_the_time() -> None:
    """A host that was busy while it calibrated would otherwise never be told."""
    wild = {"a": 30.0}
    assert drifted({"a": 1.0}, {"a": 3.9}, wild) == {}
    assert list(drifted({"a": 1.0}, {"a": 4.1}, wild)) == ["a"]
    assert list(drifted({"a": 1.0}, {"a": 0.24}, wild)) == ["a"]
