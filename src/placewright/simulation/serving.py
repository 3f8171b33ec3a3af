"""Seconds of single calls of a split as a loaded plan serves them: in one thread, or in several.

A split over equal cores runs in its caller's thread, unless a thread for each core is predicted to
be faster. A call in one thread wakes no other, and no core slows another down, so that it can be
faster than the timeline of the placement, by whose rules placements are searched and proven.
"""

from __future__ import annotations

import numpy as np

from placewright.core.charges import CHARGED
from placewright.core.execution_models import Event
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.simulation.layout import ProblemArrays, problem_arrays
from placewright.simulation.model import Simulator
from placewright.simulation.segments import Segment, merged_in_turn, segments_of

_ROUNDING = 1e-9  # of sums of seconds in different orders


def is_in_one_thread(problem: Problem, placement: Placement) -> bool:
    """True if the caller's thread serves the placement.

    So it is for a chain of segments over equal cores, and where waits for other threads cost more
    than overlap gains.
    """
    if not _may_be_in_one_thread(problem, placement):
        return False
    seconds = Simulator(problem).timeline(placement).value
    return one_thread_seconds(problem, placement) <= (1 + _ROUNDING) * seconds


def timeline_segments(problem: Problem, placement: Placement) -> tuple[Segment, ...]:
    """The segments of a placement's timeline.

    Raises:
        InfeasibleError: memory, segments or the order do not allow the placement.
    """
    order = placement.order
    if order is None:
        order = Simulator(problem).timeline(placement).order
    return segments_of(problem, placement, order)


def one_thread_seconds(problem: Problem, placement: Placement) -> float:
    """Seconds of the segments one after the other, which wait for nothing and slow no other down.

    Successive segments of one device are merged. They have the overheads of all segments: dispatch,
    costs of cuts, and a share of their units' seconds.

    Raises:
        InfeasibleError: memory, segments or the order do not allow the placement.
    """
    segments = merged_in_turn(problem, timeline_segments(problem, placement))
    shares = [device.split_share for device in problem.cluster.devices]
    if len({segment.device for segment in segments}) == 1:  # the whole model
        shares = [0.0] * problem.n_devices
    arrays = problem_arrays(problem)
    return float(sum(_segment_seconds(arrays, x, shares[x.device]) for x in segments))


def _segment_seconds(arrays: ProblemArrays, segment: Segment, split_share: float) -> float:
    device = segment.device
    seconds = (1.0 + split_share) * float(arrays.seconds[list(segment.units), device].sum())
    seconds += float(arrays.dispatch[device])
    for tensor in segment.inputs:
        if arrays.producer[tensor] < 0:
            continue
        size = arrays.tensor_bytes[tensor]
        seconds += arrays.cut[device] + size * arrays.cut_per_byte[device]
        if arrays.has_layout[tensor]:
            seconds += arrays.layout[device] + size * arrays.layout_per_byte[device]
    return seconds


def served_seconds(problem: Problem, placement: Placement) -> float:
    """Predicted seconds of a call of the loaded plan; inf if the placement is infeasible.

    A calibrated device alone was timed as a whole, so its units contain the dispatch of its
    segment.
    """
    value, cluster = Simulator(problem).value(placement), problem.cluster
    is_call = isinstance(problem.execution_model, Event) and problem.objective not in CHARGED
    if not (is_call and np.isfinite(value)):
        return value
    if len(np.unique(placement.device_of)) == 1:
        if cluster.prediction_error is not None:
            value -= cluster.devices[int(placement.device_of[0])].dispatch_seconds
    elif _may_be_in_one_thread(problem, placement):
        value = min(value, one_thread_seconds(problem, placement))  # the faster way serves it
    return value + cluster.call_seconds


def _may_be_in_one_thread(problem: Problem, placement: Placement) -> bool:
    """True if any thread may run the segments: their devices are equal parts of the processor.

    The segments of a training step have a thread for each device.
    """
    if problem.objective == "training":
        return False
    devices = problem.cluster.devices
    used = [devices[index] for index in np.unique(placement.device_of).tolist()]
    return all(
        device.kind == "cpu" and device.replicas == 1 and device.fingerprint == used[0].fingerprint
        for device in used
    )
