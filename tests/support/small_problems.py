"""Graphs and problems of a few ops, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem


def diamond() -> ComputationGraph:
    """split -> left, right -> join, with a shared weight of left and right."""
    builder = GraphBuilder()
    source = builder.add_input(4)
    shared = builder.add_weight(100)
    split = builder.add_op("split", "Split", inputs=[source], flops=1)
    halves = [builder.add_tensor(split, 8), builder.add_tensor(split, 16)]
    left = builder.add_op("left", "MatMul", inputs=[halves[0]], flops=2, weights=[shared])
    right = builder.add_op("right", "MatMul", inputs=halves, flops=3, weights=[shared, shared])
    outputs = [builder.add_tensor(left, 2), builder.add_tensor(right, 2)]
    join = builder.add_op("join", "Add", inputs=outputs, flops=4)
    builder.add_tensor(join, 4, is_output=True)
    return builder.build()


PAIR = Cluster(
    (Device("cpu:0"), Device("cpu:1", memory_bytes=1e9)),
    (
        Link("cpu:0", "cpu:1", 1e-4, 2e9, "bus"),
        Link("cpu:1", "cpu:0", 2e-4, 1e9, "bus"),
        Link("host", "cpu:0"),
    ),
)


def problem(seconds: list[list[float]], **changes: object) -> Problem:
    graph = diamond()
    units = Grouping.identity(graph.n_ops)
    settings: dict[str, object] = {"cluster": PAIR, **changes}
    return Problem(
        graph,
        costs=CostTable(frozen_floats(seconds)),
        units=units,
        **settings,  # type: ignore[arg-type]
    )


def graph_of(n_ops: int, edges: list[tuple[int, list[int]]], size: float = 4.0) -> ComputationGraph:
    """Ops in order; each entry of `edges` is a producer of one tensor and its readers."""
    builder = GraphBuilder()
    made: list[tuple[int, list[int]]] = []
    for op in range(n_ops):
        reads = [tensor for tensor, readers in made if op in readers]
        builder.add_op(f"op{op}", "Op", inputs=reads)
        for _, readers in [edge for edge in edges if edge[0] == op]:
            made.append((builder.add_tensor(op, size), readers))
    return builder.build()


def problem_of(
    graph: ComputationGraph, seconds: list[list[float]], links: list[Link], **device: float
) -> Problem:
    names = [f"d{index}" for index in range(len(seconds[0]))]
    devices = tuple(replace(Device(name), **device) for name in names)  # type: ignore[arg-type]
    costs = CostTable(frozen_floats(np.array(seconds)))
    return Problem.of_ops(graph, Cluster(devices, tuple(links)), costs)
