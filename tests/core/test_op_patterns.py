"""Ops by name, by module path, and by patterns of both."""

from __future__ import annotations

import pytest

from placewright.core.builder import GraphBuilder
from placewright.core.graph import ComputationGraph
from placewright.core.op_patterns import by_op, matching, op_named
from placewright.errors import GraphError

OPS = (
    ("embed", "embedding"),
    ("mm", "layers.0.attention.query"),
    ("softmax", "layers.0.attention"),
    ("mm_1", "layers.0.mlp"),
    ("mm_2", "layers.1.attention.query"),
    ("mm_10", "layers.10.attention.query"),
    ("add", ""),
    ("layers.1", "head"),  # an op that is called as a module
)


@pytest.fixture
def graph() -> ComputationGraph:
    builder = GraphBuilder()
    for name, module in OPS:
        builder.add_op(name, "MatMul", module=module)
    return builder.build()


@pytest.mark.parametrize(
    ("pattern", "ops"),
    [
        ("mm", [1]),
        ("layers.0.attention", [1, 2]),
        ("layers.0", [1, 2, 3]),  # not layers.10
        ("layers", [1, 2, 3, 4, 5]),
        ("layers.?.attention", [1, 2, 4]),
        ("layers.*.query", [1, 4, 5]),
        ("mm*", [1, 3, 4, 5]),
        ("layers.1", [7]),  # the op's own name goes before the module's
        ("*", list(range(8))),
    ],
)
def test_a_name_a_module_and_a_pattern_stand_for_ops(
    graph: ComputationGraph, pattern: str, ops: list[int]
) -> None:
    assert matching(graph, pattern) == ops


@pytest.mark.parametrize(
    ("pattern", "ops"),
    [
        ("layers.0-1.*", [1, 2, 3, 4]),  # all below, as layers.0.* and layers.1.* have them
        ("layers.0-1.*y", [1, 4]),
        ("lay*.0-1.*.query", [1, 4]),
        ("*.2-10.attention", [5]),
        ("layers.0-1", [1, 2, 3, 4, 7]),
    ],
)
def test_a_star_crosses_dots_beside_a_range_as_in_any_pattern(
    graph: ComputationGraph, pattern: str, ops: list[int]
) -> None:
    assert matching(graph, pattern) == ops


def test_a_range_below_a_star_counts_the_numbers_of_all_depths() -> None:
    builder = GraphBuilder()
    for expert in range(4):
        builder.add_op(f"layers.0.experts.{expert}.up", "MatMul")
    assert matching(builder.build(), "*.2-3.up") == [2, 3]


def test_later_modules_win_and_names_of_ops_over_all(graph: ComputationGraph) -> None:
    said = by_op(graph, {"mm": "a", "layers": "b", "layers.0.attention": "c"})
    assert said == {1: "a", 2: "c", 3: "b", 4: "b", 5: "b"}


def test_an_unknown_module_is_refused_with_near_ones(graph: ComputationGraph) -> None:
    with pytest.raises(GraphError, match=r"no op 'layers\.0\.attn'; did you mean .*layers\.0\.att"):
        matching(graph, "layers.0.attn")
    with pytest.raises(GraphError, match=r"no op fits the pattern 'layers\.7\.\*'"):
        matching(graph, "layers.7.*")


def test_a_module_of_several_ops_is_no_op_and_its_ops_are_named(graph: ComputationGraph) -> None:
    with pytest.raises(GraphError, match=r"'layers\.0' is a module of 3 ops; .*'mm_1'"):
        op_named(graph, "layers.0")
    assert graph.op_names[op_named(graph, "layers.0.mlp")] == "mm_1"


@pytest.mark.parametrize("pattern", ["layers.1-11", "layers.1-11.*.query", "layers.1-0.attention"])
def test_a_range_beyond_all_numbers_is_refused_with_those_that_are(
    graph: ComputationGraph, pattern: str
) -> None:
    assert matching(graph, "layers.1-10.*.query") == [4, 5]
    with pytest.raises(GraphError, match=r"is no range of layers\.0 to layers\.10"):
        matching(graph, pattern)
