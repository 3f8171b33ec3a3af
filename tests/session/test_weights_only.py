"""A search whose sample leaves no room counts weights only, if a stream of what it finds fits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.pipelines import streamed_chain

from placewright.core.execution_models import MaxLoad
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution, Stop
from placewright.errors import InfeasibleError, Interrupted
from placewright.session import search as searching
from placewright.session.search import find_plan
from placewright.session.streams import candidates, played_period
from placewright.simulation.model import Simulator

FEW, LESS = Budget(evaluations=100), Budget(evaluations=99)
UNEVEN = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 3.0)


def found(problem: Problem) -> Any:
    return find_plan(problem, placer="local-search", budget=FEW, again=lambda: FEW)


def kept_bytes(device_of: tuple[int, ...], samples: int) -> list[float]:
    """Weights of 5 bytes; 7 bytes for each tensor that is made or read; the last op reads one."""
    held: list[set[str]] = [set(), set()]
    for op, device in enumerate(device_of):
        held[device] |= {f"w{op}", f"t{op}", *([f"t{op - 1}"] if op else [])}
    return [
        sum(5.0 if entry.startswith("w") else 7.0 * samples for entry in of_device)
        for of_device in held
    ]


def least(samples: int) -> float:
    """Bytes of the fuller device in the best of all 256 placements."""
    rows = itertools.product((0, 1), repeat=8)
    return min(max(kept_bytes(row, samples)) for row in rows)


def test_a_stream_fits_where_all_tensors_of_a_sample_do_not() -> None:
    """Four and four ops: 20 bytes of weights with two tensors, not five, at a time."""
    assert least(samples=1) == 20.0 + 35.0
    plan = found(streamed_chain(50.0))
    assert plan.problem.execution_model == MaxLoad(samples_in_flight=0)
    peaks = Simulator(plan.problem).stream(plan.placement, samples=20, in_flight=1).memory_peaks
    counts = np.bincount(plan.placement.device_of, minlength=2)
    assert peaks.tolist() == [5.0 * count + 14.0 for count in counts.tolist()]
    assert peaks.max() <= 50.0
    assert plan.value == 4.0


def test_nothing_is_counted_anew_where_a_sample_fits() -> None:
    plan = found(streamed_chain(55.0))
    assert plan.problem.execution_model == MaxLoad(samples_in_flight=1)
    assert found(streamed_chain(50.0).with_samples_in_flight(0)).value == 4.0
    with pytest.raises(InfeasibleError, match="samples_in_flight"):
        find_plan(streamed_chain(50.0), placer="local-search", budget=FEW)


def test_a_stream_without_room_is_searched_on_smaller_devices() -> None:
    """Six and two ops take the least time, but 44 bytes; five and three keep 40."""
    problem = streamed_chain(40.0, UNEVEN)
    assert found(problem.with_samples_in_flight(0)).value == 6.0
    plan = found(problem)
    assert sorted(np.bincount(plan.placement.device_of).tolist()) == [3, 5]
    assert (plan.value, plan.lower_bound) == (7.0, pytest.approx(6.0))
    assert plan.problem.cluster == problem.cluster
    with pytest.raises(InfeasibleError) as caught:
        found(streamed_chain(33.0, UNEVEN))
    assert "samples_in_flight" not in str(caught.value)


@pytest.mark.parametrize(("second", "searches"), [(LESS, [FEW, FEW, LESS]), (None, [FEW, FEW])])
def test_each_further_search_gets_what_is_left(
    second: Budget | None, searches: list[Budget], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both got the whole budget, and the second could begin after the total."""
    real, given = searching.search, list[Budget]()
    left: Iterator[Budget | None] = iter([FEW, second])

    def search(problem: Problem, placer: Any, budget: Budget, **named: Any) -> Solution:
        given.append(budget)
        return real(problem, placer, budget, **named)

    monkeypatch.setattr(searching, "search", search)
    problem = streamed_chain(40.0, UNEVEN)
    with suppress(InfeasibleError):
        find_plan(problem, placer="local-search", budget=FEW, again=left.__next__)
    assert given == searches


def test_a_further_search_takes_the_rest_of_the_budget_but_never_nothing() -> None:
    whole = Budget(seconds=10.0, evaluations=50)
    assert searching._left(whole, 4.0) == replace(whole, seconds=6.0)
    assert searching._left(whole, 10.0) == replace(whole, seconds=3.0)
    assert searching._left(FEW, 10.0) == FEW


def test_candidates_for_the_hardware_have_a_stream_that_fits() -> None:
    """Six and two ops are found by others, and have none."""
    plan = found(streamed_chain(40.0, UNEVEN))
    listed = candidates(plan, np.random.default_rng(0), is_counted=True)
    assert all(np.isfinite(played_period(plan.problem, one)) for one in listed)


@pytest.mark.parametrize("objective", ["training", "split phases"])
def test_where_no_stream_can_be_played_nothing_is_counted_anew(objective: str) -> None:
    problem = streamed_chain(50.0)
    changed = (
        replace(problem, objective="training")
        if objective == "training"
        else replace(problem, execution_model=MaxLoad(split_phases=True))
    )
    with pytest.raises(InfeasibleError):
        found(changed)


def test_ctrl_c_in_the_second_search_leaves_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had found breaks the limits of the first."""
    real = searching.search

    def interrupted(problem: Problem, *given: Any, **named: Any) -> Solution:
        solution = real(problem, *given, **named)
        if problem.execution_model == MaxLoad(samples_in_flight=0):
            raise Interrupted(replace(solution, stop=Stop.INTERRUPTED))
        return solution

    monkeypatch.setattr(searching, "search", interrupted)
    with pytest.raises(Interrupted) as caught:
        found(streamed_chain(50.0))
    assert caught.value.solution.stop is Stop.INTERRUPTED
    assert (caught.value.solution.placement, caught.value.plan) == (None, None)
