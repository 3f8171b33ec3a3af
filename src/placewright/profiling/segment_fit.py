"""Fit of overheads, contention and waits to measured segments.

Non-negative least absolute deviations explain the seconds of a segment beyond those of its units as

    (factor - 1) * units' seconds + dispatch + cut * tensors + cut per byte * bytes
    + layout * tensors + layout per byte * bytes + split share * units' seconds in one thread

with one set of overheads per device fingerprint and one contention factor per memory domain and
number of devices in use. The split share is what units take longer than in the whole model,
although no other device computes: kernels are fused otherwise, and buffers lie elsewhere.

A cut is a cost of the segment that a tensor enters. `layout` is a cost of the segment that it
leaves, if a compute-bound unit made it; the simulator charges both to the reader.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.cluster import RECEIVER, SENDER, Cluster, Device, Link
from placewright.core.graph import is_compute_bound
from placewright.core.problem import Problem
from placewright.execution.runtime import OpSegment

_LEAST_SCATTER = 0.01  # precision of a median of enough rounds, see `Rounds`
# dispatch, tensors in, bytes in, computed tensors out, their bytes, units' seconds in one thread
_OVERHEADS = 6
_REWEIGHTINGS = 20
_SMALLEST_RESIDUAL = 2e-6  # seconds, the resolution of timers


@dataclass(frozen=True)
class SegmentRow:
    """A segment of a measured placement, or all segments of a device together."""

    device: int
    devices_in_use: int  # of its memory domain
    unit_seconds: float
    counts: FloatArray  # segments, tensors in, bytes in, computed tensors out, their bytes
    seconds: float
    # of all segments together the seconds of each round, shape (rounds,); else None
    rounds: FloatArray | None = None
    # of each other device, tensors and bytes that come from it and go to it, shape (n_devices, 2);
    # None if no copies are known
    received: FloatArray | None = None
    sent: FloatArray | None = None
    trial: int = -1  # number of the measured placement; -1 for another model's
    in_one_thread: bool = False  # of a split, all segments


@dataclass(frozen=True)
class Wait:
    """Seconds between the start of a segment and the end of the last segment before it."""

    source: int
    destination: int
    seconds: float


def segment_rows(
    problem: Problem, segments: Sequence[OpSegment], device_of: IntArray, spans: Any
) -> list[SegmentRow]:
    """Make rows of a placement's segments, and one of each device's sums.

    Args:
        problem: without overheads.
        device_of: device of each unit.
        spans: start and end of each segment in each round, shape (rounds, n_segments, 2).
    """
    graph = problem.graph
    durations = spans[:, :, 1] - spans[:, :, 0]
    seconds = np.median(durations, axis=0)
    computed = _computed(problem)
    used = sorted(set(device_of.tolist()))
    in_domain = in_use_of_domain(problem.cluster, used)
    received, sent = copies_of(problem, segments)
    rows = []
    for index, (segment, duration) in enumerate(zip(segments, seconds.tolist(), strict=True)):
        units = np.unique(problem.units.group_of[list(segment.ops)])
        entering = [t for t in segment.inputs if graph.tensor_producers[t] >= 0]
        inside = frozenset(segment.ops)
        leaving = [t for t in segment.outputs if computed[t] and _is_cut(problem, inside, t)]
        sizes = graph.tensor_bytes
        counts = np.array(
            [1, len(entering), sizes[entering].sum(), len(leaving), sizes[leaving].sum()],
            dtype=np.float64,
        )
        own = float(problem.costs.seconds[units, segment.device].sum())
        rows.append(
            SegmentRow(
                segment.device,
                in_domain[segment.device],
                own,
                counts,
                duration,
                received=received[index],
                sent=sent[index],
            )
        )
    on = np.array([segment.device for segment in segments])
    return rows + [
        device_sum([row for row in rows if row.device == d], durations[:, on == d].sum(axis=1))
        for d in used
    ]


def copies_of(problem: Problem, segments: Sequence[OpSegment]) -> tuple[FloatArray, FloatArray]:
    """Tensors and bytes that each segment receives and sends, shape (n_segments, n_devices, 2).

    A tensor goes once to every device that reads it, whose first reader receives it.
    """
    shape = (len(segments), problem.n_devices, 2)
    received, sent = np.zeros(shape), np.zeros(shape)
    maker = {t: index for index, segment in enumerate(segments) for t in segment.outputs}
    there: set[tuple[int, int]] = set()
    for index, segment in enumerate(segments):
        for tensor in segment.inputs:
            source, place = maker.get(tensor, index), (tensor, segment.device)
            if segments[source].device != segment.device and place not in there:
                there.add(place)
                copy = (1.0, problem.graph.tensor_bytes[tensor])
                received[index, segments[source].device] += copy
                sent[source, segment.device] += copy
    return received, sent


def in_use_of_domain(cluster: Cluster, used: Sequence[int]) -> dict[int, int]:
    """Used device -> number of used devices of its memory domain; 1 if it is in none."""
    domains = [_domain(cluster.devices[device]) for device in used]
    return {d: domains.count(x) if x else 1 for d, x in zip(used, domains, strict=True)}


def device_sum(rows: Sequence[SegmentRow], seconds: FloatArray) -> SegmentRow:
    """Add the rows of a device in a placement, with the seconds of each round.

    An occasional delay of a segment is in no segment's median, but in the median of sums.
    """
    return replace(
        rows[0],
        unit_seconds=sum(row.unit_seconds for row in rows),
        counts=np.sum([row.counts for row in rows], axis=0),
        received=_total([row.received for row in rows]),
        sent=_total([row.sent for row in rows]),
        seconds=float(np.median(seconds)),
        rounds=seconds,
    )


def _total(arrays: Sequence[FloatArray | None]) -> FloatArray | None:
    known = [array for array in arrays if array is not None]
    return np.sum(known, axis=0) if known else None


def _computed(problem: Problem) -> BoolArray:
    """True for tensors that a compute-bound unit made, shape (n_tensors,)."""
    graph, group_of = problem.graph, problem.units.group_of
    flops = np.bincount(group_of, graph.op_flops, minlength=problem.n_units)
    producers = graph.tensor_producers
    own = np.where(producers >= 0, flops[group_of[producers]], 0.0)
    return is_compute_bound(own, graph.tensor_bytes)


def _is_cut(problem: Problem, inside: Collection[int], tensor: int) -> bool:
    """True if an op outside of a set of ops reads a tensor."""
    return any(op not in inside for op in problem.graph.tensor_consumers.row(tensor).tolist())


def fitted_cluster(cluster: Cluster, rows: list[SegmentRow], waits: list[Wait]) -> Cluster:
    """Fit overheads, contention and waits of a cluster to rows."""
    kinds = list(dict.fromkeys(device.fingerprint for device in cluster.devices))
    levels = sorted({_level(cluster, row) for row in rows if row.devices_in_use > 1})
    matrix = np.zeros((len(rows), _OVERHEADS * len(kinds) + len(levels)))
    target, own = np.zeros(len(rows)), np.zeros(len(rows))
    for at, row in enumerate(rows):
        start = _OVERHEADS * kinds.index(cluster.devices[row.device].fingerprint)
        alone = row.unit_seconds if row.in_one_thread else 0.0
        matrix[at, start : start + _OVERHEADS] = [*row.counts, alone]
        if row.devices_in_use > 1:
            column = _OVERHEADS * len(kinds) + levels.index(_level(cluster, row))
            matrix[at, column] = row.unit_seconds
        copies = occupied_seconds(cluster, row)
        target[at] = row.seconds - row.unit_seconds - copies
        own[at] = row.unit_seconds + copies
    weights = non_negative_fit(matrix, target)
    scatter = _scatter(rows, own + matrix @ weights)
    devices = []
    for index, device in enumerate(cluster.devices):
        start = _OVERHEADS * kinds.index(device.fingerprint)
        dispatch, count_in, bytes_in, count_out, bytes_out, share = weights[
            start : start + _OVERHEADS
        ]
        devices.append(
            replace(
                device,
                dispatch_seconds=float(dispatch),
                cut_seconds=float(count_in),
                cut_seconds_per_byte=float(bytes_in),
                layout_seconds=float(count_out),
                layout_seconds_per_byte=float(bytes_out),
                speed_scatter=scatter.get(index),
                split_share=float(share),
            )
        )
    factors = {level: 1.0 + weights[_OVERHEADS * len(kinds) + i] for i, level in enumerate(levels)}
    return replace(
        cluster,
        devices=tuple(devices),
        links=tuple(_with_wait(link, cluster, waits) for link in cluster.links),
        contention=_contention(cluster, factors),
    )


def occupied_seconds(cluster: Cluster, row: SegmentRow) -> float:
    """Seconds of the copies that occupy the device of a row while it computes nothing."""
    seconds, endpoints = 0.0, slice(cluster.n_devices)
    for end, copies in ((RECEIVER, row.received), (SENDER, row.sent)):
        if copies is None:
            continue
        ways = np.s_[endpoints, row.device] if end == RECEIVER else np.s_[row.device, endpoints]
        here = cluster.occupied[ways] & end > 0
        latency, per_byte = cluster.link_latency[ways], cluster.link_seconds_per_byte[ways]
        seconds += float((copies[here, 0] * latency[here]).sum())
        seconds += float((copies[here, 1] * per_byte[here]).sum())
    return seconds


def _scatter(rows: Sequence[SegmentRow], fitted: FloatArray) -> dict[int, float]:
    """Device -> scatter of the rounds of its sums around the fit, as a share.

    Nineteen rounds in twenty were closer. If a later run is farther off, the device is no longer as
    fast as it was.
    """
    deviations: dict[int, list[FloatArray]] = {}
    for row, expected in zip(rows, fitted.tolist(), strict=True):
        if row.rounds is not None and expected > 0 and (row.rounds > 0).all():
            deviations.setdefault(row.device, []).append(np.abs(np.log(row.rounds / expected)))
    return {
        device: max(_LEAST_SCATTER, float(np.expm1(np.quantile(np.concatenate(parts), 0.95))))
        for device, parts in deviations.items()
    }


def _contention(
    cluster: Cluster, factors: dict[tuple[str, int], float]
) -> dict[str, tuple[float, ...]]:
    """Factors by number of devices; a number that was not measured takes the factor before it."""
    result: dict[str, tuple[float, ...]] = {}
    for domain in sorted({_domain(device) for device in cluster.devices} - {""}):
        row = [1.0]
        for count in range(2, sum(_domain(d) == domain for d in cluster.devices) + 1):
            row.append(max(row[-1], float(factors.get((domain, count), row[-1]))))
        result[domain] = tuple(row)
    return result


def _with_wait(link: Link, cluster: Cluster, waits: list[Wait]) -> Link:
    index = cluster.device_index
    ends = (index.get(link.source), index.get(link.destination))
    seen = [wait.seconds for wait in waits if (wait.source, wait.destination) == ends]
    # A few waits are less certain than the measured round trips. A copy that is part of a segment
    # is no wait for it.
    return (
        link
        if len(seen) < 5 or link.occupied_ends
        else replace(link, latency_seconds=float(np.median(seen)))
    )


def _level(cluster: Cluster, row: SegmentRow) -> tuple[str, int]:
    return (_domain(cluster.devices[row.device]), row.devices_in_use)


def _domain(device: Device) -> str:
    return device.memory_domain or ""


def non_negative_fit(matrix: FloatArray, target: FloatArray) -> FloatArray:
    """Non-negative least absolute deviations, by iteratively reweighted least squares.

    Deviations are absolute, because a few segments that the system disturbed, or a few very large
    tensors, must not decide the cost of an ordinary cut.
    """
    from scipy.optimize import nnls  # takes long to import, and only calibration needs it

    length = np.linalg.norm(matrix, axis=0)
    length[length == 0] = 1.0
    scaled = matrix / length
    weights = np.ones(len(target))
    solution = np.zeros(matrix.shape[1])
    for _ in range(_REWEIGHTINGS):
        root = np.sqrt(weights)
        solution, _ = nnls(scaled * root[:, None], target * root)
        weights = 1.0 / np.maximum(np.abs(scaled @ solution - target), _SMALLEST_RESIDUAL)
    # SciPy's method may end just below 0.
    return np.asarray(np.maximum(solution / length, 0.0), dtype=np.float64)
