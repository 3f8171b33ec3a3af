"""Computation graphs: what the builder makes and which faults it names."""

from __future__ import annotations

import pytest
from support.small_problems import diamond

from placewright.core.builder import GraphBuilder
from placewright.errors import GraphError


def test_builder_links_ops_through_tensors() -> None:
    graph = diamond()
    assert graph.n_ops == 4
    assert graph.n_edges == 5
    assert graph.successors.row(0).tolist() == [1, 2]
    assert graph.predecessors.row(3).tolist() == [1, 2]
    assert graph.op_inputs.row(2).tolist() == [1, 2]
    assert graph.op_outputs.row(0).tolist() == [1, 2]
    assert graph.topological_order.tolist() == [0, 1, 2, 3]
    assert graph.op_weight_bytes.tolist() == [0, 100, 100, 0]


def test_ops_and_tensors_that_are_not_there() -> None:
    builder = GraphBuilder()
    tensor = builder.add_tensor(builder.add_op("a", "Op"), 1.0)
    for wrong in (-1, 7):
        with pytest.raises(GraphError, match=f"op {wrong}, which reads tensor {tensor}"):
            builder.connect(tensor, wrong)
        with pytest.raises(GraphError, match=f"tensor {wrong}, a graph output, is unknown"):
            builder.mark_output(wrong)


def test_arrays_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        diamond().op_flops[0] = 7


def test_a_cycle_is_named_op_by_op() -> None:
    builder = GraphBuilder()
    first, second = builder.add_op("first", "A"), builder.add_op("second", "B")
    builder.connect(builder.add_tensor(first, 1), second)
    builder.connect(builder.add_tensor(second, 1), first)
    with pytest.raises(GraphError, match="'first' -> 'second' -> 'first'"):
        builder.build()


def test_a_name_used_twice_is_named() -> None:
    builder = GraphBuilder()
    builder.add_op("conv", "Convolution")
    builder.add_op("conv", "Convolution")
    with pytest.raises(GraphError, match=r"'conv' is used twice \(ops 0 and 1\)"):
        builder.build()


@pytest.mark.parametrize("flops", [-1.0, float("nan"), float("inf")])
def test_flops_that_make_no_sense_name_the_op(flops: float) -> None:
    builder = GraphBuilder()
    builder.add_op("conv", "Convolution", flops=flops)
    with pytest.raises(GraphError, match="op 'conv': flops"):
        builder.build()


def test_a_tensor_that_nobody_made_is_refused() -> None:
    builder = GraphBuilder()
    with pytest.raises(GraphError, match="'conv' reads tensor 3"):
        builder.add_op("conv", "Convolution", inputs=[3])


def test_an_empty_graph_is_refused() -> None:
    with pytest.raises(GraphError, match="no ops"):
        GraphBuilder().build()


def test_an_op_that_is_refused_is_not_there() -> None:
    builder = GraphBuilder()
    tensor = builder.add_tensor(builder.add_op("a", "Op"), 1.0)
    with pytest.raises(GraphError, match="op 'b' reads tensor 99"):
        builder.add_op("b", "Op", inputs=[tensor, 99])
    builder.add_op("b", "Op", inputs=[tensor])
    graph = builder.build()
    assert graph.op_names == ("a", "b")
    assert graph.n_edges == 1


def test_a_colocation_class_below_none_is_refused() -> None:
    """Any number below 0 is taken for no class."""
    builder = GraphBuilder()
    with pytest.raises(GraphError, match="op 'a': a colocation class must be >= 0, or -1"):
        builder.add_op("a", "Op", colocation=-2)
