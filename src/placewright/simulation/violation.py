"""Which constraint a placement breaks, where, and by how much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.quantities import format_bytes
from placewright.simulation.legality import (
    BAD_ORDER,
    CUT_OFF,
    NOT_ALLOWED,
    SPLIT_CLASS,
    TOO_LARGE,
)


@dataclass(frozen=True)
class Violation:
    """A broken constraint.

    Attributes:
        constraint: ``"support"``, ``"pin"``, ``"colocation"``, ``"order"``, ``"route"``,
            ``"memory"`` or ``"subgraphs"``.
        where: name of the op or device concerned.
        message: what is wrong and what to do, in one line.
        excess: bytes over the limit for ``"memory"``, else 0.
    """

    constraint: str
    where: str
    message: str
    excess: float = 0.0


def violation_of(
    problem: Problem, placement: Placement, fault: int, at: int, peaks: np.ndarray
) -> Violation:
    """Name a kernel's fault code.

    Args:
        problem: what was placed.
        placement: the placement with the fault.
        fault: one of the codes of `event.state`.
        at: unit, position in the order, tensor or device, depending on the fault.
        peaks: bytes that each device would need, shape (n_devices,).
    """
    graph, cluster = problem.unit_graph, problem.cluster
    if fault == NOT_ALLOWED:
        return _not_allowed(problem, placement, at)
    if fault == SPLIT_CLASS:
        name = graph.op_names[at]
        return Violation(
            "colocation",
            name,
            f"op '{name}' is on another device than an op it must share one with",
        )
    if fault == BAD_ORDER:
        return Violation(
            "order", str(at), f"the order is not a topological order of all units (position {at})"
        )
    if fault == CUT_OFF:
        producer = int(graph.tensor_producers[at])
        name = graph.op_names[producer] if producer >= 0 else f"graph input {at}"
        return Violation(
            "route",
            name,
            f"the output of '{name}' has no link to a device that needs it, nor a way through the "
            f"host '{cluster.host}'; add a link",
        )
    assert fault == TOO_LARGE
    device = cluster.devices[at]
    excess = float(peaks[at] - device.memory_bytes)
    counts = problem.execution_model.memory_counts
    counted = "" if counts == "peak" else f" ({counts})"
    return Violation(
        "memory",
        device.name,
        f"device '{device.name}' needs {format_bytes(peaks[at])} and has "
        f"{format_bytes(device.memory_bytes)}: {format_bytes(excess)} short{counted}; "
        "move ops away or raise its limit (argument `memory`)",
        excess,
    )


def _not_allowed(problem: Problem, placement: Placement, unit: int) -> Violation:
    graph, cluster = problem.unit_graph, problem.cluster
    name, kind = graph.op_names[unit], graph.op_kinds[unit]
    device = int(placement.device_of[unit])
    if not 0 <= device < cluster.n_devices:
        return Violation("support", name, f"op '{name}' is on device {device}, which is unknown")
    at = cluster.device_names[device]
    pinned = int(problem.pinned_device[unit])
    if pinned >= 0 and pinned != device:
        wanted = cluster.device_names[pinned]
        return Violation("pin", name, f"op '{name}' is on '{at}' but pinned to '{wanted}'")
    return Violation("support", name, f"op '{name}' ({kind}) cannot run on '{at}'; move it")
