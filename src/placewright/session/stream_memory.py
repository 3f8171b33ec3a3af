"""Memory of a plan's stream: what the simulator plays beside what the allocators tell."""

from __future__ import annotations

import numpy as np

from placewright.core.plan import Plan
from placewright.execution.runtime import LoadedModel
from placewright.execution.sample_server import MeasuresStreamMemory
from placewright.profiling.streams import stream_parts
from placewright.simulation.model import Simulator
from placewright.simulation.stream.play import Stream

_PERIODS = 3  # of full pipelines


def played_schedule(stream: Stream) -> list[tuple[int, int]]:
    """(sample, segment) in the order in which a played stream begins them; segment -1 where the
    sample is done, before what begins at that instant."""
    events: list[tuple[float, int, int, int]] = []
    for sample in range(len(stream.finish)):
        events.append((float(stream.finish[sample]), 0, sample, -1))
        for index, tasks in enumerate(stream.tasks.of_segment):
            events.append((float(stream.begin[sample, tasks.compute]), 1, sample, index))
    return [(sample, index) for _, _, sample, index in sorted(events)]


def stream_memory(plan: Plan, model: LoadedModel, in_flight: int) -> dict[str, tuple[float, float]]:
    """Device name -> predicted and measured peak bytes; empty where the runtime cannot tell."""
    problem = plan.problem
    if not isinstance(model, MeasuresStreamMemory) or np.any(problem.cluster.replicas > 1):
        return {}
    stream = Simulator(problem).stream(
        plan.placement, samples=_PERIODS * in_flight + 2, in_flight=in_flight
    )
    parts = stream_parts(problem, plan.placement)
    devices = problem.cluster.devices
    measured = model.stream_memory_peaks(parts, devices, played_schedule(stream)).tolist()
    pairs = zip(stream.memory_peaks.tolist(), measured, strict=True)
    return dict(zip(problem.cluster.device_names, pairs, strict=True))
