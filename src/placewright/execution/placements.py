"""Runners of placements, and of the unsplit model on one device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np

from placewright.core.cluster import Device
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.execution.direct import DirectRunner, are_equal_cores, split_copy
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

_ROUNDING = 1e-9  # of sums of seconds in different orders


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


def call_runner(
    problem: Problem, placement: Placement, model: LoadedModel, *, at_once: int = 1
) -> DirectRunner | ConcurrentRunner:
    """Make the runner of a placement's single calls, as a loaded plan serves them.

    A split over equal cores in which nothing overlaps runs in its caller's thread. A call then
    needs no other thread, and to wake one can take longer than a small segment.

    Args:
        problem: of the placement.
        placement: of its units.
        model: loaded by the runtime.
        at_once: most calls under way.
    """
    segments, devices = placement_segments(problem, placement), problem.cluster.devices
    is_step = problem.objective == "training"
    if not is_step and _is_serial(problem, placement) and are_equal_cores(devices, segments):
        return DirectRunner(model, [split_copy(model, segments, devices)], at_once=at_once)
    return ConcurrentRunner(model, segments, devices, in_flight=at_once)


def _is_serial(problem: Problem, placement: Placement) -> bool:
    """True if one unit after the other is predicted to take no longer than the placement.

    So it is for a chain of segments, and for small units, whose cuts cost more than they gain.
    """
    units = np.arange(problem.n_units)
    serial_s = float(problem.costs.seconds[units, placement.device_of].sum())
    return serial_s <= (1 + _ROUNDING) * Simulator(problem).timeline(placement).value


def whole_model_runner(
    model: LoadedModel, device: Device, *, in_flight: int = 1
) -> ConcurrentRunner:
    """Make a runner of the unsplit model on one device: a baseline and a reference."""
    whole, compiled = [whole_segment(model.graph)], [model.reference(device)]
    return ConcurrentRunner(model, whole, [device], in_flight=in_flight, compiled=compiled)


def taking_turns(model: LoadedModel) -> AbstractContextManager[None]:
    """Let runners made inside take turns; they share one copy of state if the runtime can."""
    return model.one_state() if isinstance(model, SharesState) else nullcontext()
