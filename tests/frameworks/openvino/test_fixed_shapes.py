"""Shapes that are fixed are constants, and bodies of control flow count, in OpenVINO's graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino.op import if_op
from support.openvino_graphs import graph_of_openvino_model

from placewright.frameworks.openvino.reader import fix_shapes


def flattened() -> Any:
    """relu(x) of shape (batch, 2, 3), reshaped by (its own first extent, -1), then added up."""
    op = ov.opset13
    x = op.parameter([-1, 2, 3], np.float32, name="x")
    relu = op.relu(x, name="relu")
    extent = op.gather(op.shape_of(relu), op.constant([0]), op.constant(0))
    shape = op.concat([extent, op.constant(np.array([-1]))], 0)
    rows = op.reshape(relu, shape, special_zero=False, name="rows")
    return ov.Model([op.result(op.reduce_sum(rows, op.constant(1), name="sum"))], [x], "flattened")


def test_a_shape_that_is_fixed_is_a_constant_of_its_readers() -> None:
    model = flattened()
    fix_shapes(model, {"x": (4, 2, 3)})
    graph, _ = graph_of_openvino_model(model, names_are_stored=True)
    assert graph.op_names == ("relu", "rows", "sum")
    assert graph.n_edges == 2
    assert graph.op_weight_bytes.tolist() == [0, 2 * 8, 8]


def test_the_raw_graph_keeps_the_nodes_that_ask_for_a_shape() -> None:
    model = flattened()
    fix_shapes(model, {"x": (4, 2, 3)})
    graph, _ = graph_of_openvino_model(model, names_are_stored=True, fold_constants=False)
    assert "ShapeOf" in graph.op_kinds


def test_a_shape_that_depends_on_data_stays_an_op_and_its_rank_does_not() -> None:
    """NonZero gives (2, ?): its shape is computed, the rank of its shape is known, and what was
    asked for the rank alone is no op."""
    op = ov.opset13
    x = op.parameter([4], np.float32, name="x")
    found = op.non_zero(x, name="found")
    count = op.shape_of(found, name="count")
    rank = op.shape_of(op.shape_of(found, name="for_rank"), name="rank")
    doubled = op.multiply(count, rank, name="doubled")
    model = ov.Model([op.result(doubled), op.result(op.relu(x, name="y"))], [x], "data")
    graph, _ = graph_of_openvino_model(model, names_are_stored=True)
    assert sorted(graph.op_names) == ["count", "doubled", "found", "y"]


def test_numbers_that_a_branch_draws_are_no_constant() -> None:
    """All that the choice reads is constant, and each segment would draw numbers of its own."""
    op = ov.opset13
    x = op.parameter([2, 4], np.float32, name="x")
    entering: list[Any] = []
    bodies: list[Any] = []
    leaving: list[Any] = []
    for name in ("then", "else"):
        inside = op.parameter([2, 4], np.float32)
        bounds = op.constant(np.float32(0)), op.constant(np.float32(1))
        drawn = op.random_uniform(op.constant(np.array([2, 4])), *bounds, "f32")
        result = op.result(op.add(inside, drawn))
        entering.append(inside)
        bodies.append(ov.Model([result], [inside], name))
        leaving.append(result)
    choice = if_op(op.constant(np.array(True)).output(0))
    choice.set_then_body(bodies[0])
    choice.set_else_body(bodies[1])
    choice.set_input(op.constant(np.ones((2, 4), np.float32)).output(0), *entering)
    noisy = op.add(x, choice.set_output(*leaving))
    graph, _ = graph_of_openvino_model(ov.Model([op.result(noisy)], [x], "noisy"))
    assert sorted(graph.op_kinds) == ["Add", "If"]


@pytest.mark.parametrize("element", [np.float32, np.float16])
def test_a_choice_holds_the_constants_of_both_branches_and_counts_the_larger(element: Any) -> None:
    """Those in half precision are kept as f32."""
    op = ov.opset13
    x = op.parameter([2, 4], element, name="x")
    heavy_in, light_in = (op.parameter([2, 4], element) for _ in range(2))
    weight, bias = np.ones((4, 4), element), np.ones((2, 4), element)
    heavy_out = op.result(op.matmul(heavy_in, op.constant(weight), False, False))
    light_out = op.result(op.add(light_in, op.constant(bias)))
    condition = op.greater(op.reduce_sum(x, op.constant([0, 1])), op.constant(np.array(0, element)))
    choice = if_op(condition.output(0))
    choice.set_then_body(ov.Model([heavy_out], [heavy_in], "then"))
    choice.set_else_body(ov.Model([light_out], [light_in], "else"))
    choice.set_input(x.output(0), heavy_in, light_in)
    output = choice.set_output(heavy_out, light_out)
    model = ov.Model([op.result(output)], [x], "choice")
    graph, _ = graph_of_openvino_model(model, names_are_stored=True)
    at = graph.op_kinds.index("If")
    assert graph.op_weight_bytes[at] == 4 * (weight.size + bias.size)
    assert graph.op_flops[at] == 2 * 2 * 4 * 4
