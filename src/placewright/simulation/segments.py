"""Segments: consecutive units of one device that run as one compiled call.

For one sample a segment ends after a unit that another device reads, so that its tensors leave at
once. In a stream other samples keep that device busy meanwhile, and every call costs its dispatch,
so that segments are merged as far as no two of them come to wait for each other. One thread that
serves all devices merges what it executes in turn on one of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.placement import Placement
from placewright.core.problem import Problem


@dataclass(frozen=True, eq=False)
class Segment:
    """Units of one device in their order, with the tensors that cross its boundary."""

    device: int  # where it runs
    units: tuple[int, ...]  # in the order of execution
    inputs: tuple[int, ...]  # unit-graph tensors that enter (graph inputs too), ascending
    outputs: tuple[int, ...]  # unit-graph tensors that leave (graph outputs too), ascending


def segments_of(problem: Problem, placement: Placement, order: IntArray) -> tuple[Segment, ...]:
    """Cut an order into segments.

    Along a device's order a segment ends after a unit with a reader on another device, before a
    unit with an input made on another device, and before a unit that would give it more ops than
    the device allows.

    Args:
        order: topological order of all units, shape (n_units,).

    Returns:
        Segments in an order in which they can execute one after another.
    """
    graph, device_of = problem.unit_graph, placement.device_of
    producers = graph.tensor_producers
    readers = graph.tensor_consumers
    edge_tensor = readers.row_of_each()
    made = producers[edge_tensor] >= 0
    sources, targets = producers[edge_tensor][made], readers.indices[made]
    crosses = device_of[sources] != device_of[targets]
    remote_in = np.zeros(problem.n_units, dtype=np.bool_)
    remote_out = np.zeros(problem.n_units, dtype=np.bool_)
    remote_in[targets[crosses]] = True
    remote_out[sources[crosses]] = True
    parts: list[list[int]] = []
    open_part: dict[int, int] = {}
    size = _Sizes(problem)
    for unit in order.tolist():
        device = int(device_of[unit])
        is_full = device in open_part and size.is_full(device, [unit])
        if device not in open_part or remote_in[unit] or is_full:
            open_part[device] = len(parts)
            parts.append([])
            size.begin(device)
        parts[open_part[device]].append(unit)
        size.add(device, [unit])
        if remote_out[unit]:
            del open_part[device]
    # A segment only needs segments that were closed before it opened: opening order executes.
    return segments_of_parts(problem, device_of, parts)


def merged_in_turn(problem: Problem, segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Merge successive segments of one device, as far as the device allows their number of ops.

    One thread executes the segments in turn, so that no other device waits for the first of two.

    Args:
        segments: of a placement, in the order of execution.
    """
    parts: list[list[int]] = []
    devices: list[int] = []
    size = _Sizes(problem)
    for segment in segments:
        is_new = not devices or devices[-1] != segment.device
        if is_new or size.is_full(segment.device, segment.units):
            parts.append([])
            devices.append(segment.device)
            size.begin(segment.device)
        parts[-1] += segment.units
        size.add(segment.device, segment.units)
    device_of = np.empty(problem.n_units, dtype=np.int64)
    for part, device in zip(parts, devices, strict=True):
        device_of[part] = device
    return segments_of_parts(problem, device_of, parts)


class _Sizes:
    """Ops of segments, against the limits of their devices."""

    def __init__(self, problem: Problem) -> None:
        limits = [device.max_segment_ops for device in problem.cluster.devices]
        self._most = [math.inf if limit is None else limit for limit in limits]
        self._ops = np.bincount(problem.units.group_of, minlength=problem.n_units)
        self._held = [0] * problem.n_devices  # ops of the segment that is open on each

    def begin(self, device: int) -> None:
        """Open a segment of a device, without ops."""
        self._held[device] = 0

    def add(self, device: int, units: Sequence[int]) -> None:
        """Add units to the open segment of a device."""
        self._held[device] += int(self._ops[list(units)].sum())

    def is_full(self, device: int, further: Sequence[int]) -> bool:
        """True if further units would give the open segment more ops than its device allows."""
        if math.isinf(self._most[device]):
            return False
        return bool(self._held[device] + self._ops[list(further)].sum() > self._most[device])


def stream_segments(problem: Problem, device_of: IntArray) -> tuple[Segment, ...]:
    """Cut a placement into the segments that a stream executes.

    A unit's level is the largest number of device changes on a path to it, raised as far as its
    readers allow. Levels never fall along an edge and rise wherever it changes the device, so units
    of one device and level form a segment, and segments need only segments of lower levels or
    earlier ones of their own device. A device that limits the ops of a segment runs several of one
    level one after the other.

    Args:
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
    last, size = (-1, -1), _Sizes(problem)
    for unit in by_segment.tolist():
        key = int(level[unit]), int(device_of[unit])
        if key != last or size.is_full(key[1], [unit]):
            parts.append([])
            last = key
            size.begin(key[1])
        parts[-1].append(unit)
        size.add(key[1], [unit])
    return segments_of_parts(problem, device_of, parts)


def segments_of_parts(
    problem: Problem, device_of: IntArray, parts: Sequence[Sequence[int]]
) -> tuple[Segment, ...]:
    """Segments with their boundary tensors from lists of units, each of one device.

    Args:
        device_of: device of each unit, shape (n_units,).
        parts: units of each segment, in the order of execution; every unit once.
    """
    part_of = np.empty(problem.n_units, dtype=np.int64)
    for part, units in enumerate(parts):
        part_of[list(units)] = part
    return tuple(_with_boundary(problem, device_of, units, part_of) for units in parts)


def _with_boundary(
    problem: Problem, device_of: IntArray, units: Sequence[int], part_of: IntArray
) -> Segment:
    graph = problem.unit_graph
    part = int(part_of[units[0]])
    inputs: dict[int, None] = {}
    outputs: dict[int, None] = {}
    for unit in units:
        for tensor in graph.op_inputs.row(unit).tolist():
            producer = int(graph.tensor_producers[tensor])
            if producer < 0 or part_of[producer] != part:
                inputs[tensor] = None
        for tensor in graph.op_outputs.row(unit).tolist():
            leaves = np.any(part_of[graph.tensor_consumers.row(tensor)] != part)
            if leaves or graph.tensor_is_output[tensor]:
                outputs[tensor] = None
    return Segment(
        int(device_of[units[0]]),
        tuple(units),
        tuple(sorted(inputs)),
        tuple(sorted(outputs)),
    )


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
