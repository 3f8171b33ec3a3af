"""What splitting costs on this machine: dispatch, cuts, contention and wake-up times, fitted.

A few placements run on the hardware. The runner records when each segment starts and ends; the
seconds of a segment beyond those of its units are explained as `segment_fit` says. Times are ratios
to the unsplit model in the same loop, so that drift cancels, and medians over all rounds: the
fastest ones are those beside which the unsplit model was slow, and promise too much.

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

from placewright.core.arrays import FloatArray
from placewright.core.cluster import Cluster
from placewright.core.deadline import NEVER, Deadline
from placewright.core.execution_models import Event
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.execution.placements import placement_segments, whole_model_runner
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import LoadedModel, OpSegment
from placewright.profiling.drawn_placements import drawn_placement
from placewright.profiling.hardware import LONG_SECONDS, warm_time
from placewright.profiling.measure import Progress, ProgressCallback
from placewright.profiling.rounds import Rounds
from placewright.profiling.segment_fit import (
    SegmentRow,
    Wait,
    fitted_cluster,
    segment_rows,
    without_overheads,
)
from placewright.simulation.model import Simulator

PLACEMENTS, ROUNDS = 8, 11
_LEAST_PLACEMENTS = 4  # a fit to fewer would promise more than it knows


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
    bare = without_overheads(problem.cluster)
    plain = replace(problem, cluster=without_limits(bare))
    simulator = Simulator(plain)
    rows: list[SegmentRow] = []
    waits: list[Wait] = []
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
            rows += segment_rows(plain, segments, placement.device_of, np.array(spans))
            waits += _waits(plain, segments, np.median(spans, axis=0))
            done += 1
        else:
            is_complete = True
    if not rows or (not is_complete and done < _LEAST_PLACEMENTS):
        return Calibration(problem, 0, is_complete)
    found = replace(problem, cluster=fitted_cluster(bare, rows, waits))
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


def _waits(problem: Problem, segments: Sequence[OpSegment], spans: Any) -> list[Wait]:
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
                waits.append(Wait(segments[last].device, segment.device, max(0.0, wait)))
        free[segment.device] = float(spans[index, 1])
    return waits


def without_limits(cluster: Cluster) -> Cluster:
    """Processors share the machine's memory: a limit on one is for placing, not for measuring."""
    devices = tuple(
        replace(device, memory_bytes=math.inf) if device.kind == "cpu" else device
        for device in cluster.devices
    )
    return replace(cluster, devices=devices)
