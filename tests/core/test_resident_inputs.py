"""Inputs that stay where they are used: no link carries them, and their bytes are resident."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import EVENT, ExecutionModel, MaxLoad
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import InputError, UnknownNameError
from placewright.files.problem_file import problem_text, read_problem, write_problem
from placewright.session.problems import resident
from placewright.simulation.model import Simulator

CACHE, X = 8e9, 1e3  # bytes


def graph_of(*, cache_is_weight: bool = False, cache_is_output: bool = False) -> ComputationGraph:
    """x -> a -> b, c; `b` and `c` read the cache."""
    builder = GraphBuilder()
    inputs = [] if cache_is_weight else [builder.add_input(CACHE, is_output=cache_is_output)]
    weights = [builder.add_weight(CACHE)] if cache_is_weight else []
    x = builder.add_input(X)
    a = builder.add_tensor(builder.add_op("a", "MatMul", inputs=[x]), X)
    for name in ("b", "c"):
        op = builder.add_op(name, "MatMul", inputs=[a, *inputs], weights=weights)
        builder.add_tensor(op, X, is_output=True)
    return builder.build()


def problem_of(graph: ComputationGraph, units: list[int] | None = None) -> Problem:
    devices = (Device("cpu"), Device("gpu:0", "gpu"), Device("gpu:1", "gpu"))
    ends = ("gpu:0", "gpu:1")
    links = tuple(
        Link(one, other, 1e-5, 1e10)
        for one, other in [("cpu", g) for g in ends] + [(g, "cpu") for g in ends]
    )
    grouping = Grouping(np.array(units)) if units else Grouping.identity(graph.n_ops)
    seconds = frozen_floats(np.full((grouping.n_groups, 3), 0.001))
    cluster = Cluster(devices, links, host="cpu")
    return Problem(graph, cluster, CostTable(seconds, "test"), grouping)


@pytest.mark.parametrize("units", [None, [0, 1, 2], [0, 1, 1], [0, 0, 0]])
@pytest.mark.parametrize("model", [EVENT, MaxLoad(0)])
def test_it_is_worth_what_a_weight_is(units: list[int] | None, model: ExecutionModel) -> None:
    """The independent side: the same graph with the cache written as a weight."""
    kept = replace(problem_of(graph_of(), units).under(model), resident_inputs=(0,))
    other = problem_of(graph_of(cache_is_weight=True), units).under(model)
    moved = replace(kept, resident_inputs=())
    for devices in ([0, 1, 2], [1, 1, 1], [0, 0, 0], [2, 1, 1]):
        placement = Placement(np.array(devices[: kept.n_units]))
        (found, bytes_), (expected, expected_bytes) = (
            Simulator(one).value_and_peaks(placement) for one in (kept, other)
        )
        assert found == expected
        assert list(bytes_) == list(expected_bytes)
        if any(devices[: kept.n_units]):
            assert Simulator(moved).value(placement) > found + 0.5


def test_its_bytes_lie_on_each_device_that_reads_it() -> None:
    problem = replace(problem_of(graph_of()), resident_inputs=(0,))
    memory = Simulator(problem).memory_peaks(Placement(np.array([0, 1, 2])))
    assert memory[0] < CACHE
    assert memory[1] >= CACHE
    assert memory[2] >= CACHE


def test_names_are_stored_and_read_again(tmp_path: Path) -> None:
    problem = resident(problem_of(graph_of()), ["input_0"])
    assert problem.resident_inputs == (0,)
    write_problem(tmp_path / "p.json", problem)
    again = read_problem(tmp_path / "p.json")
    assert again.resident_inputs == (0,)
    assert problem_text(again) == problem_text(problem)
    assert resident(again, ["input_1"]).resident_inputs == (0, 1)
    assert "resident" not in problem_text(problem_of(graph_of())), "other files stay as they were"


def test_a_pattern_names_all_inputs_that_fit() -> None:
    problem = problem_of(graph_of())
    assert resident(problem, ["input_*"]).resident_inputs == (0, 1)
    assert resident(problem, ["*_1"]).resident_inputs == (1,)
    with pytest.raises(UnknownNameError, match=r"input 'past_\*'"):
        resident(problem, ["past_*"])


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"input 'cash'; .*available: input_0, input_1"):
        resident(problem_of(graph_of()), ["cash"])


def test_an_input_that_is_an_output_is_refused() -> None:
    with pytest.raises(InputError, match="is an output"):
        resident(problem_of(graph_of(cache_is_output=True)), ["input_0"])
