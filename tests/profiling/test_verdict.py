"""The honest answer: split only where it is faster beyond noise, else the simplest equal way."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from placewright.profiling.verdict import LEAST_FOR_INTERVAL, judge, median_interval

ORDER = ["cpu:0", "cpu:1", "all cores"]


def noisy(level: float, seed: int, n: int = 21) -> list[float]:
    return (level * np.random.default_rng(seed).normal(1.0, 0.02, n)).tolist()


def test_a_clear_gain_recommends_the_plan() -> None:
    samples = {"plan": noisy(1.0, 0), "cpu:0": noisy(1.5, 1), "cpu:1": noisy(1.5, 2)}
    verdict = judge(samples, ["cpu:0", "cpu:1"])
    assert verdict.split
    assert verdict.recommendation == "plan"
    gain, low, high = (float(number) for number in re.findall(r"\d\.\d\d", verdict.text))
    assert 1.4 < low < gain < high < 1.6


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


def test_rounds_that_scatter_are_not_called_noise() -> None:
    """Seven rounds of nine take a fifth of the plan's time, two take longer than the plan."""
    samples = {"plan": [1.0] * 9, "cpu:0": [0.2] * 7 + [1.2, 1.3]}
    text = judge(samples, ["cpu:0"]).text
    assert "within noise" not in text
    assert "'cpu:0' is faster in most rounds (it takes 0.20 of" in text
    assert "95 % interval 0.20 to 1.20)" in text


@pytest.mark.parametrize(
    ("level", "scatter", "recommended"),
    [(1.0, 0.02, "plan"), (1.07, 0.2, "plan"), (0.98, 0.2, "plan"), (0.8, 0.02, "even split")],
)
def test_another_split_wins_only_if_it_is_clearly_faster(
    level: float, scatter: float, recommended: str
) -> None:
    """One split is no simpler to serve than the other."""
    samples = {
        "plan": [1.0] * 21,
        "even split": (level * np.linspace(1 - scatter, 1 + scatter, 21)).tolist(),
        "cpu:0": noisy(1.5, 1),
    }
    simpler = ["cpu:0", "even split"]
    verdict = judge(samples, simpler, splits=["even split"], like_searched=["even split"])
    assert verdict.recommendation == recommended
    if recommended == "plan":
        assert "times as fast as 'cpu:0', the best without a split" in verdict.text


def test_another_split_that_is_not_clearly_faster_does_not_win_over_single_devices() -> None:
    """Nor if the searched placement does not win, either."""
    even = (0.98 * np.linspace(0.95, 1.05, 21)).tolist()
    samples = {"plan": [1.0] * 21, "even split": even, "cpu:0": [1.005] * 21}
    verdict = judge(samples, ["cpu:0", "even split"], like_searched=["even split"])
    assert verdict.recommendation == "cpu:0"


def test_another_split_that_the_plan_is_too_far_behind_is_not_left_out() -> None:
    """The plan won untested: only the even split, which scatters, was within 3 % of itself."""
    samples = {
        "plan": [1, 1, 1.01, 0.99, 1, 1, 1.01, 0.99, 1],
        "cpu:0": [1.005, 1.02, 0.98, 1.005, 1.006, 0.99, 1.03, 1.004, 1.005],
        "even split": [0.97, 0.965, 0.965, 0.97, 1.01, 0.97, 0.97, 1.0, 0.965],
    }
    names = ("even split",)
    verdict = judge(samples, ["cpu:0", *names], splits=names, like_searched=names, most_loss=0.03)
    assert (verdict.recommendation, verdict.split) == ("even split", False)
    verdict = judge(samples, ["cpu:0", *names], splits=names, like_searched=names, most_loss=0.05)
    assert verdict.recommendation == "cpu:0"


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
    assert "1.11 times as fast as 'cpu:0'" in verdict.text


def test_the_interval_is_that_of_order_statistics() -> None:
    """Of 21 values at most 5 are below the median in 27,896 of 2^21 ways, 1.3 %; at most 6, 3.9 %.

    Both ends have the same rank from their sides.
    """
    median, low, high = median_interval([float(value) for value in range(21)])
    assert (median, low, high) == (10.0, 5.0, 15.0)


@pytest.mark.parametrize("n", [*range(LEAST_FOR_INTERVAL, 41), 105, 2000])
def test_an_interval_is_the_shortest_of_at_least_95_percent(n: int) -> None:
    """Whatever the distribution: the ends are ranks, and the binomial is exact."""
    _, low, high = median_interval(range(n))
    assert low + high == n - 1
    below = [sum(math.comb(n, at) for at in range(int(low) + more)) for more in (1, 2)]
    assert 40 * below[0] <= 2**n < 40 * below[1]


@pytest.mark.parametrize("n", range(1, LEAST_FOR_INTERVAL))
def test_few_values_have_the_interval_of_all(n: int) -> None:
    assert median_interval(range(n))[1:] == (0.0, n - 1.0)


def test_without_anything_simpler_the_plan_wins() -> None:
    verdict = judge({"plan": [1.0] * 9}, [])
    assert verdict.split
    assert verdict.recommendation == "plan"
    assert verdict.text == "run the plan: nothing simpler keeps the constraints"


def test_the_only_other_way_is_named_if_it_is_not_clearly_faster() -> None:
    samples = {"plan": [1.0] * 9, "even split": [1.0] * 9}
    verdict = judge(samples, ["even split"], like_searched=["even split"])
    assert verdict.recommendation == "plan"
    assert verdict.text.endswith("constraints, and 'even split' is not clearly faster")


def test_what_scatters_is_not_recommended_where_its_median_is_far_off() -> None:
    """In two of nine rounds the simple way was as fast; in the others it took three times as
    long."""
    samples = {"plan": [1.0] * 9, "cpu:0": [1.0, 1.0] + [3.0] * 7, "copies": [1.1, 1.0] * 4 + [1.1]}
    assert judge(samples, ["cpu:0", "copies"]).recommendation == "cpu:0"
    assert judge(samples, ["cpu:0", "copies"], most_loss=0.2).recommendation == "copies"
    verdict = judge(samples, ["cpu:0", "copies"], most_loss=0.03)
    assert verdict.recommendation == "plan"
    assert verdict.split


@pytest.mark.parametrize("seed", range(50))
def test_no_recommended_way_is_slower_than_the_fastest_by_more_than_allowed(seed: int) -> None:
    """However rounds scatter, and whichever way the search found."""
    rng = np.random.default_rng(seed)
    names = ["cpu:0", "cpu:1", "copies", "plan"]
    samples = {name: (rng.uniform(1, 1.2) * rng.lognormal(0.0, 0.5, 9)).tolist() for name in names}
    verdict = judge(samples, names[:-1], most_loss=0.03)
    medians = {name: one.median for name, one in verdict.contenders.items()}
    assert medians[verdict.recommendation] <= 1.03 * min(medians.values())
