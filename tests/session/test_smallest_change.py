"""The smallest change that makes a problem feasible, against brute force with the oracle."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import InfeasibleError
from placewright.session.search import place
from placewright.session.smallest_change import (
    DeviceChange,
    LimitChange,
    advice,
    smallest_changes,
    with_copy,
    with_memory,
)
from placewright.simulation.model import Simulator
from placewright.testing.problems import impossible_problem, packing_problem, random_problem
from tests.simulation.oracle import Reference


def _too_small(seed: int) -> Problem | None:
    """A random problem of five ops whose devices are smaller than any placement needs."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, n_ops=5, n_devices=2)
    roomy = with_memory(with_memory(problem, 0, math.inf), 1, math.inf)
    peaks = [peak for _, peak in _outcomes(roomy)]
    if not peaks:
        return None
    most = min(max(peak) for peak in peaks)
    limits = [math.floor(most * share) for share in (0.9, 0.6)]
    small = with_memory(with_memory(problem, 0, limits[0]), 1, limits[1])
    return None if _fits(small) else small


def _outcomes(problem: Problem) -> list[tuple[tuple[int, ...], list[float]]]:
    """All placements that keep every constraint, with peaks, by the oracle."""
    found = []
    for row in itertools.product(range(problem.n_devices), repeat=problem.n_units):
        reference = Reference(problem, Placement.of(row))
        if math.isfinite(reference.value()):
            found.append((row, reference.peaks()))
    return found


def _fits(problem: Problem) -> bool:
    return bool(_outcomes(problem))


def _least_limit(problem: Problem, device: int) -> float:
    peaks = [peak[device] for _, peak in _outcomes(with_memory(problem, device, math.inf))]
    return min(peaks, default=math.inf)


SMALL = [(seed, problem) for seed in range(30) if (problem := _too_small(seed)) is not None][:8]


@pytest.mark.parametrize(("seed", "problem"), SMALL, ids=[str(seed) for seed, _ in SMALL])
def test_limits_and_devices_are_those_of_brute_force(seed: int, problem: Problem) -> None:
    changes = smallest_changes(problem)
    limits = {c.device: c for c in changes if isinstance(c, LimitChange)}
    for device, name in enumerate(problem.cluster.device_names):
        wanted = _least_limit(problem, device)
        assert (name in limits) == math.isfinite(wanted)
        if name in limits:
            assert limits[name].limit == pytest.approx(wanted)
            assert limits[name].is_exact
    found = [c.more for c in changes if isinstance(c, LimitChange)]
    assert found == sorted(found)
    counts = {c.device: c.count for c in changes if isinstance(c, DeviceChange)}
    for device, name in enumerate(problem.cluster.device_names):
        if counts.get(name) == 1:
            assert _fits(with_copy(problem, device))
        else:
            assert not _fits(with_copy(problem, device))


@pytest.mark.parametrize(("seed", "problem"), SMALL[:3], ids=[str(s) for s, _ in SMALL[:3]])
def test_what_is_searched_fits_and_is_bounded(seed: int, problem: Problem) -> None:
    """As large problems are: no enumeration."""
    for change in smallest_changes(problem, most_enumerated=0):
        if not isinstance(change, LimitChange):
            continue
        device = problem.cluster.device(change.device)
        exact = _least_limit(problem, device)
        assert change.at_least <= exact + 1e-9 <= change.limit + 2e-9
        assert _fits(with_memory(problem, device, change.limit))


def test_problems_worked_by_hand() -> None:
    """100 bytes (and 1 of input) fit on a device of 60 or 50 after 41 or 51 more bytes; three
    times 3 bytes on 5 and 5 after one more on either, or on a third device."""
    first = smallest_changes(impossible_problem())
    assert [(c.device, c.more) for c in first if isinstance(c, LimitChange)] == [
        ("a", 41.0),
        ("b", 51.0),
    ]
    assert not [c for c in first if isinstance(c, DeviceChange)]
    packed = smallest_changes(packing_problem())
    assert packed[0] == LimitChange("a", 6.0, 1.0, 6.0)
    assert DeviceChange("a", 1) in packed
    assert advice(packing_problem()) == (
        "the smallest change that fits: --memory a=6B, 1 B more, or one more device like 'a'"
    )


def test_a_search_that_finds_nothing_says_what_would_help() -> None:
    with pytest.raises(InfeasibleError, match=r"smallest change .*: --memory a=6B, 1 B more"):
        place(packing_problem(), budget=Budget(evaluations=50))


def test_enough_problems_are_too_small() -> None:
    assert len(SMALL) >= 5


def test_nothing_is_said_where_something_fits() -> None:
    roomy = replace(packing_problem())
    roomy = with_memory(roomy, 0, 100.0)
    assert smallest_changes(roomy) == ()
    assert advice(roomy) == ""


def test_a_copy_is_linked_as_its_model_is() -> None:
    problem = packing_problem()
    wider = with_copy(problem, 0)
    names = wider.cluster.device_names
    assert names == ("a", "b", "a#2")
    ways = {(link.source, link.destination) for link in wider.cluster.links}
    assert {("a#2", "b"), ("b", "a#2"), ("a", "a#2"), ("a#2", "a")} <= ways
    assert math.isfinite(Simulator(wider).value(Placement.of([0, 1, 2])))
