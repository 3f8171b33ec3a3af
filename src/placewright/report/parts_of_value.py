"""The value of a placement as a sum of parts.

Under `event`, the steps of the critical path follow each other directly or after a wait. The time
of a unit is its own seconds, the addition of contention, and the overheads of its segment.
Under `max-load`, the value is the load of the busiest device or channel.
"""

from __future__ import annotations

import numpy as np

from placewright.core.execution_models import Event, MaxLoad
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.simulation.model import Simulator
from placewright.simulation.timeline import Step, Timeline

PARTS = ("compute", "contention", "dispatch", "cuts", "transfers", "waiting")


def parts_of_value(
    problem: Problem, simulator: Simulator, placement: Placement
) -> dict[str, float] | None:
    """Name of each of `PARTS` -> seconds, which add up to the value.

    Args:
        problem: the problem.
        simulator: of the problem.
        placement: a feasible placement.

    Returns:
        None if the execution model has no such parts.
    """
    if isinstance(problem.execution_model, Event):
        return _of_path(problem, simulator.timeline(placement))
    if isinstance(problem.execution_model, MaxLoad) and not problem.execution_model.split_phases:
        return _of_load(problem, simulator, placement)
    return None


def _of_path(problem: Problem, timeline: Timeline) -> dict[str, float]:
    parts = dict.fromkeys(PARTS, 0.0)
    factors = _factors(problem, timeline)
    begins = {int(timeline.segment_of[unit]): unit for unit in reversed(timeline.order.tolist())}
    until = 0.0
    for step in timeline.critical_path:
        parts["waiting"] += step.start - until
        until = step.end
        if not _is_unit(problem, timeline, step):
            parts["transfers"] += step.end - step.start
            continue
        device = int(timeline.device_of[step.index])
        own = float(problem.costs.seconds[step.index, device])
        slower = own * (factors[device] - 1.0)
        is_first = begins[int(timeline.segment_of[step.index])] == step.index
        dispatch = problem.cluster.devices[device].dispatch_seconds if is_first else 0.0
        parts["compute"] += own
        parts["contention"] += slower
        parts["dispatch"] += dispatch
        parts["cuts"] += step.end - step.start - own - slower - dispatch
    parts["waiting"] += timeline.value - until
    return parts


def _is_unit(problem: Problem, timeline: Timeline, step: Step) -> bool:
    """Whether a step is a unit and not a transfer; an op may have the name of a transfer."""
    at = step.index
    return (
        at < problem.n_units
        and problem.unit_graph.op_names[at] == step.what
        and (float(timeline.start[at]), float(timeline.end[at])) == (step.start, step.end)
    )


def _factors(problem: Problem, timeline: Timeline) -> list[float]:
    """Contention factor of each device."""
    cluster = problem.cluster
    used = np.unique(timeline.device_of).tolist()
    domains = [device.memory_domain for device in cluster.devices]
    factors = []
    for domain in domains:
        shared = cluster.contention.get(domain or "", (1.0,))
        sharing = sum(domains[device] == domain for device in used)
        factors.append(shared[min(max(sharing, 1), len(shared)) - 1])
    return factors


def _of_load(problem: Problem, simulator: Simulator, placement: Placement) -> dict[str, float]:
    """Parts of the load of the busiest device or channel."""
    loads = simulator.loads(placement.device_of).sum(axis=0)
    busiest = int(np.argmax(loads))
    parts = dict.fromkeys(PARTS, 0.0)
    if busiest < problem.n_devices:
        device = problem.cluster.devices[busiest]
        units = np.flatnonzero(placement.device_of == busiest)
        share = device.streams * device.replicas
        own = float(problem.costs.seconds[units, busiest].sum()) / share
        # If transfers overlap with units, the load is the longer of both.
        parts["compute"] = min(own, float(loads[busiest]))
    parts["transfers"] = float(loads[busiest]) - parts["compute"]
    return parts
