"""Runners of placements, and of the unsplit model on one device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from placewright.core.cluster import Device
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import (
    LoadedModel,
    OpSegment,
    segments_of_units,
    whole_segment,
)
from placewright.execution.sharing import SharesState
from placewright.simulation.model import Simulator
from placewright.simulation.segments import segments_of


def placement_segments(problem: Problem, placement: Placement) -> tuple[OpSegment, ...]:
    """Segments that a runtime executes for a placement: exactly those of the simulator.

    Raises:
        ClusterError: a device stands for several.
    """
    problem.cluster.require_single_devices("a runtime")
    order = placement.order
    if order is None:
        order = Simulator(problem).timeline(placement).order
    segments = segments_of(problem, placement, order)
    return segments_of_units(problem, [(s.device, [int(u) for u in s.units]) for s in segments])


def placement_runner(
    problem: Problem, placement: Placement, model: LoadedModel, *, in_flight: int = 1
) -> ConcurrentRunner:
    """Make a runner of a placement. Close it, or use it as a context manager."""
    segments = placement_segments(problem, placement)
    return ConcurrentRunner(model, segments, problem.cluster.devices, in_flight=in_flight)


def whole_model_runner(
    model: LoadedModel, device: Device, *, in_flight: int = 1
) -> ConcurrentRunner:
    """Make a runner of the unsplit model on one device: a baseline and a reference."""
    whole, compiled = [whole_segment(model.graph)], [model.reference(device)]
    return ConcurrentRunner(model, whole, [device], in_flight=in_flight, compiled=compiled)


def taking_turns(model: LoadedModel) -> AbstractContextManager[None]:
    """Let runners made inside take turns; they share one copy of state if the runtime can."""
    return model.one_state() if isinstance(model, SharesState) else nullcontext()
