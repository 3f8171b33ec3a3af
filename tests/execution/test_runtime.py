"""Labels of units: equal for equal work on equal weights, and for no other."""

from __future__ import annotations

from placewright.core.builder import GraphBuilder
from placewright.core.grouping import Grouping
from placewright.execution.runtime import unit_labels


def test_units_share_a_label_only_if_their_weights_and_flops_are_equal() -> None:
    """The library's own text of an op may leave open how a weight is packed, or a loop's turns."""
    builder = GraphBuilder()
    tensor = builder.add_input(16)
    rows = [(64, "i8", 8), (64, "i8", 8), (32, "i4", 8), (64, "u8", 8), (64, "i8", 800)]
    for at, (size, dtype, flops) in enumerate(rows):
        weight = builder.add_weight(size, dtype=dtype)
        op = builder.add_op(f"op{at}", "MatMul", inputs=[tensor], flops=flops, weights=[weight])
        tensor = builder.add_tensor(op, 16)
    builder.mark_output(tensor)
    graph = builder.build()
    labels = unit_labels(graph, Grouping.identity(graph.n_ops), ["MatMul"] * graph.n_ops)
    assert labels[0] == labels[1]
    assert len(set(labels)) == 4
