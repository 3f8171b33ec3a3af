"""The honest answer: split only where it is faster beyond noise, else the simplest equal way."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.profiling.verdict import judge, median_interval

ORDER = ["cpu:0", "cpu:1", "all cores"]


def noisy(level: float, seed: int, n: int = 21) -> list[float]:
    return (level * np.random.default_rng(seed).normal(1.0, 0.02, n)).tolist()


def test_a_clear_gain_recommends_the_plan() -> None:
    samples = {"plan": noisy(1.0, 0), "cpu:0": noisy(1.5, 1), "cpu:1": noisy(1.5, 2)}
    verdict = judge(samples, ["cpu:0", "cpu:1"])
    assert verdict.split
    assert verdict.recommendation == "plan"
    assert verdict.interval[0] < verdict.speedup < verdict.interval[1]
    assert 1.4 < verdict.speedup < 1.6


def test_the_default_wins() -> None:
    samples = {
        "plan": noisy(1.0, 0),
        "cpu:0": noisy(1.5, 1),
        "cpu:1": noisy(1.5, 2),
        "all cores": noisy(0.7, 3),
    }
    verdict = judge(samples, ORDER)
    assert not verdict.split
    assert verdict.recommendation == "all cores"
    assert verdict.text.startswith("do not split: 'all cores' is faster")


def test_a_tie_goes_to_the_simplest() -> None:
    samples = {
        "plan": noisy(1.0, 0),
        "cpu:0": noisy(1.001, 1),
        "cpu:1": noisy(1.0, 2),
        "all cores": noisy(0.999, 3),
    }
    verdict = judge(samples, ORDER)
    assert verdict.recommendation == "cpu:0"
    assert "as fast within noise" in verdict.text


def test_drift_of_the_machine_does_not_decide() -> None:
    """Both slow down threefold during the measurement; the plan takes 0.9 of the other."""
    drift = np.linspace(1.0, 3.0, 21)
    samples = {"plan": (0.9 * drift).tolist(), "cpu:0": drift.tolist()}
    verdict = judge(samples, ["cpu:0"])
    assert verdict.split
    assert verdict.speedup == pytest.approx(1 / 0.9)


def test_the_interval_is_that_of_order_statistics() -> None:
    """Of 21 values the median is the 11th; 1.96 binomial deviations are 4.49 ranks."""
    median, low, high = median_interval([float(value) for value in range(21)])
    assert (median, low, high) == (10.0, 6.0, 15.0)


def test_without_anything_simpler_the_plan_wins() -> None:
    verdict = judge({"plan": [1.0] * 9}, [])
    assert verdict.split
    assert verdict.recommendation == "plan"
    assert "nothing simpler" in verdict.text
