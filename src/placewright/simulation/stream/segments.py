"""Segments of a stream: as few compiled calls per device as the placement's dependencies allow.

Under latency a segment ends where another device reads, so that this device's result leaves at
once. In a stream other samples keep that device busy meanwhile, and every call costs its dispatch,
so that segments are merged as far as no two of them come to wait for each other.
"""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.problem import Problem
from placewright.simulation.segments import Segment, segments_of_parts


def stream_segments(problem: Problem, device_of: IntArray) -> tuple[Segment, ...]:
    """Cut a placement into the segments that a stream executes.

    A unit's level is the largest number of device changes on a path to it, raised as far as its
    readers allow. Levels never fall along an edge and rise wherever it changes the device, so units
    of one device and level form a segment, and segments need only segments of lower levels or
    earlier ones of their own device.

    Args:
        problem: what is placed.
        device_of: device of each unit, shape (n_units,).

    Returns:
        Segments by (level, device), an order in which they can execute one after another.
    """
    order = problem.unit_graph.topological_order
    level = _levels(problem, device_of, order)
    position = np.empty(problem.n_units, dtype=np.int64)
    position[order] = np.arange(problem.n_units)
    by_segment = np.lexsort((position, device_of, level))
    parts: list[list[int]] = []
    last = (-1, -1)
    for unit in by_segment.tolist():
        key = int(level[unit]), int(device_of[unit])
        if key != last:
            parts.append([])
            last = key
        parts[-1].append(unit)
    return segments_of_parts(problem, device_of, parts)


def _levels(problem: Problem, device_of: IntArray, order: IntArray) -> IntArray:
    graph = problem.unit_graph
    level = np.zeros(problem.n_units, dtype=np.int64)
    for unit in order.tolist():
        for tensor in graph.op_inputs.row(unit).tolist():
            producer = int(graph.tensor_producers[tensor])
            if producer >= 0:
                change = int(device_of[producer] != device_of[unit])
                level[unit] = max(level[unit], level[producer] + change)
    for unit in order[::-1].tolist():
        latest = [
            level[reader] - int(device_of[reader] != device_of[unit])
            for tensor in graph.op_outputs.row(unit).tolist()
            for reader in graph.tensor_consumers.row(tensor).tolist()
        ]
        if latest:
            level[unit] = min(latest)
    return level
