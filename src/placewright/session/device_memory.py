"""Peak memory of a plan on each device: predicted, and measured by the allocators."""

from __future__ import annotations

from dataclasses import dataclass

from placewright.core.plan import Plan
from placewright.execution.placements import placement_segments
from placewright.execution.runtime import LoadedModel, MeasuresMemory
from placewright.simulation.model import Simulator


@dataclass(frozen=True)
class DeviceMemory:
    """Peak memory of one device in bytes.

    Attributes:
        device: its name.
        predicted: by the simulator.
        measured: by the allocator.
    """

    device: str
    predicted: float
    measured: float


def device_memory(plan: Plan, model: LoadedModel) -> tuple[DeviceMemory, ...]:
    """Peaks of a plan on each device; none if the runtime cannot measure them."""
    if not isinstance(model, MeasuresMemory):
        return ()
    problem = plan.problem
    devices = problem.cluster.devices
    segments = placement_segments(problem, plan.placement)
    measured = model.memory_peaks(segments, devices).tolist()
    predicted = Simulator(problem).memory_peaks(plan.placement).tolist()
    names = problem.cluster.device_names
    return tuple(map(DeviceMemory, names, predicted, measured))
