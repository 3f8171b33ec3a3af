"""How units become groups, by hand on small graphs."""

from __future__ import annotations

import dataclasses

import numpy as np
from support import toys

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.placers.learned.shared.features import fractal_dimension, group_adjacency
from placewright.placers.learned.shared.grouping import (
    ActionSpace,
    chain_grouping,
    fixpoint_grouping,
    neighbour_merge,
)


def problem_of(edges: list[tuple[int, int]], n: int) -> Problem:
    builder = GraphBuilder()
    tensors = []
    for op in range(n):
        builder.add_op(f"op{op}", "Op", inputs=[tensors[a] for a, b in edges if b == op])
        tensors.append(builder.add_tensor(op, 8.0, shape=(2,), is_output=op == n - 1))
    costs = CostTable(frozen_floats(np.ones((n, 2))))
    return Problem.of_ops(builder.build(), toys.cluster_of(2), costs)


DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3)]


def test_the_published_fixpoint_swallows_a_graph_with_one_output() -> None:
    """1 and 2 join 3, then 0's only reader is that group."""
    assert fixpoint_grouping(problem_of(DIAMOND, 4)).n_groups == 1


def test_at_the_fixpoint_no_group_has_a_single_reader() -> None:
    """0 -> 1 -> {2, 3}: 0 joins 1; two sinks keep what feeds both apart."""
    problem = problem_of([(0, 1), (1, 2), (1, 3), (3, 4)], 5)
    grouping = fixpoint_grouping(problem)
    assert grouping.group_of.tolist() == [0, 0, 1, 2, 2]
    readers = (group_adjacency(problem, grouping) > 0).sum(axis=1)
    assert not np.any(readers == 1)


def test_chains_keep_branches_apart() -> None:
    assert chain_grouping(problem_of(DIAMOND, 4)).group_of.tolist() == [0, 1, 2, 3]


def test_neighbours_merge_to_the_number_asked_for() -> None:
    problem = problem_of([(i, i + 1) for i in range(9)], 10)
    assert neighbour_merge(problem, Grouping.identity(10), 4).n_groups == 4


def test_a_group_never_fills_more_than_a_quarter_of_a_device() -> None:
    builder = GraphBuilder()
    tensor = None
    for op in range(8):
        weight = builder.add_weight(100.0)
        inputs = [] if tensor is None else [tensor]
        builder.add_op(f"op{op}", "Op", inputs=inputs, weights=[weight])
        tensor = builder.add_tensor(op, 1.0, is_output=op == 7)
    costs = CostTable(frozen_floats(np.ones((8, 2))))
    problem = Problem.of_ops(builder.build(), toys.cluster_of(2, memory_bytes=800.0), costs)
    assert np.bincount(fixpoint_grouping(problem).group_of).max() == 2


def test_units_that_cannot_follow_their_group_go_home() -> None:
    problem = problem_of([(0, 1), (1, 2)], 3)
    costs = CostTable(frozen_floats([[1.0, 1.0], [1.0, np.inf], [1.0, 1.0]]))
    space = ActionSpace(dataclasses.replace(problem, costs=costs), Grouping.from_labels([0, 0, 0]))
    assert space.allowed.tolist() == [[True, False]]
    assert space.expand(np.array([1])).tolist() == [1, 0, 1]


def test_fractal_dimension_of_a_chain_is_one() -> None:
    """From the first of 5 nodes in a row N(r) = r for r = 1..4."""
    edges = np.array([[0, 1, 2, 3], [1, 2, 3, 4]])
    assert np.isclose(fractal_dimension(edges, 5)[0], 1.0)
    assert fractal_dimension(edges, 5)[4] == 0.0
