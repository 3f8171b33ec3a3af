"""Verdict: whether a placement is faster, beyond noise, than simpler ways to run the model."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placewright.core.plan import PLAN

DO_NOT_SPLIT = "do not split: "  # `place` prints this advice once, above its table
_LEAST_GAIN = 0.01  # smallest relative gain that is worth a split
_CLEAR = 0.05  # a reader takes so large a difference for no noise, even if single rounds scatter
LEAST_FOR_INTERVAL = 6  # extremes of fewer values enclose the median with less than 95 %


@dataclass(frozen=True)
class Timing:
    """Summary of the samples of a contender."""

    median: float  # seconds
    iqr: float  # distance between the quartiles, seconds
    runs: int  # number of samples


@dataclass(frozen=True)
class Verdict:
    """Recommendation after a measurement."""

    recommendation: str  # name of a contender, the simplest of those that are as fast as the best
    split: bool  # True if it is the searched placement, and no simpler contender is the same
    text: str  # the recommendation in one sentence
    contenders: Mapping[str, Timing]  # name -> summary of its samples


def judge(
    samples: Mapping[str, Sequence[float]],
    simplest_first: Sequence[str],
    *,
    searched: str = PLAN,
    splits: Collection[str] = (),
    like_searched: Collection[str] = (),
    most_loss: float = math.inf,
) -> Verdict:
    """Compare the searched placement with all simpler contenders, round by round.

    Two contenders are compared by the ratio of their times in the same round, which cancels drift
    of the machine. The searched placement wins only if the whole 95 % interval of the median ratio
    to every simpler contender is above 1.01. Otherwise the simplest contender that is
    as fast as the fastest simpler one, within the same margin, is recommended. A contender of
    `like_searched` is no simpler to serve than the searched placement, so that it must be faster
    beyond noise to win.

    Args:
        samples: name -> seconds of each round, equal lengths.
        simplest_first: names of simpler contenders, for example single devices, then the default;
            without any the searched placement wins.
        searched: name of the searched placement: ``"plan"``, or a name of `simplest_first` if the
            search returned that contender.
        splits: names of simpler contenders that use several devices.
        like_searched: names of those that split the model itself, such as an even split.
        most_loss: a contender whose median is longer than the shortest median by more than this
            share is not recommended, even if its rounds scatter.

    >>> judge({"plan": [1.0] * 9, "cpu:0": [2.0] * 9}, ["cpu:0"]).split
    True
    """
    contenders = {name: _summary(row) for name, row in samples.items()}
    others = simplest_first
    simplest_first = _without_equals(samples, others, searched, like_searched, most_loss)
    if not simplest_first:
        text = "run the plan: nothing simpler keeps the constraints"
        text += "".join(f", and '{name}' is not clearly faster" for name in others)
        return Verdict(PLAN, True, text, contenders)
    fastest = min(simplest_first, key=lambda name: contenders[name].median)
    plan = np.asarray(samples[searched])
    intervals = {n: median_interval(np.asarray(samples[n]) / plan) for n in simplest_first}
    speedup, low, high = intervals[fastest]
    enough = (1 + most_loss) * min(contender.median for contender in contenders.values())
    near = [name for name in simplest_first if contenders[name].median <= enough]
    is_faster = all(row[1] > 1 + _LEAST_GAIN for row in intervals.values())
    if searched == PLAN and (is_faster or not near):
        best_of = "simpler split" if fastest in splits else "without a split"
        text = (
            f"run the plan: {speedup:.2f} times as fast as '{fastest}', the best {best_of} "
            f"(95 % interval {low:.2f} to {high:.2f})"
        )
        return Verdict(PLAN, True, text, contenders)
    best = np.asarray(samples[fastest])
    chosen = next(
        name
        for name in near or [fastest]
        if name == fastest
        or median_interval(np.asarray(samples[name]) / best)[1] <= 1 + _LEAST_GAIN
    )
    share, least, most = median_interval(np.asarray(samples[chosen]) / plan)
    how = "is as fast within noise"
    if most < 1 - _LEAST_GAIN:
        how = "is faster"
    elif share < 1 - _CLEAR:
        how = "is faster in most rounds"
    advice = "use the simpler split: " if chosen in splits else DO_NOT_SPLIT
    text = (
        f"{advice}'{chosen}' {how} (it takes {share:.2f} of the searched placement's time, 95 % "
        f"interval {least:.2f} to {most:.2f})"
    )
    if chosen == searched:
        least_median = min(contender.median for contender in contenders.values())
        scatter = " beyond the scatter of the rounds"
        beyond = scatter if contenders[chosen].median > least_median else ""
        text = (
            f"{DO_NOT_SPLIT}the search found '{chosen}' alone, and nothing measured is faster"
            f"{beyond}"
        )
    return Verdict(chosen, False, text, contenders)


def _without_equals(
    samples: Mapping[str, Sequence[float]],
    simplest_first: Sequence[str],
    searched: str,
    like_searched: Collection[str],
    most_loss: float,
) -> list[str]:
    """Names of simpler contenders without those of `like_searched` that are not clearly faster.

    One of them stays, too, if the searched placement itself is slower than it by `most_loss`.
    """
    plan, kept = np.asarray(samples[searched]), []
    for name in simplest_first:
        share, _, most = median_interval(np.asarray(samples[name]) / plan)
        is_clear = most < 1 - _LEAST_GAIN or share < 1 - _CLEAR
        is_behind = bool(np.median(plan) > (1 + most_loss) * np.median(samples[name]))
        if name == searched or name not in like_searched or is_clear or is_behind:
            kept.append(name)
    return kept


def median_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Median and its interval of at least 95 % by order statistics, for any distribution.

    Each end has rank `low` from its side, counted from 0. It lies beyond the median if at most
    `low` of n values are on that side of it, which has a binomial probability. The interval of
    fewer than six values reaches from the least to the largest, and its share is smaller.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    n = len(ordered)
    low, ways, below = 0, n, 1 + n  # of 2**n: with low + 1 values below, and with at most so many
    while 40 * below <= 2**n:
        low += 1
        ways = ways * (n - low) // (low + 1)
        below += ways
    return float(np.median(ordered)), float(ordered[low]), float(ordered[n - 1 - low])


def _summary(row: Sequence[float]) -> Timing:
    q1, median, q3 = np.percentile(row, [25, 50, 75])
    return Timing(float(median), float(q3 - q1), len(row))
