"""What is printed of a plan, and hints for a name that is not there."""

from __future__ import annotations

import numpy as np
import pytest
from writers.plans import plan_with

from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Device
from placewright.core.graph import ComputationGraph
from placewright.core.problem import op_named
from placewright.errors import GraphError
from placewright.workflow.describe import plan_lines


def chain(*names: str) -> ComputationGraph:
    builder = GraphBuilder()
    tensor = builder.add_input(4)
    for name in names:
        op = builder.add_op(name, "Add", inputs=[tensor])
        tensor = builder.add_tensor(op, 4, is_output=name == names[-1])
    return builder.build()


def test_one_unit_in_one_segment_is_singular() -> None:
    plan = plan_with(chain("a", "b", "c"), [Device("x"), Device("y")], lambda op: int(op > 0))
    texts = [line.strip().partition(",")[0] for line in plan_lines(plan, "m")[2:]]
    assert texts == ["x: 1 unit in 1 segment", "y: 2 units in 1 segment"]


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("conv", "did you mean block.conv_1"),
        ("block.conv1", "did you mean block.conv_1"),
        ("softmax", "`graph MODEL -o FILE` writes all names"),
    ],
)
def test_an_unknown_op_is_answered_with_near_names_or_where_they_are(wrong: str, hint: str) -> None:
    graph = chain("block.conv_1", "head")
    assert np.all(op_named(graph, "head") == 1)
    with pytest.raises(GraphError, match=f"no op '{wrong}'; {hint}"):
        op_named(graph, wrong)
