"""An independent check of timelines and loads, which shares no code with the kernels.

It recomputes from the problem's own data what design and paper say must hold, so that a wrong
kernel cannot confirm itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.simulation.timeline import Timeline

_TOLERANCE = 1e-9


def check_legal(problem: Problem, placement: Placement) -> None:
    """Check that a placement is complete, supported, pinned, colocated and ordered.

    Raises:
        AssertionError: a constraint is broken.
    """
    device_of = placement.device_of
    assert device_of.shape == (problem.n_units,), "the placement is not complete"
    assert ((device_of >= 0) & (device_of < problem.n_devices)).all(), "unknown device"
    seconds = problem.costs.seconds[np.arange(problem.n_units), device_of]
    assert np.isfinite(seconds).all(), "a unit is on a device that cannot run it"
    for op, device in problem.pins.items():
        assert device_of[problem.units.group_of[op]] == device, f"pin of op {op} is broken"
    classes = problem.graph.op_colocation
    of_op = device_of[problem.units.group_of]
    for label in np.unique(classes[classes >= 0]).tolist():
        assert len(np.unique(of_op[classes == label])) == 1, f"class {label} is split"
    if placement.order is not None:
        _check_order(problem, placement.order)


def check_timeline(problem: Problem, placement: Placement, timeline: Timeline) -> None:
    """Check overlaps, inputs, durations, outputs and memory of a timeline.

    Raises:
        AssertionError: the timeline contradicts the problem.
    """
    start, end = timeline.start, timeline.end
    for device, spec in enumerate(problem.cluster.devices):
        _check_capacity(np.flatnonzero(placement.device_of == device), start, end, spec.streams)
    for users in _users(problem).values():
        _check_capacity(np.flatnonzero(np.isin(placement.device_of, users)), start, end, 1)
    arrived = _check_transfers(problem, placement, timeline)
    graph = problem.unit_graph
    host = problem.cluster.host_endpoint
    for unit in range(problem.n_units):
        device = int(placement.device_of[unit])
        least = float(problem.costs.seconds[unit, device])
        assert end[unit] - start[unit] >= least - _TOLERANCE, f"unit {unit} is too short"
        for tensor in graph.op_inputs.row(unit).tolist():
            producer = int(graph.tensor_producers[tensor])
            source = host if producer < 0 else int(placement.device_of[producer])
            made = 0.0 if producer < 0 else float(end[producer])
            assert source == device or (tensor, device) in arrived, f"tensor {tensor} never arrives"
            at = made if source == device else arrived[tensor, device]
            assert start[unit] >= at - _TOLERANCE, f"unit {unit} begins before tensor {tensor}"
    for tensor in np.flatnonzero(graph.tensor_is_output).tolist():
        producer = int(graph.tensor_producers[tensor])
        if producer >= 0 and placement.device_of[producer] != host:
            assert (tensor, host) in arrived, f"output tensor {tensor} never reaches the host"
    last = max([float(end.max()), *(hop.end for hop in timeline.transfers)])
    assert abs(timeline.value - last) <= _TOLERANCE * (1 + last), "the makespan is not the last end"
    _check_memory(problem, placement, timeline)
    _check_segments(problem, placement, timeline)


def check_max_load(problem: Problem, placement: Placement, value: float) -> None:
    """Check that no device computes for longer than the value.

    Raises:
        AssertionError: the value contradicts the loads.
    """
    least = 0.0
    total = 0.0
    keeps: list[float] = []
    for device, spec in enumerate(problem.cluster.devices):
        mine = placement.device_of == device
        load = float(problem.costs.seconds[mine, device].sum()) / spec.streams / spec.replicas
        least, total = max(least, load), total + load
        kept = _resident(problem, placement.device_of, device)
        kept += _samples(problem) * _sample_bytes(problem, placement.device_of, device)
        assert kept <= spec.memory_bytes + _TOLERANCE
        keeps.append(kept)
    _check_pools(problem, keeps)
    for users in _users(problem).values():
        units = np.flatnonzero(np.isin(placement.device_of, users))
        least = max(least, float(problem.costs.seconds[units, placement.device_of[units]].sum()))
    factor = 1 - _TOLERANCE
    assert value >= least * factor, f"value {value} is below a device's compute {least}"
    if len(np.unique(placement.device_of)) == 1 and problem.cluster.host_endpoint in (
        placement.device_of[0],
    ):
        assert abs(value - total) <= _TOLERANCE * (1 + total), "one device computes and that is all"


def _users(problem: Problem) -> dict[str, list[int]]:
    """Devices of each processor of several devices."""
    users: dict[str, list[int]] = {}
    for device, spec in enumerate(problem.cluster.devices):
        for name in spec.processors or (spec.name,):
            users.setdefault(name, []).append(device)
    return {name: devices for name, devices in users.items() if len(devices) > 1}


def _check_order(problem: Problem, order: IntArray) -> None:
    assert sorted(order.tolist()) == list(range(problem.n_units)), "the order is no permutation"
    position = np.argsort(order)
    graph = problem.unit_graph
    for tensor in range(graph.n_tensors):
        producer = int(graph.tensor_producers[tensor])
        for consumer in graph.tensor_consumers.row(tensor).tolist():
            assert producer < 0 or position[producer] < position[consumer], "order breaks an edge"


def _check_capacity(units: IntArray, start: np.ndarray, end: np.ndarray, streams: int) -> None:
    for unit in units.tolist():
        running = (start[units] <= start[unit]) & (end[units] > start[unit] + _TOLERANCE)
        assert int(running.sum()) <= streams, f"too many units run beside unit {unit}"


def _check_transfers(
    problem: Problem, placement: Placement, timeline: Timeline
) -> dict[tuple[int, int], float]:
    """First arrival of each (tensor, endpoint); hops on one channel never overlap if they queue."""
    arrived: dict[tuple[int, int], float] = {}
    busy: dict[int, float] = {}
    graph, own = problem.unit_graph, problem.unit_transfer_seconds
    host, queues = problem.cluster.host_endpoint, problem.cluster.link_queues
    # Of hops at one instant, those from the host last: they may carry on what others bring there.
    for hop in sorted(timeline.transfers, key=lambda hop: (hop.start, hop.end, hop.source == host)):
        ends = hop.source, hop.destination
        if queues[ends]:
            assert hop.start >= busy.get(hop.channel, 0.0) - _TOLERANCE, "transfers overlap"
            busy[hop.channel] = hop.end
        size = float(graph.tensor_bytes[hop.tensor])
        linked = problem.cluster.link_latency[ends]
        linked += size * problem.cluster.link_seconds_per_byte[ends]
        seconds = float(linked) if own is None else float(own[hop.tensor])
        if problem.cluster.occupied[ends]:
            seconds = 0.0  # the copy is part of a unit
        assert abs(hop.end - hop.start - seconds) <= _TOLERANCE * (1 + hop.end), "wrong duration"
        producer = int(graph.tensor_producers[hop.tensor])
        home = host if producer < 0 else int(placement.device_of[producer])
        made = 0.0 if producer < 0 else float(timeline.end[producer])
        assert hop.source == home or (hop.tensor, hop.source) in arrived, "a tensor was never there"
        at = made if hop.source == home else arrived[hop.tensor, hop.source]
        assert hop.start >= at - _TOLERANCE, "a tensor leaves before it is there"
        there = (hop.tensor, hop.destination)  # an output may reach the host a second time
        arrived[there] = min(arrived.get(there, hop.end), hop.end)
    return arrived


def _check_memory(problem: Problem, placement: Placement, timeline: Timeline) -> None:
    for device, spec in enumerate(problem.cluster.devices):
        peak = float(timeline.memory_peaks[device])
        assert peak <= spec.memory_bytes + _TOLERANCE, f"device {device} is over its memory"
        held = _resident(problem, placement.device_of, device)
        assert peak >= held - _TOLERANCE, f"the peak of device {device} is below what it keeps"
    _check_pools(problem, timeline.memory_peaks.tolist())


def _check_segments(problem: Problem, placement: Placement, timeline: Timeline) -> None:
    """No device runs more segments than it may, and none longer than it may, but single units."""
    for device, spec in enumerate(problem.cluster.devices):
        units = np.flatnonzero(placement.device_of == device)
        segments = timeline.segment_of[units]
        if spec.max_segments is not None:
            assert len(np.unique(segments)) <= spec.max_segments, f"device {device}: segments"
        for segment in np.unique(segments) if spec.max_segment_ops is not None else ():
            mine = units[segments == segment]
            n_ops = int(np.isin(problem.units.group_of, mine).sum())
            is_short = len(mine) == 1 or n_ops <= (spec.max_segment_ops or n_ops)
            assert is_short, f"device {device}: segment {segment} has {n_ops} ops"


def _check_pools(problem: Problem, peaks: Sequence[float]) -> None:
    """Assert that the peaks of a pool's devices fit into it together."""
    cluster = problem.cluster
    for name, size in cluster.pools.items():
        taken = sum(
            peak * device.replicas * device.pool_shares.get(name, 0.0)
            for peak, device in zip(peaks, cluster.devices, strict=True)
        )
        assert taken <= size + _TOLERANCE, f"pool '{name}' is over its memory"


def _resident(problem: Problem, device_of: IntArray, device: int) -> float:
    weights = problem.counted_weights
    kept = np.unique(weights.indices[device_of[weights.row_of_each()] == device])
    return float(problem.unit_graph.weight_bytes[kept].sum())


def _sample_bytes(problem: Problem, device_of: IntArray, device: int) -> float:
    """Bytes of all tensors that the device makes or reads, each once."""
    graph, total = problem.unit_graph, 0.0
    for tensor, size in enumerate(graph.tensor_bytes.tolist()):
        users = [int(graph.tensor_producers[tensor]), *graph.tensor_consumers.row(tensor).tolist()]
        total += size if any(user >= 0 and device_of[user] == device for user in users) else 0.0
    return total


def _samples(problem: Problem) -> int:
    model = problem.execution_model
    return model.samples_in_flight if isinstance(model, MaxLoad) else 0
