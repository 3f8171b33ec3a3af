"""Contenders that drive each other's weights out of a processor's caches."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from placewright.execution.requests import Execution
from placewright.profiling.hardware import measure_interleaved, warm_requests, warm_time

_COLD = (1.4, 1.35, 1.25, 1.15, 1.1, 1.05, 1.02, 1.01)  # of the runs behind another contender's


class Cached:
    """A runner whose computing is slow until its weights are in the caches; dispatch is not."""

    def __init__(self, caches: dict[str, Any], computing: float, dispatch: float) -> None:
        self.caches, self.computing, self.dispatch = caches, computing, dispatch
        self.timed = 0

    def run(self, inputs: Any) -> Execution:
        return Execution((), {}, self._seconds(), ())

    def time(self, runs: int) -> list[float]:
        self.timed += runs
        return [self._seconds() for _ in range(runs)]

    def _seconds(self) -> float:
        if self.caches.get("of") is not self:
            self.caches.update(of=self, runs=0)
        cold = _COLD[self.caches["runs"]] if self.caches["runs"] < len(_COLD) else 1.0
        self.caches["runs"] += 1
        return self.computing * cold + self.dispatch


def test_contenders_are_as_fast_in_turns_as_each_in_a_loop_of_its_own() -> None:
    """In a turn of two runs, the split would seem faster by half of its dispatch."""
    caches: dict[str, Any] = {}
    runners: Any = {"plan": Cached(caches, 0.005, 0.0015), "cpu:0": Cached(caches, 0.005, 0.0)}
    samples = measure_interleaved(runners, [], rounds=9)
    ratios = [a / b for a, b in zip(samples["plan"], samples["cpu:0"], strict=True)]
    assert statistics.median(ratios) == pytest.approx(0.0065 / 0.005, rel=0.01)


@pytest.mark.parametrize(("seconds", "runs"), [(2.0, 1), (0.1, 1), (0.06, 2), (0.006, 8), (0, 51)])
def test_a_turn_is_forty_milliseconds_and_the_request_that_counts(
    seconds: float, runs: int
) -> None:
    runner: Any = Cached({}, seconds, 0.0)
    warm_time(runner, seconds)
    assert runner.timed == warm_requests(seconds) == runs


def test_a_turn_of_a_plan_that_is_slower_than_expected_ends() -> None:
    """As of one on a processor whose reference is a hundred times as fast on a card."""
    runner: Any = Cached({}, 0.11, 0.0)
    warm_time(runner, 0.001)
    assert runner.timed == 2


def test_the_limit_on_all_rounds_counts_whole_turns() -> None:
    caches: dict[str, Any] = {}
    runners: Any = {name: Cached(caches, 0.01, 0.0) for name in ("plan", "cpu:0")}
    samples = measure_interleaved(runners, [], rounds=100, seconds=2.0)
    turns = sum(runner.timed for runner in runners.values())
    assert len(samples["plan"]) > 9
    assert turns * 0.01 < 2.5
