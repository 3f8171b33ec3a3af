"""Working memory of units, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placewright.core.arrays import Csr, frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping, quotient
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.residency import working_bytes
from placewright.errors import CostError
from placewright.files.problem_file import read_problem, write_problem
from placewright.simulation.model import Simulator
from placewright.testing.problems import random_problem


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


def test_what_an_op_takes_besides_counts_while_it_runs() -> None:
    builder = GraphBuilder()
    tensors = [builder.add_input(100.0)]
    for number, size in enumerate((10.0, 20.0, 40.0, 5.0)):
        op = builder.add_op(f"op{number}", "Op", inputs=[tensors[-1]])
        tensors.append(builder.add_tensor(op, size))
    builder.mark_output(tensors[-1])
    graph = builder.build()
    besides = np.array([7.0, 0.0, 0.0, 60.0])
    # In one unit of the last three, its input of 10 and op1's 20 are gone at op3: 40 - 10 + 5 + 60
    # less the output's 5 are more than the 45 of op2.
    found = working_bytes(graph, Grouping.identity(4), besides)
    assert found.tolist() == [7.0, 0.0, 0.0, 60.0]
    found = working_bytes(graph, Grouping.from_labels([0, 1, 1, 1]), besides)
    assert found.tolist() == [7.0, 90.0]


def test_a_problem_plays_with_what_its_ops_take_besides(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    plain = random_problem(rng, n_ops=6, n_devices=1)
    besides = np.zeros(plain.graph.n_ops)
    placement = Placement.of(np.zeros(plain.n_units, dtype=np.int64))
    before = float(Simulator(plain).memory_peaks(placement)[0])
    besides[2] = 10.0 * before
    problem = replace(plain, inner_tensors=True, op_working_bytes=besides)
    peak = float(Simulator(problem).memory_peaks(placement)[0])
    assert 10.0 * before < peak <= 11.0 * before
    write_problem(tmp_path / "problem.json", problem)
    again = read_problem(tmp_path / "problem.json")
    assert again.op_working_bytes is not None
    assert again.op_working_bytes.tolist() == besides.tolist()
    assert float(Simulator(again).memory_peaks(placement)[0]) == peak
    for wrong in (besides[:-1], -besides, np.full(plain.graph.n_ops, np.inf)):
        with pytest.raises(CostError, match="one per op, none below 0"):
            replace(plain, inner_tensors=True, op_working_bytes=wrong)


def test_working_memory_counts_where_readers_stand_in_another_order() -> None:
    """A file may list the readers of a tensor in the order in which they read it."""
    builder = GraphBuilder()
    tensor = builder.add_input(8.0)
    for name in "abc":
        builder.add_op(name, "Op", inputs=[tensor])
    for at in range(3):
        builder.add_tensor(at, 4.0, is_output=True)
    plain = builder.build()
    rows = [plain.tensor_consumers.row(at).tolist() for at in range(plain.n_tensors)]
    rows[0] = [2, 0, 1]
    graph = replace(plain, consumers_as_read=Csr.from_rows(rows))
    costs = CostTable(frozen_floats(np.ones((3, 1))))
    cluster = Cluster((Device("a"),), (), host="a")
    placement = Placement.of(np.zeros(3, dtype=np.int64))
    peaks = []
    for one in (plain, graph):
        problem = replace(
            Problem.of_ops(one, cluster, costs),
            inner_tensors=True,
            op_working_bytes=np.array([0.0, 100.0, 0.0]),
        )
        peaks.append(float(Simulator(problem).memory_peaks(placement)[0]))
    assert peaks[0] == peaks[1] > 100.0


def test_an_op_without_tensors_has_working_memory() -> None:
    """No tensor of the graph is behind that of the working bytes."""
    builder = GraphBuilder()
    builder.add_op("a", "Op")
    problem = Problem.from_costs(
        builder.build(), [[1.0]], (0.0, 1.0), op_working_bytes=np.array([8.0]), inner_tensors=True
    )
    assert problem.unit_graph.tensor_bytes.tolist() == [8.0]
    assert problem.unit_quotient.tensor_of.tolist() == [-1]
    assert Simulator(problem).value(Placement.of([0])) == 1.0
