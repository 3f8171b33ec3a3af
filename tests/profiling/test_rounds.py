"""How often a placement is measured, on a quiet machine and on a restless one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from placewright.profiling.measure import (
    Rounds,
    median_error,
    median_uncertainty,
    scatter_of,
)


def rounds_taken(limits: Rounds, spread: float) -> int:
    """Of a machine whose rounds scatter by so much."""
    rng, samples = np.random.default_rng(0), list[float]()
    while limits.want_more(samples):
        samples.append(1.0 + spread * rng.standard_normal())
    return len(samples)


@pytest.mark.parametrize(
    ("expected", "least", "most"),
    [(0.001, 11, 44), (0.1, 11, 44), (0.2, 6, 24), (0.5, 5, 10), (3.0, 5, 5), (0.0, 11, 44)],
)
def test_slow_requests_are_measured_less_often(expected: float, least: int, most: int) -> None:
    assert Rounds.of(expected, 11) == Rounds(least, most)


def test_fewer_than_usual_are_never_asked_for() -> None:
    assert Rounds.of(1.0, 3) == Rounds(3, 5)


def test_a_limit_in_seconds_leaves_the_usual_rounds() -> None:
    assert Rounds.of(0.1, 11, 1.5) == Rounds(11, 11)
    assert Rounds.of(0.02, 11, 1.5) == Rounds(11, 37)
    assert Rounds.of(0.001, 11, 1.5) == Rounds(11, 44)


def test_a_restless_machine_is_measured_longer() -> None:
    limits = Rounds.of(0.01, 11)
    quiet, restless, wild = (rounds_taken(limits, spread) for spread in (0.002, 0.02, 0.3))
    assert quiet == 11
    assert 11 < restless < 44
    assert wild == 44


@pytest.mark.parametrize("count", [3, 5, 9, 40])
def test_the_scatter_of_few_rounds_is_that_of_many(count: int) -> None:
    """Of normal rounds with a deviation of 1 %: 1.57 times the distance of their quartiles."""
    rng = np.random.default_rng(2)
    rows = 1.0 + 0.01 * rng.standard_normal((1000, count))
    mean = np.mean([scatter_of(row.tolist()) for row in rows])
    assert mean == pytest.approx(1.57 * 2 * 0.6745 * 0.01, rel=0.06)


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    """Of normal rounds: nine of ten times, of a thousand, within what chance allows."""
    rng = np.random.default_rng(1)
    held, medians, errors = 0, [], []
    for _ in itertools.repeat(None, 1000):
        samples = (100.0 + rng.standard_normal(31)).tolist()
        uncertain = median_uncertainty(samples) * float(np.median(samples))
        held += abs(float(np.median(samples)) - 100.0) <= uncertain
        medians.append(float(np.median(samples)))
        errors.append(median_error(samples) * medians[-1])
    assert 860 <= held <= 940
    assert np.median(errors) == pytest.approx(np.std(medians), rel=0.1)
