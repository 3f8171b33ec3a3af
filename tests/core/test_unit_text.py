"""Words for units, and the largest of them."""

from __future__ import annotations

from placewright.core.builder import GraphBuilder
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping, largest_unit, unit_text


def chain(n_ops: int) -> ComputationGraph:
    """Ops a, b, ... in a row; b costs most. All read one weight of 8 bytes, the last one of 2."""
    builder = GraphBuilder()
    shared, own = builder.add_weight(8.0), builder.add_weight(2.0)
    tensor = builder.add_input(4.0)
    for op in range(n_ops):
        weights = [shared, own] if op == n_ops - 1 else [shared]
        flops = 5.0 if op == 1 else 1.0
        added = builder.add_op("abcdefgh"[op], "Add", inputs=[tensor], flops=flops, weights=weights)
        tensor = builder.add_tensor(added, 4.0, is_output=True)
    return builder.build()


def test_a_unit_is_named_by_its_costliest_op_and_some_others() -> None:
    units = Grouping.from_labels([0, 0, 1, 2, 2, 2, 2, 2])
    graph = chain(8)
    assert unit_text(graph, units, 1) == "op 'c'"
    assert unit_text(graph, units, 0) == "the unit of op 'b' with 'a'"
    assert unit_text(graph, units, 2) == "the unit of op 'd' with 'e', 'f', 'g' and 'h'"
    whole = Grouping.from_labels([0] * 8)
    assert unit_text(graph, whole, 0) == "the unit of op 'b' with 'a', 'c', 'd', 'e' and 3 more ops"


def test_the_largest_unit_has_the_most_weights_each_once() -> None:
    found = largest_unit(chain(5), Grouping.from_labels([0, 0, 0, 1, 1]))
    assert (found.op, found.n_ops, found.weight_bytes) == ("d", 2, 10.0)
    assert found.text == "largest unit: 2 ops around 'd' with 10 B of weights"
