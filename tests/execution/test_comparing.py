"""Errors of outputs and of updates: what is rounding, and what is a step that did not happen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from execution.adding import Adding, layered
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from placewright.core.graph import ComputationGraph
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.execution.comparing import compare_outputs, update_error
from placewright.execution.output_check import relative_error


def parameters(seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal((20, 30)).astype(np.float32)


def test_a_missing_update_is_an_error_of_one() -> None:
    """The change is a hundred thousandth of the parameter, far below what an output may be off."""
    before = parameters()
    after = before - np.float32(1e-5) * parameters(1)
    assert relative_error(before, after) < 2e-4
    assert 0.9 < update_error(before, before, after) <= 1.0
    half = before + (after - before) / 2
    assert 0.4 < update_error(before, half, after) < 0.6


@given(seed=st.integers(0, 1000), size=st.sampled_from([1e-6, 1e-4, 1e-2, 1.0]))
def test_rounding_is_no_error(seed: int, size: float) -> None:
    """The same update added in one more step of rounding."""
    before = parameters(seed)
    change = size * parameters(seed + 1).astype(np.float64)
    once = (before + change).astype(np.float32)
    twice = (before + (0.5 * change).astype(np.float32) + (0.5 * change).astype(np.float32)).astype(
        np.float32
    )
    assert update_error(before, twice, once) < 2e-4


def test_a_large_element_does_not_hide_the_updates_of_small_ones() -> None:
    """A table of embeddings moves by less than its largest element is rounded."""
    before = np.random.default_rng(0).standard_normal((2000, 64)).astype(np.float32)
    change = np.float32(1e-7) * np.random.default_rng(1).standard_normal((2000, 64))
    once, twice = ((before - k * change).astype(np.float32) for k in (1, 2))
    assert float(np.abs(once - before).max()) < 2.0 * np.finfo(np.float32).eps * before.max()
    assert update_error(before, before, once) > 0.1, "missing"
    assert update_error(before, twice, once) > 0.1, "doubled"
    assert update_error(before, once, once) == 0.0
    half = before.astype(np.float16)
    after = half - np.float16(1e-3)
    assert after.dtype == np.float16
    assert update_error(half, half, after) > 3e-2


def test_updates_of_complex_state_count_in_both_parts() -> None:
    before = (parameters() + 1j * parameters(1)).astype(np.complex64)
    after = before + np.complex64(1e-3j)
    assert update_error(before, before, after) > 0.9
    assert update_error(before, after, after) == 0.0


def test_rounding_of_bfloat16_state_is_no_error() -> None:
    """Its arrays are float32, in which the same difference is one."""
    before = as_bfloat16(parameters())
    change = 1e-2 * parameters(1)
    once = as_bfloat16(before + change)
    twice = as_bfloat16(as_bfloat16(before + change / 2) + change / 2)
    eps = 2.0**-7
    assert update_error(before, twice, once, eps) == 0.0
    assert update_error(before, twice, once) > 0.1
    moved = as_bfloat16(before + np.float32(0.3))
    assert update_error(before, before, moved, eps) > 0.5, "a missing update is one"


def as_bfloat16(values: NDArray[Any]) -> NDArray[np.float32]:
    """Values rounded to the upper half of their bits."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def test_what_must_stay() -> None:
    """No change was expected: none is no error, any is one."""
    before = parameters()
    assert update_error(before, before.copy(), before.copy()) == 0.0
    assert update_error(before, before + np.float32(1e-3), before) > 100.0


def test_other_shapes_and_numbers_that_are_none() -> None:
    before = parameters()
    assert update_error(before, before[:5], before) == float("inf")
    broken = before.copy()
    broken[0, 0] = np.nan
    assert update_error(before, broken, before) == float("inf")


def test_infinite_state_hides_no_wrong_update() -> None:
    """A running maximum begins at -inf, a mask keeps it."""
    before, after = parameters(), parameters() + np.float32(1.0)
    before[0, 0] = after[0, 0] = -np.inf  # stays
    wrong = after.copy()
    wrong[3, 3] = before[3, 3]
    assert 0.9 < update_error(before, wrong, after) <= 1.1
    before[1, 1] = -np.inf  # becomes finite
    assert 0.9 < update_error(before, wrong, after) <= 1.1
    assert update_error(before, after, after) == 0.0
    wrong = after.copy()
    wrong[1, 1] += 99.0
    assert update_error(before, wrong, after) > 1.0


class Rounding(Adding):
    """Its own library returns another number, at one level only."""

    def __init__(self, graph: ComputationGraph) -> None:
        super().__init__(graph)
        self.asked: list[list[str]] = []  # devices whose levels were asked for

    def tolerance(self, devices: Any) -> float:
        return 1e-4

    def plain(self, device: Any) -> Any:
        return lambda inputs: [np.array(99.0)]

    def plain_at_other_levels(self, devices: Any) -> Any:
        self.asked.append([device.name for device in devices])
        return iter(())


@pytest.mark.parametrize(
    ("placed", "used"), [([0, 0], "a"), ([1, 1], "ab"), ([2, 1], "abc"), ([0, 2], "ac")]
)
def test_outputs_are_judged_by_the_precisions_of_the_devices_that_run(
    placed: list[int], used: str
) -> None:
    """A wrong split in f32 was excused by the scatter of a device in bf16 that it does not use."""
    graph = layered([(0, 1)], 2)
    problem = Problem.from_costs(graph, np.ones((2, 3)), (0.0, 1e9), devices=("a", "b", "c"))
    model: Any = Rounding(graph)
    found = compare_outputs(problem, Placement.of(np.array(placed)), model, inputs=[np.array(1.0)])
    assert not found.equal
    assert sorted(set(model.asked[0])) == list(used)


class Undecided(Rounding):
    """Its own library returns these whole numbers, run by run, and another at another level."""

    def __init__(self, graph: ComputationGraph, runs: Sequence[int], level: int) -> None:
        super().__init__(graph)
        self.runs, self.level = iter(runs), level

    def plain(self, device: Any) -> Any:
        return lambda inputs: [np.array(next(self.runs))]

    def plain_at_other_levels(self, devices: Any) -> Any:
        yield lambda inputs: [np.array(self.level)]


@pytest.mark.parametrize(("runs", "left_open"), [((5, 6, 7), 0), ((5, 5, 5), 1)])
def test_an_output_without_a_value_to_compare_is_named(
    runs: tuple[int, ...], left_open: int
) -> None:
    """Values of random outputs were counted as left open by other levels."""
    graph = layered([(0, 1)], 2)
    problem = Problem.from_costs(graph, np.ones((2, 2)), (0.0, 1e9))
    model: Any = Undecided(graph, runs, 9)
    placement = Placement.of(np.array([0, 1]))
    found = compare_outputs(problem, placement, model, inputs=[np.array(1.0)])
    assert (len(found.random), found.disputed, found.error) == (1, left_open, 0.0)
