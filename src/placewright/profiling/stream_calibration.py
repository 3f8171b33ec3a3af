"""What streams cost on this machine beside their units: fitted to a few measured streams.

In a full pipeline every device works all the time: memory is shared by all of them, and each hand-
over competes with the others for the interpreter. What a device's sample takes is modelled as

    contention x seconds of its units + dispatch x segments + cut x tensors + cut per byte x bytes

with one set of weights, because hand-overs are the host's work. Only the device that holds a stream
up shows in its period; the simulator says which one that is and how much waiting comes on top, so
that fitting and playing take turns until they agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.deadline import NEVER, Deadline
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.execution.placements import whole_model_runner
from placewright.execution.runtime import LoadedModel
from placewright.profiling.absolute_deviations import non_negative_fit
from placewright.profiling.drawn_placements import (
    earliest_finish_placement,
    wandering_placement,
)
from placewright.profiling.streams import (
    copy_per_device,
    different_samples,
    measure_streams,
    stream_runner,
)
from placewright.simulation.model import Simulator

_ROUNDS = 7
_SAMPLES = 24  # of one stream, where samples are short
_SECONDS = 4.0  # that the rounds of one placement should take at most
_TURNS = 6  # of fitting and playing
_STICKINESS = (0.98, 0.95, 0.9, 0.8)
_REFERENCE, _MINE = "the model on the first device", "placement"


@dataclass(frozen=True, eq=False)
class MeasuredStream:
    """Seconds per sample of one placement, on the scale of the problem's costs.

    Attributes:
        placement: None is a copy of the model on each device.
        period: seconds.
        in_flight: samples that were under way at most.
    """

    placement: Placement | None
    period: float
    in_flight: int


@dataclass(frozen=True, eq=False)
class StreamFit:
    """A problem with fitted overheads, and whether all streams were measured for it."""

    problem: Problem
    streams: tuple[MeasuredStream, ...]
    is_complete: bool


def has_stream_overheads(problem: Problem) -> bool:
    """True where streams of several measured devices follow each other."""
    return (
        problem.n_devices > 1
        and problem.objective == "throughput"
        and not (problem.cluster.replicas > 1).any()
    )


def stream_calibration(
    problem: Problem,
    model: LoadedModel,
    rng: np.random.Generator,
    *,
    progress: Callable[[float], None] = lambda part: None,
    deadline: Deadline = NEVER,
) -> StreamFit:
    """Measure a few streams and fit what they cost.

    Args:
        problem: as it was profiled, of single devices.
        model: as its runtime has read it.
        rng: draws the placements.
        progress: called with the finished part, 0 to 1.
        deadline: no stream starts after it.
    """
    wanted = calibration_placements(problem, rng)
    streams: list[MeasuredStream] = []
    for number, placement in enumerate(wanted):
        if deadline.is_over:
            break
        streams.append(measured_stream(problem, model, placement))
        progress((number + 1) / len(wanted))
    fitted = fitted_to(problem, streams) if len(streams) > 2 else problem
    return StreamFit(fitted, tuple(streams), len(streams) == len(wanted))


def calibration_placements(problem: Problem, rng: np.random.Generator) -> list[Placement | None]:
    """Copies of the whole model, and placements of few and of many segments."""
    simulator = Simulator(problem)
    everywhere = [
        Placement.on_one_device(problem.n_units, device) for device in range(problem.n_devices)
    ]
    can_copy = all(np.isfinite(simulator.value(one)) for one in everywhere)
    rows = [earliest_finish_placement(problem, rng, 0.0)]
    rows += [wandering_placement(problem, rng, stickiness) for stickiness in _STICKINESS]
    rows.append(earliest_finish_placement(problem, rng, 0.2))
    found = [Placement.of(row) for row in rows]
    legal = [one for one in found if np.isfinite(simulator.value(one))]
    return [None, *legal] if can_copy else list(legal)


def measured_stream(
    problem: Problem, model: LoadedModel, placement: Placement | None
) -> MeasuredStream:
    """Measure a stream beside the unsplit model on the first device, in turns.

    Its period is the ratio of the two times what the costs say of the first device, so that a
    machine that has become slower since does not count as an overhead.
    """
    devices = problem.cluster.devices
    whole = float(problem.costs.seconds[:, 0].sum())
    in_flight = len(devices) + 1
    if placement is not None:
        in_flight = Simulator(problem).stream(placement, samples=20).in_flight
    least = 3 * in_flight + 2
    count = int(np.clip(_SECONDS / max(2.0 * _ROUNDS * whole, 1e-9), least, max(least, _SAMPLES)))
    samples = different_samples(model, count)
    mine = (
        copy_per_device(model, devices)
        if placement is None
        else stream_runner(problem, placement, model, in_flight=in_flight)
    )
    with mine, whole_model_runner(model, devices[0]) as alone:
        ways = {_REFERENCE: alone.run_many, _MINE: mine.run_many}
        for way in ways.values():
            way(samples[: in_flight + 1])
        found = measure_streams(ways, samples, rounds=_ROUNDS, skipped=in_flight)
    ratios = [
        one.period / other.period
        for one, other in zip(found[_MINE], found[_REFERENCE], strict=True)
    ]
    return MeasuredStream(placement, float(np.median(ratios)) * whole, in_flight)


def fitted_to(problem: Problem, streams: list[MeasuredStream]) -> Problem:
    """The problem whose played streams come closest to the measured ones."""
    weights = np.array([1.0, 0.0, 0.0, 0.0])
    best, least = problem, np.inf
    for _ in range(_TURNS):
        trial = with_stream_costs(problem, weights)
        pairs = [(played_period(trial, one), one.period) for one in streams]
        off = float(np.mean([abs(np.log(mine / other)) for mine, other in pairs]))
        if off < least:
            best, least = trial, off
        rows = np.array([_features(problem, one, weights) for one in streams])
        waiting = np.array([mine for mine, _ in pairs]) / np.maximum(rows @ weights, 1e-12)
        scaled = rows * waiting[:, None]
        target = np.array([one.period for one in streams])
        # Relative errors count, and contention is never below 1.
        excess = np.maximum(target - scaled[:, 0], 0.0)
        found = non_negative_fit(scaled / target[:, None], excess / target)
        weights = found + np.array([1.0, 0.0, 0.0, 0.0])
    return best


def with_stream_costs(problem: Problem, weights: FloatArray) -> Problem:
    """The problem with contention of all devices, dispatch, cut and cut per byte."""
    contention, dispatch, cut, per_byte = (float(one) for one in weights)
    cluster = problem.cluster
    devices = tuple(
        replace(device, dispatch_seconds=dispatch, cut_seconds=cut, cut_seconds_per_byte=per_byte)
        for device in cluster.devices
    )
    domains = [device.memory_domain for device in devices if device.memory_domain]
    factors = {
        domain: tuple(1.0 + (contention - 1.0) * at / max(domains.count(domain) - 1, 1)
                      for at in range(domains.count(domain)))
        for domain in dict.fromkeys(domains)
    }  # fmt: skip
    return replace(problem, cluster=replace(cluster, devices=devices, contention=factors))


def played_period(problem: Problem, stream: MeasuredStream) -> float:
    """Seconds per sample by the simulator."""
    if stream.placement is None:
        busy = problem.costs.seconds.sum(axis=0)
        devices = problem.cluster.devices
        rate = 0.0
        for index, device in enumerate(devices):
            factors = problem.cluster.contention.get(device.memory_domain or "", (1.0,))
            here = sum(one.memory_domain == device.memory_domain for one in devices)
            factor = factors[min(here, len(factors)) - 1]
            rate += 1.0 / (busy[index] * factor + device.dispatch_seconds)
        return 1.0 / rate
    simulator = Simulator(problem)
    found = simulator.stream(stream.placement, samples=60, in_flight=stream.in_flight)
    return found.steady.period


def _features(problem: Problem, stream: MeasuredStream, weights: FloatArray) -> FloatArray:
    """Seconds, segments, entering tensors and their bytes of the device that works longest."""
    if stream.placement is None:
        n = problem.n_devices
        busy = 1.0 / float((1.0 / problem.costs.seconds.sum(axis=0)).sum())
        return np.array([busy, 1.0 / n, 0.0, 0.0])
    found = Simulator(problem).stream(stream.placement, samples=2, in_flight=1)
    rows = np.zeros((problem.n_devices, 4))
    graph = problem.unit_graph
    for segment in found.segments:
        entering = [t for t in segment.inputs if graph.tensor_producers[t] >= 0]
        rows[segment.device] += [
            float(problem.costs.seconds[list(segment.units), segment.device].sum()),
            1.0,
            len(entering),
            float(graph.tensor_bytes[entering].sum()),
        ]
    return np.asarray(rows[int(np.argmax(rows @ weights))])
