"""What a device keeps: each entry once, whichever of its units need it."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.core.builder import GraphBuilder
from placewright.core.execution_models import MaxLoad
from placewright.core.residency import kept_of, tensors_of_ops
from placewright.placers.exact.integer_program import Rows
from placewright.testing.problems import random_problem


def test_weights_and_tensors_of_two_samples_by_hand() -> None:
    """a and b share a weight of 10; a makes 3 bytes that b and c read; c keeps 5 of its own.

    Two samples: a needs 10 + 6, b the same, c 5 + 6; a and b together 10 + 6, all of them 21.
    """
    builder = GraphBuilder()
    shared = builder.add_weight(10.0)
    builder.add_op("a", "Op", weights=[shared])
    tensor = builder.add_tensor(0, 3.0)
    builder.add_op("b", "Op", inputs=[tensor], weights=[shared])
    builder.add_op("c", "Op", inputs=[tensor], weights=[builder.add_weight(5.0)])
    graph = builder.build()
    kept = kept_of(graph, MaxLoad(samples_in_flight=2), graph.op_weights)
    assert kept.unit_bytes.tolist() == [16, 16, 11]
    assert kept.bytes_by_label(np.array([0, 0, 1])).tolist() == [16, 11]
    assert kept.total == 21
    assert kept.units.row(2).tolist() == [0, 1, 2]


@pytest.mark.parametrize("seed", range(10))
def test_views_equal_a_plain_account(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, n_ops=7, objective="throughput").with_samples_in_flight(seed % 3)
    graph, label = problem.unit_graph, rng.integers(0, 3, 7)
    label[:3] = [0, 1, 2]
    expected = np.zeros(3)
    for one in range(3):
        entries: dict[tuple[str, int], float] = {}
        for unit in np.flatnonzero(label == one).tolist():
            for weight in graph.op_weights.row(unit).tolist():
                entries["weight", weight] = graph.weight_bytes[weight]
            for tensor in (*graph.op_inputs.row(unit), *graph.op_outputs.row(unit)):
                entries["tensor", int(tensor)] = seed % 3 * graph.tensor_bytes[tensor]
        expected[one] = sum(entries.values())
    assert problem.kept.bytes_by_label(label) == pytest.approx(expected)


def test_without_samples_nothing_is_copied() -> None:
    problem = random_problem(np.random.default_rng(0))
    assert problem.kept.of_units is problem.unit_graph.op_weights
    assert problem.kept.sizes is problem.unit_graph.weight_bytes


def test_a_tensor_that_an_op_reads_twice_is_one() -> None:
    builder = GraphBuilder()
    tensor = builder.add_input(4.0)
    builder.add_op("square", "Mul", inputs=[tensor, tensor])
    assert tensors_of_ops(builder.build()).row(0).tolist() == [tensor]


def test_a_row_that_names_a_column_twice_adds_up() -> None:
    """HiGHS refuses such a matrix, and its branch and bound then never ends."""
    rows = Rows()
    rows.add(0.0, 1.0, [3, 6, 3], [0.5, 1.0, 0.25])
    assert (rows.columns, rows.values, rows.starts) == ([3, 6], [0.75, 1.0], [0, 2])
