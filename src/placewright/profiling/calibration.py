"""Calibration: costs of splitting on this machine, that is dispatch, cuts, contention and waits.

A few placements run on the hardware. The runner records the start and end of each segment, and
`segment_fit` explains the seconds of a segment beyond those of its units. Times are ratios to the
unsplit model in the same loop, so that drift cancels, and medians over all rounds: in the fastest
rounds the unsplit model was slow, so that they promise too much.

Half of the placements are random walks. The others give each unit to the device that would finish
it first, because devices that share memory slow each other down only while all of them are busy.
A placement whose overlap gains less than it costs to wake other threads runs in its caller's
thread, as a loaded plan serves it. To decide this, costs of cuts are needed; they are fitted to the
placements measured before it. In one thread no device waits to be woken, or slows another down, so
that these placements say nothing about latencies and contention: the last ones have a thread for
each device if no other had.

Beside its segments, each placement adds one row per device with their sum. The sum decides a
prediction, and it includes the few slow segments that absolute deviations of single rows ignore.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.cluster import Cluster, Device
from placewright.core.execution_models import Event
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.processors import first_on_processors
from placewright.execution.direct import DirectRunner
from placewright.execution.placements import (
    call_runner,
    placement_segments,
    whole_call_runner,
)
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import HostArray, LoadedModel, OpSegment
from placewright.profiling.evidence import (
    LEAST_TRIALS,
    NOTHING,
    PLACEMENTS,
    Evidence,
    Trial,
    drawn_placement,
    fitted,
    found_rule,
)
from placewright.profiling.hardware import LONG_SECONDS, NEVER, Deadline, warm_requests, warm_time
from placewright.profiling.measure import (
    PlainRuns,
    Progress,
    ProgressCallback,
    Rounds,
    median_error,
)
from placewright.profiling.segment_fit import SegmentRow, Wait, segment_rows
from placewright.simulation.model import Simulator

ROUNDS, _LONG_ROUNDS = 11, 7  # more if medians are not known yet, for so many seconds
_MOST_SECONDS = 1.5  # of a placement's rounds: the fit averages over all placements anyway
_LEAST_IN_THREADS = 2  # placements: the last ones, if the others show no contention
_CUT_COMPILATION = 1.5  # times as long as the whole model's: segments, and a first run of each
# Chosen, not measured, and too high by intent: a split must also pay on a slow machine.
DEFAULT_DISPATCH, DEFAULT_CUT, DEFAULT_CUT_PER_BYTE = 3e-4, 1e-4, 1e-9
DEFAULT_CONTENTION, DEFAULT_ERROR = 1.5, 1.0


@dataclass(frozen=True)
class Calibration:
    """Result of a calibration."""

    problem: Problem  # with the fit, or with the default costs if too little was measured
    placements: int  # number of placements that were measured in full
    is_complete: bool  # False if the deadline left placements out
    evidence: Evidence = NOTHING  # the measurements, with the errors of the fit


@dataclass(frozen=True)
class TrialPlan:
    """Numbers of placements and rounds of a calibration, and the threads that run them."""

    placements: int = PLACEMENTS  # at most 20
    rounds: Rounds | None = None  # of each placement; None is `Rounds.of` the usual number
    # a thread for each device also where nothing overlaps: for measurements that stand for other
    # models
    in_threads: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.placements <= 20:
            raise ValueError(f"placements must be 1 to 20, got {self.placements}")


def calibration(
    problem: Problem,
    model: LoadedModel,
    rng: np.random.Generator,
    trials: TrialPlan = TrialPlan(),
    *,
    progress: ProgressCallback | None = None,
    deadline: Deadline = NEVER,
    machine: Evidence | None = None,
) -> Calibration:
    """Measure some placements and fit overheads, factors and latencies to them.

    Placements that do not fit into the memory of an accelerator are left out. If too few are left,
    costs are those of another model, or the default.

    Args:
        problem: with measured costs; overheads of its cluster are replaced.
        trials: number of placements and rounds; a round runs the unsplit model, too.
        progress: called before each placement.
        deadline: no round starts after it. A placement with too few rounds is dropped.
        machine: measurements of another model on the same devices, which replace missing
            placements.

    Raises:
        RuntimeFailure: a segment cannot run.
    """
    if not has_overheads(problem):
        return Calibration(problem, 0, is_complete=True)
    plain = replace(problem, cluster=without_limits(problem.cluster.without_overheads))
    if progress is not None:
        progress(Progress("the unsplit model", 0.0, None))
    measuring, is_complete = _Placements(plain, model, trials, deadline, machine), False
    with measuring:
        began = deadline.clock()
        for number in range(trials.placements):
            if deadline.is_over:
                break
            if progress is not None:
                seconds = (deadline.clock() - began) / number if number else None
                left = None if seconds is None else seconds * (trials.placements - number)
                what = f"placement {number + 1} of {trials.placements}"
                progress(Progress(what, number / trials.placements, left))
            if not measuring.add(drawn_placement(plain, rng, number)):
                break
        else:
            is_complete = True
    own, measured = measuring.evidence, measuring.trials
    if machine is None and len(measured) < LEAST_TRIALS:
        return Calibration(with_default_costs(problem), len(measured), is_complete)
    own = replace(own, occupies=_rule(plain, own, measured))
    with_fit, outcomes = fitted(problem, own, measured, machine)
    return Calibration(with_fit, len(measured), is_complete, replace(own, outcomes=outcomes))


def _rule(problem: Problem, own: Evidence, trials: Sequence[Trial]) -> str | None:
    """Whom copies occupy, by the trials of the model itself in which there are copies."""
    with_copies = [at for at, trial in enumerate(trials) if not trial.in_one_thread]
    return found_rule(
        problem,
        own.rows,
        own.waits,
        {at: Placement.of(np.array(trials[at].device_of)) for at in with_copies},
        np.array([trials[at].seconds for at in with_copies]),
    )


class _Placements:
    """Measures placements of a model beside the unsplit model, and collects the measurements.

    Args:
        problem: without overheads or limits.
        trials, machine: see `calibration`.
        deadline: no round starts after it.
    """

    def __init__(
        self,
        problem: Problem,
        model: LoadedModel,
        trials: TrialPlan,
        deadline: Deadline,
        machine: Evidence | None,
    ) -> None:
        self._problem, self._model, self._deadline = problem, model, deadline
        self._machine = machine
        self._trials = trials
        whole = np.isfinite(problem.costs.seconds).all(axis=0)
        first = int(np.argmin(np.where(whole, 0, 1)))
        expected = float(problem.costs.seconds[:, first].sum())
        self._rounds = trials.rounds or _usual_rounds(expected)
        self._inputs = model.random_inputs(np.random.default_rng(0))
        self._simulator = Simulator(problem)
        self._whole = _Whole(model, problem.cluster.devices[first], expected)
        self._rows: list[SegmentRow] = []
        self._waits: list[Wait] = []
        self.trials: list[Trial] = []
        self._skipped = 0  # placements that do not fit

    def __enter__(self) -> None:
        try:
            self._whole.start(self._inputs, self._rounds, self._deadline)
            on_first = np.zeros(self._problem.n_units, dtype=np.int64)
            self._simulator.violation(Placement.of(on_first))  # compiles the simulator's kernels
        except BaseException:
            self._whole.runner.close()
            raise

    def __exit__(self, *error: Any) -> None:
        self._whole.runner.close()

    @property
    def evidence(self) -> Evidence:
        """Measurements of all placements that were measured in full."""
        rows, waits, whole = tuple(self._rows), tuple(self._waits), self._whole
        return Evidence(rows, waits, (), whole.expected, call_seconds=whole.call_seconds)

    def add(self, device_of: IntArray) -> bool:
        """Measure a placement; return False if the deadline left it too few rounds."""
        problem, placement = self._problem, Placement.of(device_of)
        if self._simulator.violation(placement) is not None:
            self._skipped += 1
            return True  # it does not fit into the memory of an accelerator
        so_far, devices = self._problem_so_far(), problem.cluster.devices
        runner: DirectRunner | ConcurrentRunner
        if self._wants_threads:
            segments = placement_segments(so_far, placement)
            runner = ConcurrentRunner(self._model, segments, devices)
        else:
            runner = call_runner(so_far, placement, self._model)
            segments = runner.segments
        with runner:
            runner.run(self._inputs)
            spans, seconds = _spans(runner, self._whole, self._rounds, self._deadline)
        if len(spans) < self._rounds.least:
            return False
        rows = segment_rows(problem, segments, placement.device_of, np.array(spans))
        in_one_thread = isinstance(runner, DirectRunner)
        if in_one_thread:  # no device slows another down, or receives a copy
            of_split = len(np.unique(placement.device_of)) > 1
            rows = [
                replace(row, devices_in_use=1, received=None, sent=None, in_one_thread=of_split)
                for row in rows
            ]
        else:
            self._waits += _waits(problem, segments, np.median(spans, axis=0))
        self._rows += [replace(row, trial=len(self.trials)) for row in rows]
        at = tuple(placement.device_of.tolist())
        median = float(np.median(seconds))
        noise = median * median_error(seconds)
        self.trials.append(Trial(at, median, noise, in_one_thread))
        return True

    @property
    def _wants_threads(self) -> bool:
        """True if the next placement has a thread for each device also where nothing overlaps."""
        done = len(self.trials) + self._skipped
        is_near_end = done >= self._trials.placements - _LEAST_IN_THREADS
        no_contention = all(trial.in_one_thread for trial in self.trials)
        return self._trials.in_threads or (is_near_end and no_contention)

    def _problem_so_far(self) -> Problem:
        """The problem with the costs of splitting that are known already."""
        if not self.trials and self._machine is None:
            return self._problem
        return fitted(self._problem, self.evidence, self.trials, self._machine)[0]


class _Whole:
    """The unsplit model on one device, beside which placements are measured.

    A call takes longer than a run by which costs of units were scaled: inputs are checked and
    converted, another thread computes, Python's own code runs. Both are measured in one loop.

    Attributes:
        expected: seconds of all units.
        runner: as a loaded plan serves it.
        call_seconds: of a call beyond its units, if the machine is as fast as their costs; 0 before
            `start`.
    """

    def __init__(self, model: LoadedModel, device: Device, expected: float) -> None:
        self.expected, self.call_seconds = expected, 0.0
        self.runner = whole_call_runner(model, device)
        self._model, self._device = model, device

    def start(self, inputs: Sequence[HostArray], enough: Rounds, deadline: Deadline) -> None:
        """Run it for the first time, and measure how much longer than its units a call takes."""
        self.runner.run(inputs)
        ratios: list[float] = []
        with closing(PlainRuns(self._model, self._device)) as plain:
            plain.seconds()
            while enough.want_more(ratios) and not (ratios and deadline.is_over):
                seconds = plain.seconds()
                ratios.append(warm_time(self.runner, self.expected) / seconds)
        self.call_seconds = self.expected * max(0.0, float(np.median(ratios)) - 1.0)

    def scale(self) -> float:
        """Run it; return its seconds by the costs of its units over those that it takes now."""
        waited = warm_time(self.runner, self.expected)
        return (self.expected + self.call_seconds) / waited


def _spans(
    runner: DirectRunner | ConcurrentRunner, whole: _Whole, enough: Rounds, deadline: Deadline
) -> tuple[list[FloatArray], list[float]]:
    """Measure start and end of each segment in each round, and the seconds of them all.

    Those are what a caller waits, without the seconds that every call takes. In one thread the next
    segment begins as soon as one has ended: what comes between is part of it.
    """
    spans: list[FloatArray] = []
    seconds: list[float] = []
    while enough.want_more(seconds) and not deadline.is_over:
        scale = whole.scale()
        waited = scale * warm_time(runner, whole.expected)
        timed = runner.last_timed
        seconds.append(max(0.0, waited - whole.call_seconds))
        of_segments = np.array(timed.spans) * (seconds[-1] / timed.seconds)
        if isinstance(runner, DirectRunner):
            of_segments[:, 0] = [0.0, *of_segments[:-1, 1]]
        spans.append(of_segments)
    return spans, seconds


def calibration_seconds(
    request_seconds: float,
    compile_seconds: float,
    placements: int = PLACEMENTS,
    rounds: Rounds | None = None,
    scatter: float = math.nan,
) -> float:
    """Estimate the seconds of `calibration`.

    Args:
        request_seconds: of one request.
        compile_seconds: of one compilation of the model.
        placements, rounds: see `calibration`.
        scatter: of the model's own rounds, see `rounds.scatter_of`; nan if it is unknown.
    """
    wanted = rounds or _usual_rounds(request_seconds)
    measuring = wanted.expected(scatter) * _round_seconds(request_seconds)
    unsplit = compile_seconds + _round_seconds(request_seconds) + measuring
    return unsplit + placements * (_CUT_COMPILATION * compile_seconds + measuring)


def _usual_rounds(request_seconds: float) -> Rounds:
    usual = ROUNDS if request_seconds < LONG_SECONDS else _LONG_ROUNDS
    return Rounds.of(_round_seconds(request_seconds) / 2, usual, _MOST_SECONDS)


def _round_seconds(request_seconds: float) -> float:
    """Seconds of a placement and of the unsplit model beside it, see `warm_time`."""
    return 2 * warm_requests(request_seconds) * request_seconds


def has_overheads(problem: Problem) -> bool:
    """True if a placement may cost more than its units and links, which calibration fits."""
    return problem.n_devices > 1 and isinstance(problem.execution_model, Event)


def _waits(problem: Problem, segments: Sequence[OpSegment], spans: Any) -> list[Wait]:
    """Waits of idle devices for the segments of others; shape of `spans` is (n_segments, 2).

    They are without the seconds that the bandwidth of a link takes for the bytes of the last one.
    """
    per_byte, sizes = problem.cluster.link_seconds_per_byte, problem.graph.tensor_bytes
    there: dict[int, set[int]] = {}  # device -> tensors that its segments have received so far
    home = {op: index for index, segment in enumerate(segments) for op in segment.ops}
    worker_of = first_on_processors(problem.cluster.devices)
    free: dict[int, float] = {}
    waits = []
    for index, segment in enumerate(segments):
        producers = problem.graph.tensor_producers[list(segment.inputs)].tolist()
        sources = sorted({home[op] for op in producers if op >= 0})
        last = max(sources, key=lambda s: spans[s, 1], default=-1)
        new = set(segment.inputs) - there.setdefault(segment.device, set())
        there[segment.device] |= new
        if last >= 0 and segments[last].device != segment.device:
            ready = float(spans[last, 1])
            if ready > free.get(worker_of[segment.device], 0.0):
                source = segments[last].device
                rate = float(per_byte[source, segment.device])
                made = sum(float(sizes[t]) for t in new.intersection(segments[last].outputs))
                copied = rate * made if rate < math.inf else 0.0
                wait = float(spans[index, 0]) - ready - copied
                waits.append(Wait(source, segment.device, max(0.0, wait)))
        free[worker_of[segment.device]] = float(spans[index, 1])
    return waits


def without_limits(cluster: Cluster) -> Cluster:
    """Return a cluster without memory limits of processors, which share the machine's memory.

    A limit on one of them is for placing, not for measuring.
    """
    devices = tuple(
        replace(device, memory_bytes=math.inf, pool=None) if device.kind == "cpu" else device
        for device in cluster.devices
    )
    return replace(cluster, devices=devices)


def with_default_costs(problem: Problem) -> Problem:
    """Return the problem with default costs of splitting, higher than those of most machines."""
    cluster = problem.cluster
    devices = tuple(
        replace(
            device,
            dispatch_seconds=DEFAULT_DISPATCH,
            cut_seconds=DEFAULT_CUT,
            cut_seconds_per_byte=DEFAULT_CUT_PER_BYTE,
        )
        for device in cluster.devices
    )
    domains = sorted({device.memory_domain or "" for device in cluster.devices} - {""})
    contention = {domain: (1.0, DEFAULT_CONTENTION) for domain in domains}
    return replace(
        problem,
        cluster=replace(
            cluster, devices=devices, contention=contention, prediction_error=DEFAULT_ERROR
        ),
    )
