"""Working memory of units, by hand."""

from __future__ import annotations

import numpy as np

from placewright.core.builder import GraphBuilder
from placewright.core.grouping import Grouping, quotient
from placewright.core.residency import working_bytes


def test_working_memory_of_a_unit_counts_what_lives_inside_at_one_time() -> None:
    builder = GraphBuilder()
    x = builder.add_input(100.0)
    tensors = [x]
    for number, size in enumerate((10.0, 20.0, 40.0, 5.0)):
        op = builder.add_op(f"op{number}", "Op", inputs=[tensors[-1]])
        tensors.append(builder.add_tensor(op, size))
    builder.mark_output(tensors[-1])
    graph = builder.build()
    # One unit of all: x (100, gone after op0) is read by it alone, so that 10 is needed beside x,
    # then 10 + 20 - 100 and so on: the largest is 10, less the output's 5.
    assert working_bytes(graph, Grouping.from_labels(np.zeros(4))).tolist() == [5.0]
    # The last three: their input of 10 goes after op1; 20 at op1, then 20 + 40 - 10 = 50 at op2.
    found = working_bytes(graph, Grouping.from_labels([0, 1, 1, 1]))
    assert found.tolist() == [0.0, 45.0]
    merged = quotient(graph, Grouping.from_labels([0, 1, 1, 1]), found).graph
    assert merged.tensor_bytes.tolist() == [100.0, 10.0, 5.0, 45.0]
    assert merged.tensor_producers.tolist() == [-1, 0, 1, 1]
    assert merged.tensor_consumers.row(3).tolist() == []


def test_an_input_that_another_unit_reads_stays() -> None:
    builder = GraphBuilder()
    x = builder.add_input(100.0)
    first = builder.add_op("first", "Op", inputs=[x])
    a = builder.add_tensor(first, 10.0)
    second = builder.add_op("second", "Op", inputs=[a])
    b = builder.add_tensor(second, 30.0)
    third = builder.add_op("third", "Op", inputs=[x, b])
    builder.mark_output(builder.add_tensor(third, 1.0))
    graph = builder.build()
    found = working_bytes(graph, Grouping.from_labels([0, 0, 1]))
    assert found.tolist() == [10.0, 0.0]  # a and b at one time, b is the output


def test_an_output_that_nobody_reads_goes_at_once() -> None:
    builder = GraphBuilder()
    x = builder.add_input(1.0)
    first = builder.add_op("first", "Op", inputs=[x])
    builder.add_tensor(first, 50.0)
    kept = builder.add_tensor(first, 2.0)
    second = builder.add_op("second", "Op", inputs=[kept])
    builder.mark_output(builder.add_tensor(second, 7.0))
    graph = builder.build()
    assert working_bytes(graph, Grouping.from_labels([0, 0])).tolist() == [45.0]
