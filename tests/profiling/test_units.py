"""Units are unions of every device's groups, acyclic, and no coarser than that."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.core.builder import GraphBuilder
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping, quotient
from placewright.profiling.units import common_units


def graph_of(n_ops: int, edges: list[tuple[int, int]]) -> ComputationGraph:
    builder = GraphBuilder()
    x = builder.add_input(4)
    tensors: list[int] = []
    for op in range(n_ops):
        inputs = [tensors[a] for a, b in edges if b == op] or [x]
        builder.add_op(f"op {op}", "Add", inputs=inputs)
        tensors.append(builder.add_tensor(op, 4, is_output=True))
    return builder.build()


def test_groups_of_two_devices_join() -> None:
    """One device fuses 0 with 1, the other 1 with 2: all three are one unit, 3 stays alone."""
    graph = graph_of(4, [(0, 1), (1, 2), (2, 3)])
    fused = [Grouping.from_labels([0, 0, 1, 2]), Grouping.from_labels([0, 1, 1, 2])]
    assert common_units(graph, fused).group_of.tolist() == [0, 0, 0, 1]


def test_a_group_that_is_not_convex_takes_what_lies_between() -> None:
    """0 and 2 are one kernel, 1 reads 0 and feeds 2: it must move with them."""
    graph = graph_of(4, [(0, 1), (1, 2), (0, 2), (2, 3)])
    fused = [Grouping.from_labels([0, 1, 0, 2])]
    assert common_units(graph, fused).group_of.tolist() == [0, 0, 0, 1]


def test_two_groups_that_need_each_other_join() -> None:
    """Kernels {0, 3} and {1, 2} with 0 -> 1 and 2 -> 3: neither can run first."""
    graph = graph_of(4, [(0, 1), (2, 3)])
    fused = [Grouping.from_labels([0, 1, 1, 0])]
    assert common_units(graph, fused).n_groups == 1


def test_without_fusion_every_op_is_a_unit() -> None:
    graph = graph_of(3, [(0, 1), (0, 2)])
    assert common_units(graph, [Grouping.identity(3)]).is_identity


@st.composite
def fusions(draw: st.DrawFn) -> tuple[ComputationGraph, list[Grouping]]:
    n = draw(st.integers(1, 8))
    pairs = [(a, b) for b in range(n) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    labels = st.lists(st.integers(0, n - 1), min_size=n, max_size=n)
    fused = [Grouping.from_labels(draw(labels)) for _ in range(draw(st.integers(1, 2)))]
    return graph_of(n, edges), fused


def partitions(n: int) -> list[list[int]]:
    """All partitions of n nodes, as labels in restricted growth."""
    found: list[list[int]] = [[]]
    for _ in range(n):
        found = [[*row, new] for row in found for new in range(max(row, default=-1) + 2)]
    return found


@settings(max_examples=40)
@given(fusions())
def test_units_are_the_finest_legal_grouping(case: tuple[ComputationGraph, list[Grouping]]) -> None:
    graph, fused = case
    units = common_units(graph, fused)
    quotient(graph, units)  # acyclic
    assert all(is_union(units.group_of.tolist(), one.group_of.tolist()) for one in fused)
    if graph.n_ops > 6:
        return
    finest = max(
        max(labels) + 1
        for labels in partitions(graph.n_ops)
        if all(is_union(labels, one.group_of.tolist()) for one in fused)
        and is_acyclic(graph, labels)
    )
    assert units.n_groups == finest


def is_union(coarse: list[int], fine: list[int]) -> bool:
    return len(set(zip(coarse, fine, strict=True))) == len(set(fine))


def is_acyclic(graph: ComputationGraph, labels: list[int]) -> bool:
    edges = {
        (labels[a], labels[b])
        for a in range(graph.n_ops)
        for b in graph.successors.row(a).tolist()
        if labels[a] != labels[b]
    }
    left = set(labels)
    while left:
        free = {x for x in left if not any(b == x and a in left for a, b in edges)}
        if not free:
            return False
        left -= free
    return True


def test_units_are_numbered_in_topological_order() -> None:
    """Op 2 runs first: its unit is number 0, whatever its index."""
    builder = GraphBuilder()
    x = builder.add_input(4)
    late = builder.add_op("late", "Add")
    early = builder.add_op("early", "Add", inputs=[x])
    builder.connect(builder.add_tensor(early, 4), late)
    builder.add_tensor(late, 4, is_output=True)
    units = common_units(builder.build(), [Grouping.identity(2)])
    assert np.array_equal(units.group_of, [1, 0])
