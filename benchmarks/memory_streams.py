"""Predicted and measured peak memory of streams that fit no single device.

The limit of every device is a share of the peak of the whole model's stream on one device. The
number of samples in flight is the best that fits. The outputs of each sample are compared with the
unsplit model's, and the allocators measure the peaks while the simulated schedule runs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.execution_models import EVENT, MaxLoad
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InfeasibleError
from placewright.execution.output_check import OutputCheck
from placewright.execution.runtime import LoadedModel
from placewright.profiling.stream_calibration import different_samples, sample_error, stream_runner
from placewright.session.plans import plan_of
from placewright.session.streams import stream_memory
from placewright.simulation.model import Simulator
from placewright.simulation.segments import stream_segments

_PLAYED = 30
_TRIES = 4


@dataclass(frozen=True)
class StreamMemory:
    """Memory and outputs of a placement's stream.

    Attributes:
        predicted, measured: device name -> peak bytes.
        segments: of one sample.
        in_flight: most samples in flight.
        error: largest relative error of outputs against the unsplit model.
        equal: the error is within the tolerance of the precision.
    """

    predicted: dict[str, float]
    measured: dict[str, float]
    segments: int
    in_flight: int
    error: float
    equal: bool


def streamed_problem(problem: Problem) -> Problem:
    """The problem for the search, which counts weights; the simulated stream counts samples."""
    return replace(problem, execution_model=MaxLoad(samples_in_flight=0))


def placed_stream(problem: Problem, find: Callable[[Problem], Placement]) -> Placement:
    """Find a placement with memory for at least one sample in flight.

    The search counts weights only. If the tensors of a sample do not fit beside them, the search is
    repeated with a lower limit for the weights, and at last for a placement that fits a single run.

    Args:
        problem: from `streamed_problem`, with limits.
        find: finds a placement of a problem.

    Raises:
        InfeasibleError: no placement was found, or no sample fits.
    """
    limits = problem.cluster.memory_bytes
    unlimited = _with_limits(problem, np.full(len(limits), np.inf))
    room = limits.copy()
    with suppress(InfeasibleError):
        for _ in range(_TRIES):
            placement = find(_with_limits(problem, room))
            peaks = Simulator(unlimited).stream(placement, samples=2, in_flight=1).memory_peaks
            over = float(np.max(peaks - limits))
            if over <= 0.0:
                return placement
            room = room - 1.25 * over  # of all: what one gives up may come to another
    return find(replace(problem, objective="latency", execution_model=EVENT))


def _with_limits(problem: Problem, limits: FloatArray) -> Problem:
    devices = tuple(
        replace(device, memory_bytes=float(limit))
        for device, limit in zip(problem.cluster.devices, limits, strict=True)
    )
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def whole_stream_bytes(problem: Problem) -> float:
    """Predicted peak bytes of the stream of the whole model on the first device."""
    everything = Placement.of(np.zeros(problem.n_units, dtype=np.int64))
    return float(Simulator(problem).stream(everything, samples=_PLAYED).memory_peaks[0])


def measured_stream(
    problem: Problem, placement: Placement, model: LoadedModel, runtime: str
) -> StreamMemory:
    """Stream samples through a placement that keeps its limits.

    Args:
        problem: with limits.
        placement: of the problem.
        model: loaded by the runtime, whose allocators measure peaks.
        runtime: its name.

    Raises:
        InfeasibleError: not even one sample fits.
    """
    in_flight = Simulator(problem).stream(placement, samples=_PLAYED).in_flight
    value = Simulator(problem).value(placement)
    found = Solution(placement, value, "feasible", 0.0)
    plan = plan_of(problem, found, PlacerRecord("benchmarks.memory", "1", 0, 0, 0.0), runtime)
    peaks = stream_memory(plan, model, in_flight)
    error = _error(problem, placement, model, in_flight)
    return StreamMemory(
        {name: row[0] for name, row in peaks.items()},
        {name: row[1] for name, row in peaks.items()},
        len(stream_segments(problem, placement.device_of)),
        in_flight,
        error,
        error <= model.tolerance(problem.cluster.devices),
    )


def _error(problem: Problem, placement: Placement, model: LoadedModel, in_flight: int) -> float:
    samples = different_samples(model, 2 * in_flight + 2)
    check = OutputCheck(model, problem.cluster.devices)
    with stream_runner(problem, placement, model, in_flight=in_flight) as runner:
        answers = runner.run_many(samples)
    errors = [
        sample_error(check, sample, answer.outputs, {})
        for sample, answer in zip(samples, answers, strict=True)
    ]
    return float(np.max(errors))
