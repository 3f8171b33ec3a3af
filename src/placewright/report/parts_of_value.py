"""The value of a placement in parts that add up to it: where the time goes on its critical path.

Under `event` the pieces of the critical path abut, or a device waits between them; a piece of a
unit is its own seconds, what contention adds, and what its segment adds. Under `max-load` the
value is the load of the busiest device or channel.
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
    """Name of each of `PARTS` -> seconds; they add up to the value.

    Args:
        problem: whose value it is.
        simulator: of the problem.
        placement: feasible.

    Returns:
        None where the execution model has no such parts.
    """
    if isinstance(problem.execution_model, Event):
        return _of_path(problem, simulator.timeline(placement))
    if isinstance(problem.execution_model, MaxLoad) and not problem.execution_model.split_phases:
        return _of_load(problem, simulator, placement)
    return None


def _of_path(problem: Problem, timeline: Timeline) -> dict[str, float]:
    found = dict.fromkeys(PARTS, 0.0)
    factors = _factors(problem, timeline)
    begins = {int(timeline.segment_of[unit]): unit for unit in reversed(timeline.order.tolist())}
    until = 0.0
    for step in timeline.critical_path:
        found["waiting"] += step.start - until
        until = step.end
        if not _is_unit(problem, timeline, step):
            found["transfers"] += step.end - step.start
            continue
        device = int(timeline.device_of[step.index])
        own = float(problem.costs.seconds[step.index, device])
        slower = own * (factors[device] - 1.0)
        is_first = begins[int(timeline.segment_of[step.index])] == step.index
        dispatch = problem.cluster.devices[device].dispatch_seconds if is_first else 0.0
        found["compute"] += own
        found["contention"] += slower
        found["dispatch"] += dispatch
        found["cuts"] += step.end - step.start - own - slower - dispatch
    found["waiting"] += timeline.value - until
    return found


def _is_unit(problem: Problem, timeline: Timeline, step: Step) -> bool:
    """True for a unit, False for a transfer: an op may be called like a transfer."""
    at = step.index
    return (
        at < problem.n_units
        and problem.unit_graph.op_names[at] == step.what
        and (float(timeline.start[at]), float(timeline.end[at])) == (step.start, step.end)
    )


def _factors(problem: Problem, timeline: Timeline) -> list[float]:
    """What contention multiplies the seconds of each device's units by."""
    cluster = problem.cluster
    used = np.unique(timeline.device_of).tolist()
    domains = [device.memory_domain for device in cluster.devices]
    found = []
    for domain in domains:
        given = cluster.contention.get(domain or "", (1.0,))
        sharing = sum(domains[device] == domain for device in used)
        found.append(given[min(max(sharing, 1), len(given)) - 1])
    return found


def _of_load(problem: Problem, simulator: Simulator, placement: Placement) -> dict[str, float]:
    """Of the busiest device or channel."""
    loads = simulator.loads(placement.device_of).sum(axis=0)
    busiest = int(np.argmax(loads))
    found = dict.fromkeys(PARTS, 0.0)
    if busiest < problem.n_devices:
        device = problem.cluster.devices[busiest]
        units = np.flatnonzero(placement.device_of == busiest)
        share = device.streams * device.replicas
        own = float(problem.costs.seconds[units, busiest].sum()) / share
        # Where transfers run beside the units, the longer of both is the load.
        found["compute"] = min(own, float(loads[busiest]))
    found["transfers"] = float(loads[busiest]) - found["compute"]
    return found
