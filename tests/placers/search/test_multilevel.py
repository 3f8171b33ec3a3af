"""Levels of groups, and the search from few groups to single units."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from support import toys

from placewright.core.arrays import IntArray, frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.costs import CostTable
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import InputError
from placewright.placers.search.coarsening import levels_of
from placewright.placers.search.multilevel import Multilevel, cycles
from placewright.simulation.evaluator import Evaluator
from placewright.suites.suite.runs import (
    linked_devices,
    random_layered_problem,
    random_series_parallel_problem,
)
from placewright.testing.problems import random_problem


def towers(n_towers: int, length: int) -> Problem:
    """Chains of ops of 1 s whose tensors take 10 s to another device; as many equal devices.

    Their units are numbered across the chains, so that no run of numbers is one chain.
    """
    builder = GraphBuilder()
    tensors = [builder.add_input(0.0) for _ in range(n_towers)]
    for row in range(length):
        for tower in range(n_towers):
            op = builder.add_op(f"op{tower}.{row}", "Op", inputs=[tensors[tower]])
            tensors[tower] = builder.add_tensor(op, 10e9)
    cluster = linked_devices(n_towers)
    costs = CostTable(frozen_floats(np.ones((n_towers * length, n_towers))))
    return Problem.of_ops(builder.build(), cluster, costs)


def searched(
    problem: Problem, evaluations: int, seed: int = 0, placer: Multilevel | None = None
) -> Evaluator:
    evaluator = Evaluator(problem, Budget(evaluations=evaluations))
    (placer or Multilevel()).place(problem, evaluator, np.random.default_rng(seed))
    return evaluator


def is_refinement(fine: IntArray, coarse: IntArray) -> bool:
    """Each group of the fine partition lies within one group of the coarse one."""
    return len(np.unique(np.stack([fine, coarse]), axis=1).T) == len(np.unique(fine))


@pytest.mark.parametrize("seed", range(12))
def test_each_level_is_a_partition_into_larger_groups(seed: int) -> None:
    """Closed under colocation; every group has a device that all of its units may use."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, n_ops=int(rng.integers(5, 60)), n_devices=3)
    levels = levels_of(problem, 3, rng)
    assert levels[0].n_groups == problem.colocation.n_groups
    before = problem.colocation.group_of
    for level in levels:
        assert is_refinement(before, level.group_of)
        assert np.array_equal(np.unique(level.group_of), np.arange(level.n_groups))
        for group in range(level.n_groups):
            classes = problem.colocation.group_of[level.group_of == group]
            common = problem.allowed_by_class[classes].all(axis=0)
            assert np.array_equal(level.allowed[group], common)
        before = level.group_of
    sizes = [level.n_groups for level in levels]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)


def test_neighbours_are_what_exchanges_tensors() -> None:
    """The rows of each level against the edges of the units, looked up one by one."""
    problem = random_series_parallel_problem(np.random.default_rng(3), 80, 2)
    graph = problem.unit_graph
    for level in levels_of(problem, 4, np.random.default_rng(0)):
        expected: list[list[int]] = [[] for _ in range(level.n_groups)]
        for unit in range(problem.n_units):
            for other in graph.successors.row(unit).tolist():
                first, second = int(level.group_of[unit]), int(level.group_of[other])
                if first != second:
                    expected[first].append(second)
                    expected[second].append(first)
        for group, wanted in enumerate(expected):
            row = level.neighbours[level.neighbour_ptr[group] : level.neighbour_ptr[group + 1]]
            assert sorted(row.tolist()) == sorted(dict.fromkeys(wanted))


def test_groups_join_within_devices_only() -> None:
    problem = random_layered_problem(np.random.default_rng(0), 200, 4)
    device_of = np.random.default_rng(1).integers(4, size=200)
    for level in levels_of(problem, 8, np.random.default_rng(2), device_of):
        pairs = np.unique(np.stack([level.group_of, device_of]), axis=1)
        assert pairs.shape[1] == level.n_groups


def test_heavy_edges_join_first() -> None:
    """Four chains of 16 ops become four groups: nothing else exchanges anything."""
    problem = towers(4, 16)
    coarsest = levels_of(problem, 4, np.random.default_rng(0))[-1]
    tower = np.arange(64) % 4
    assert coarsest.n_groups == 4
    assert len(np.unique(np.stack([coarsest.group_of, tower]), axis=1).T) == 4


def test_no_group_fills_a_device() -> None:
    """Sixteen weights of 10 bytes, devices of 80: a quarter is two weights."""
    builder = GraphBuilder()
    tensor = builder.add_input(1.0)
    for index in range(16):
        op = builder.add_op(f"op{index}", "Op", inputs=[tensor], weights=[builder.add_weight(10.0)])
        tensor = builder.add_tensor(op, 1.0)
    cluster = linked_devices(3)
    small = tuple(replace(device, memory_bytes=80.0) for device in cluster.devices)
    costs = CostTable(frozen_floats(np.ones((16, 3))))
    problem = Problem.of_ops(builder.build(), replace(cluster, devices=small), costs)
    for level in levels_of(problem, 2, np.random.default_rng(0)):
        assert np.bincount(level.group_of).max() <= 2


def test_each_tower_gets_a_device_of_its_own() -> None:
    """Eight chains of 32 ops on eight devices: 32 s, and any cut costs 10 s more.

    That is 8 x 32 units, of which a move of a single one never helps.
    """
    evaluator = searched(towers(8, 32), 4000)
    assert evaluator.best_value == pytest.approx(32.0, rel=1e-6)


def test_it_goes_on_from_what_others_found() -> None:
    """Once sampling is done, the incumbent of others is asked about, and then changed."""
    problem = towers(4, 6)
    planted = np.repeat(np.arange(4), 6)
    evaluator = Evaluator(problem)
    settings = Multilevel(groups=4, batch=4, patience=2, kick=1, temperature=0.0, restart=50)
    questions = cycles(problem, settings, lambda: (planted, -1.0), np.random.default_rng(0))
    rows, asked = next(questions), 0
    while not np.array_equal(rows[0], planted):
        rows, asked = questions.send(evaluator.evaluate_many(rows)), asked + 1
        assert asked < 2000
    rows = questions.send(np.array([1.0]))
    assert all(np.count_nonzero(row != planted) > 0 for row in rows)
    assert any(np.count_nonzero(row != planted) < 24 for row in rows)


def test_a_restart_leaves_its_own_incumbent_aside() -> None:
    """Only an incumbent that another search has improved is worth a question again."""
    problem = towers(4, 6)
    planted = np.repeat(np.arange(4), 6)
    settings = Multilevel(groups=8, batch=4, patience=2, kick=1, temperature=0.0, restart=2)
    questions = cycles(problem, settings, lambda: (planted, 1.0), np.random.default_rng(0))
    rows, asked = next(questions), 0
    for _ in range(3000):
        is_planted = len(rows) == 1 and np.array_equal(rows[0], planted)
        asked += is_planted
        rows = questions.send(np.full(len(rows), 1.0 if is_planted else 2.0))
    assert asked == 1


def test_a_second_call_with_the_same_evaluator_goes_on() -> None:
    """Two parts of a budget ask what the whole asks, wherever the break is."""
    problem = random_layered_problem(np.random.default_rng(2), 100, 3)
    whole = searched(problem, 900, seed=4)
    for cut in (1, 49, 333):
        parts = Evaluator(problem, Budget(evaluations=cut))
        rng = np.random.default_rng(4)
        Multilevel().place(problem, parts, rng)
        parts.budget = Budget(evaluations=900)
        Multilevel().place(problem, parts, rng)
        assert [p.value for p in parts.history] == [p.value for p in whole.history]
        assert parts.evaluations == 900


def test_an_evaluator_that_nobody_holds_is_forgotten() -> None:
    """What one turn leaves to the next does not keep the evaluator, which it is found by."""
    evaluator = searched(random_problem(np.random.default_rng(0), constrained=False), 100)
    known = weakref.ref(evaluator)
    del evaluator
    gc.collect()
    assert known() is None


@pytest.mark.parametrize("objective", ["latency", "training", "throughput"])
@pytest.mark.parametrize("seed", range(6))
def test_small_problems_with_constraints(seed: int, objective: str) -> None:
    """Whatever it returns is valid, and without a budget of its own it ends."""
    problem = random_problem(
        np.random.default_rng(seed),
        n_ops=8,
        n_devices=3,
        objective=objective,  # type: ignore[arg-type]
    )
    evaluator = Evaluator(problem)
    found = Multilevel(batches=60).place(problem, evaluator, np.random.default_rng(0))
    if found.placement is not None:
        assert evaluator.simulator.value(found.placement) == found.value


def test_an_incumbent_is_taken_with_its_own_value() -> None:
    """Another lane may find a better one at any time."""
    problem = random_problem(np.random.default_rng(0), n_ops=8, constrained=False)
    evaluator = toys.Busy(problem)
    Multilevel().place(problem, evaluator, np.random.default_rng(0))
    taken = evaluator.memory["multilevel"].incumbents
    assert taken
    for device_of, value in taken:
        assert value == pytest.approx(evaluator.simulator.value(Placement.of(device_of)))


def test_it_ends_where_nothing_can_move() -> None:
    """Every op on its only device: one question, or none where the answer is known."""
    problem = random_layered_problem(np.random.default_rng(0), 20, 1)
    evaluator = searched(problem, 500)
    assert evaluator.evaluations == 1
    Multilevel().place(problem, evaluator, np.random.default_rng(0))
    assert evaluator.evaluations == 1


def test_settings_are_checked() -> None:
    for wrong in ({"groups": 1}, {"batch": 0}, {"temperature": -1.0}, {"restart": 0}):
        with pytest.raises(InputError, match="multilevel"):
            Multilevel(**wrong)  # type: ignore[arg-type]
