"""What splitting costs on this machine: dispatch, cuts, contention and wake-up times, fitted.

A few placements run on the hardware. The runner records when each segment starts and ends; the
seconds of a segment beyond those of its units are explained, by non-negative least squares, as

    (factor - 1) * units' seconds + dispatch + cut * tensors + cut per byte * bytes
    + layout * tensors + layout per byte * bytes

with one set of overheads per device fingerprint and one contention factor per memory domain and
number of devices in use. Times are ratios to the unsplit model in the same loop, so that drift
cancels, and medians over all rounds: the fastest ones are those beside which the unsplit model was
slow, and promise too much. A cut costs the segment that a tensor enters, and `layout` the one that
it leaves, where a compute-bound unit made it; the simulator charges the sum to the reader.

Half of the placements wander, half give each unit to the device that would finish it first: devices
that share memory slow each other down only while all of them are busy. Beside its segments, each
placement adds one row per device with their sum. What decides a prediction is the sum, and a few
slow segments that the absolute deviations of single rows ignore are part of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.deadline import NEVER, Deadline
from placewright.core.execution_models import Event
from placewright.core.intensity import is_compute_bound
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.execution.placements import placement_segments, whole_model_runner
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import LoadedModel, OpSegment
from placewright.profiling.absolute_deviations import non_negative_fit
from placewright.profiling.drawn_placements import drawn_placement
from placewright.profiling.hardware import LONG_SECONDS, warm_time
from placewright.profiling.measure import Progress, ProgressCallback
from placewright.profiling.rounds import Rounds
from placewright.simulation.model import Simulator

PLACEMENTS, ROUNDS = 8, 11
_LEAST_PLACEMENTS = 4  # a fit to fewer would promise more than it knows
_LEAST_SCATTER = 0.01  # as far as a median of enough rounds is known, see `Rounds`
_OVERHEADS = 5  # dispatch, tensors in, bytes in, computed tensors out, their bytes


@dataclass(frozen=True)
class _Row:
    """One segment of one measured placement, or all that a device ran.

    Attributes:
        rounds: seconds of each round, shape (rounds,), of all that a device ran; None of a segment.
    """

    device: int
    devices_in_use: int  # of its memory domain
    unit_seconds: float
    counts: FloatArray  # segments, tensors in, bytes in, computed tensors out, their bytes
    seconds: float
    rounds: FloatArray | None = None


@dataclass(frozen=True)
class _Wait:
    """Seconds from the end of the last segment that another one waited for to its start."""

    source: int
    destination: int
    seconds: float


@dataclass(frozen=True)
class Calibration:
    """What a calibration came to.

    Attributes:
        problem: with the fit; the one that was given, where nothing was fitted.
        placements: measured in full.
        is_complete: False where the deadline left placements out.
    """

    problem: Problem
    placements: int
    is_complete: bool


def calibrated(
    problem: Problem,
    model: LoadedModel,
    rng: np.random.Generator,
    *,
    placements: int = PLACEMENTS,
    rounds: int = ROUNDS,
    progress: ProgressCallback | None = None,
) -> Problem:
    """The problem of `calibration`, without a deadline."""
    return calibration(
        problem, model, rng, placements=placements, rounds=rounds, progress=progress
    ).problem


def calibration(
    problem: Problem,
    model: LoadedModel,
    rng: np.random.Generator,
    *,
    placements: int = PLACEMENTS,
    rounds: int = ROUNDS,
    progress: ProgressCallback | None = None,
    deadline: Deadline = NEVER,
) -> Calibration:
    """Measure some placements and fit overheads, factors and latencies to them.

    Args:
        problem: with measured costs; what its cluster says of overheads is replaced.
        model: as the runtime has read it.
        rng: draws the placements.
        placements: measured, at most 20.
        rounds: runs of each placement, each beside one of the unsplit model, see `Rounds.of`.
        progress: called before each placement.
        deadline: no round starts after it. A placement whose rounds it cuts short is dropped;
            with fewer than four left nothing is fitted.

    Raises:
        ValueError: placements is not within 1 to 20.
        RuntimeFailure: a segment cannot run.
    """
    if not 1 <= placements <= 20:
        raise ValueError(f"placements must be 1 to 20, got {placements}")
    if not has_overheads(problem):
        return Calibration(problem, 0, is_complete=True)
    without_overheads = _plain(problem.cluster)
    plain = replace(problem, cluster=_without_limits(without_overheads))
    simulator = Simulator(plain)
    rows: list[_Row] = []
    waits: list[_Wait] = []
    inputs = model.random_inputs(np.random.default_rng(0))
    first = int(np.argmin(np.where(np.isfinite(plain.costs.seconds).all(axis=0), 0, 1)))
    began, done, is_complete = deadline.clock(), 0, False
    with whole_model_runner(model, plain.cluster.devices[first]) as reference:
        reference.run(inputs)
        expected = float(plain.costs.seconds[:, first].sum())
        for number in range(placements):
            if deadline.is_over:
                break
            if progress is not None:
                each = (deadline.clock() - began) / number if number else None
                left = None if each is None else each * (placements - number)
                what = f"placement {number + 1} of {placements}"
                progress(Progress(what, number / placements, left))
            placement = Placement.of(drawn_placement(plain, rng, number))
            if simulator.violation(placement) is not None:
                continue  # an accelerator's own memory is too small for it
            segments = placement_segments(plain, placement)
            with ConcurrentRunner(model, segments, plain.cluster.devices) as runner:
                runner.run(inputs)
                enough = Rounds.of(expected, rounds)
                spans = _spans(runner, reference, expected, enough, deadline)
            if len(spans) < enough.least:
                break
            rows += _rows(plain, segments, placement.device_of, np.array(spans))
            waits += _waits(plain, segments, np.median(spans, axis=0))
            done += 1
        else:
            is_complete = True
    if not rows or (not is_complete and done < _LEAST_PLACEMENTS):
        return Calibration(problem, 0, is_complete)
    found = replace(problem, cluster=_fitted(without_overheads, rows, waits))
    return Calibration(found, done, is_complete)


def _spans(
    runner: ConcurrentRunner,
    reference: ConcurrentRunner,
    expected: float,
    enough: Rounds,
    deadline: Deadline,
) -> list[FloatArray]:
    """Start and end of each segment in each round, scaled by the unsplit model beside it."""
    spans: list[FloatArray] = []
    seconds: list[float] = []
    while enough.want_more(seconds) and not deadline.is_over:
        scale = expected / warm_time(reference, expected)
        seconds.append(warm_time(runner, expected) * scale)
        spans.append(np.array(runner.last_spans) * scale)
    return spans


def calibration_seconds(request_seconds: float, compile_seconds: float) -> float:
    """What `calibration` takes at most, roughly.

    Args:
        request_seconds: of one request.
        compile_seconds: of one compilation of the model.
    """
    rounds = Rounds.of(request_seconds, ROUNDS).most
    requests = 4 if request_seconds < LONG_SECONDS else 2  # see `warm_time`
    return PLACEMENTS * (compile_seconds + rounds * requests * request_seconds)


def has_overheads(problem: Problem) -> bool:
    """True where a placement may cost more than its units and links: calibration then fits it."""
    return problem.n_devices > 1 and isinstance(problem.execution_model, Event)


def _rows(
    problem: Problem, segments: Sequence[OpSegment], device_of: IntArray, spans: Any
) -> list[_Row]:
    """Rows of one placement, and one of each device's sums; spans (rounds, n_segments, 2)."""
    graph, devices = problem.graph, problem.cluster.devices
    durations = spans[:, :, 1] - spans[:, :, 0]
    seconds = np.median(durations, axis=0)
    computed = _computed(problem)
    used = sorted(set(device_of.tolist()))
    domains = [_domain(devices[d]) for d in used]
    in_domain = {d: domains.count(x) if x else 1 for d, x in zip(used, domains, strict=True)}
    rows = []
    for segment, duration in zip(segments, seconds.tolist(), strict=True):
        units = np.unique(problem.units.group_of[list(segment.ops)])
        entering = [t for t in segment.inputs if graph.tensor_producers[t] >= 0]
        leaving = [t for t in segment.outputs if computed[t] and _is_cut(problem, segment, t)]
        sizes = graph.tensor_bytes
        counts = np.array(
            [1, len(entering), sizes[entering].sum(), len(leaving), sizes[leaving].sum()],
            dtype=np.float64,
        )
        own = float(problem.costs.seconds[units, segment.device].sum())
        rows.append(_Row(segment.device, in_domain[segment.device], own, counts, duration))
    on = np.array([segment.device for segment in segments])
    return rows + [
        _sum([row for row in rows if row.device == d], durations[:, on == d].sum(axis=1))
        for d in used
    ]


def _sum(rows: Sequence[_Row], seconds: FloatArray) -> _Row:
    """All that one device ran in one placement, and the seconds that took in each round.

    What now and then delays one segment or another is in no segment's median, but in that of sums.
    """
    return replace(
        rows[0],
        unit_seconds=sum(row.unit_seconds for row in rows),
        counts=np.sum([row.counts for row in rows], axis=0),
        seconds=float(np.median(seconds)),
        rounds=seconds,
    )


def _computed(problem: Problem) -> BoolArray:
    """Tensors of the graph that a compute-bound unit made, shape (n_tensors,)."""
    graph, group_of = problem.graph, problem.units.group_of
    flops = np.bincount(group_of, graph.op_flops, minlength=problem.n_units)
    producers = graph.tensor_producers
    own = np.where(producers >= 0, flops[group_of[producers]], 0.0)
    return is_compute_bound(own, graph.tensor_bytes)


def _is_cut(problem: Problem, segment: OpSegment, tensor: int) -> bool:
    inside = set(segment.ops)
    return any(op not in inside for op in problem.graph.tensor_consumers.row(tensor).tolist())


def _waits(problem: Problem, segments: Sequence[OpSegment], spans: Any) -> list[_Wait]:
    """Where a device was idle until another one's segment ended; spans (n_segments, 2)."""
    home = {op: index for index, segment in enumerate(segments) for op in segment.ops}
    free: dict[int, float] = {}
    waits = []
    for index, segment in enumerate(segments):
        producers = problem.graph.tensor_producers[list(segment.inputs)].tolist()
        sources = sorted({home[op] for op in producers if op >= 0})
        last = max(sources, key=lambda s: spans[s, 1], default=-1)
        if last >= 0 and segments[last].device != segment.device:
            ready = float(spans[last, 1])
            if ready > free.get(segment.device, 0.0):
                wait = float(spans[index, 0]) - ready
                waits.append(_Wait(segments[last].device, segment.device, max(0.0, wait)))
        free[segment.device] = float(spans[index, 1])
    return waits


def _fitted(cluster: Cluster, rows: list[_Row], waits: list[_Wait]) -> Cluster:
    kinds = list(dict.fromkeys(device.fingerprint for device in cluster.devices))
    levels = sorted({_level(cluster, row) for row in rows if row.devices_in_use > 1})
    matrix = np.zeros((len(rows), _OVERHEADS * len(kinds) + len(levels)))
    target = np.zeros(len(rows))
    for at, row in enumerate(rows):
        start = _OVERHEADS * kinds.index(cluster.devices[row.device].fingerprint)
        matrix[at, start : start + _OVERHEADS] = row.counts
        if row.devices_in_use > 1:
            column = _OVERHEADS * len(kinds) + levels.index(_level(cluster, row))
            matrix[at, column] = row.unit_seconds
        target[at] = row.seconds - row.unit_seconds
    weights = non_negative_fit(matrix, target)
    own = np.array([row.unit_seconds for row in rows])
    scatter = _scatter(rows, own + matrix @ weights)
    devices = []
    for index, device in enumerate(cluster.devices):
        start = _OVERHEADS * kinds.index(device.fingerprint)
        dispatch, count_in, bytes_in, count_out, bytes_out = weights[start : start + _OVERHEADS]
        devices.append(
            replace(
                device,
                dispatch_seconds=float(dispatch),
                cut_seconds=float(count_in),
                cut_seconds_per_byte=float(bytes_in),
                layout_seconds=float(count_out),
                layout_seconds_per_byte=float(bytes_out),
                speed_scatter=scatter.get(index),
            )
        )
    factors = {level: 1.0 + weights[_OVERHEADS * len(kinds) + i] for i, level in enumerate(levels)}
    return replace(
        cluster,
        devices=tuple(devices),
        links=tuple(_with_wait(link, cluster, waits) for link in cluster.links),
        contention=_contention(cluster, factors),
    )


def _scatter(rows: Sequence[_Row], fitted: FloatArray) -> dict[int, float]:
    """How far single rounds of all that a device ran were from the fit: device -> share.

    Nineteen rounds in twenty were closer. A later run that is farther off has found a device that
    is no longer as fast as it was.
    """
    found: dict[int, list[FloatArray]] = {}
    for row, expected in zip(rows, fitted.tolist(), strict=True):
        if row.rounds is not None and expected > 0 and (row.rounds > 0).all():
            found.setdefault(row.device, []).append(np.abs(np.log(row.rounds / expected)))
    return {
        device: max(_LEAST_SCATTER, float(np.expm1(np.quantile(np.concatenate(parts), 0.95))))
        for device, parts in found.items()
    }


def _contention(
    cluster: Cluster, factors: dict[tuple[str, int], float]
) -> dict[str, tuple[float, ...]]:
    """Factors by number of devices; a number that was not measured has the one before it."""
    result: dict[str, tuple[float, ...]] = {}
    for domain in sorted({_domain(device) for device in cluster.devices} - {""}):
        row = [1.0]
        for count in range(2, sum(_domain(d) == domain for d in cluster.devices) + 1):
            row.append(max(row[-1], float(factors.get((domain, count), row[-1]))))
        result[domain] = tuple(row)
    return result


def _with_wait(link: Link, cluster: Cluster, waits: list[_Wait]) -> Link:
    index = cluster.device_index
    ends = (index.get(link.source), index.get(link.destination))
    seen = [wait.seconds for wait in waits if (wait.source, wait.destination) == ends]
    # Few waits say less than the measured round trips.
    return link if len(seen) < 5 else replace(link, latency_seconds=float(np.median(seen)))


def _plain(cluster: Cluster) -> Cluster:
    devices = tuple(
        replace(
            device,
            dispatch_seconds=0.0,
            cut_seconds=0.0,
            cut_seconds_per_byte=0.0,
            layout_seconds=0.0,
            layout_seconds_per_byte=0.0,
            speed_scatter=None,
        )
        for device in cluster.devices
    )
    return replace(cluster, devices=devices, contention={})


def _without_limits(cluster: Cluster) -> Cluster:
    """Processors share the machine's memory: a limit on one is for placing, not for measuring."""
    devices = tuple(
        replace(device, memory_bytes=math.inf) if device.kind == "cpu" else device
        for device in cluster.devices
    )
    return replace(cluster, devices=devices)


def _level(cluster: Cluster, row: _Row) -> tuple[str, int]:
    return (_domain(cluster.devices[row.device]), row.devices_in_use)


def _domain(device: Device) -> str:
    return device.memory_domain or ""
