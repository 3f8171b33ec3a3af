"""Constraints that a placement breaks: check, and description for people."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import FloatArray, IntArray, frozen_ints
from placewright.core.cluster import Cluster
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.quantities import format_bytes
from placewright.simulation.compiled import compiled
from placewright.simulation.layout import ProblemArrays

_MOST_SHOWN = 8  # devices of a pool in a message
NO_ORDER = frozen_ints([])  # the execution model's own dispatch
# Why a placement has no value.
FINE, NOT_ALLOWED, SPLIT_CLASS, BAD_ORDER, CUT_OFF, TOO_LARGE, TOO_MANY_SEGMENTS = range(7)
OVER_LIMIT = 7  # of latency, energy or price


@compiled
def check(arrays: ProblemArrays, device_of: IntArray, order: IntArray) -> tuple[int, int]:
    """Check support, pins, colocation and order: the fault (FINE for none) and its place."""
    n_units = len(device_of)
    of_class = np.full(arrays.n_classes, -1, np.int64)
    for unit in range(n_units):
        device = device_of[unit]
        if device < 0 or device >= arrays.seconds.shape[1] or not arrays.allowed[unit, device]:
            return NOT_ALLOWED, unit
        group = arrays.colocation[unit]
        if of_class[group] >= 0 and of_class[group] != device:
            return SPLIT_CLASS, unit
        of_class[group] = device
    if len(order) == 0:
        return FINE, -1
    position = np.full(n_units, -1, np.int64)
    if len(order) != n_units:
        return BAD_ORDER, 0
    for at in range(n_units):
        if order[at] < 0 or order[at] >= n_units or position[order[at]] >= 0:
            return BAD_ORDER, at
        position[order[at]] = at
    for tensor in range(len(arrays.producer)):
        producer = arrays.producer[tensor]
        for edge in range(arrays.consumer_ptr[tensor], arrays.consumer_ptr[tensor + 1]):
            if producer >= 0 and position[producer] >= position[arrays.consumers[edge]]:
                return BAD_ORDER, position[arrays.consumers[edge]]
    return FINE, -1


@dataclass(frozen=True, eq=False)
class Shortage:
    """The distance of a placement from keeping every limit.

    It counts the first kind of limit that the simulator finds exceeded: bytes over the limits of
    devices and pools as a share of all those limits, an amount of `core.charges` as a share of its
    own limit, or each segment too many as 1.
    """

    value: float  # simulated; inf if the placement breaks a constraint
    # 0 if the placement breaks nothing; inf if it breaks something else than a limit
    total: float
    peaks: FloatArray  # bytes of each device, shape (n_devices,); zeros where `total` has no bytes
    over: FloatArray  # bytes above each of `Cluster.memory_limits`, >= 0


def bytes_over(cluster: Cluster, peaks: FloatArray) -> FloatArray:
    """Bytes above each of `Cluster.memory_limits`, shape (n_devices + n_pools,), >= 0.

    Args:
        cluster: with the limits.
        peaks: bytes of each device, shape (n_devices,).
    """
    used = np.concatenate([peaks, cluster.pooled(peaks)]) if cluster.shared_pools else peaks
    return np.maximum(used - cluster.memory_limits, 0.0)


@dataclass(frozen=True)
class Violation:
    """A broken constraint."""

    # ``"support"``, ``"pin"``, ``"colocation"``, ``"order"``, ``"route"``, ``"memory"``,
    # ``"segments"``, ``"subgraphs"`` or ``"limit"``
    constraint: str
    where: str  # name of the op, device, memory pool or limited quantity concerned
    message: str  # what is wrong and what to do, in one line
    # over the limit: bytes for ``"memory"``, segments for ``"segments"``, seconds, joules or price
    # for ``"limit"``; else 0
    excess: float = 0.0


def violation_of(
    problem: Problem, placement: Placement, fault: int, at: int, peaks: FloatArray
) -> Violation:
    """Describe a fault.

    Args:
        placement: the placement with the fault.
        fault: its code, as above.
        at: unit, position in the order, tensor, device, n_devices + number of a shared pool, or
            device + n_devices * number of segments, depending on the fault.
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
    if fault == TOO_MANY_SEGMENTS:
        return _too_many_segments(problem, at % cluster.n_devices, at // cluster.n_devices)
    assert fault == TOO_LARGE
    return _too_large(problem, at, peaks)


def _too_many_segments(problem: Problem, device: int, count: int) -> Violation:
    spec = problem.cluster.devices[device]
    limit = spec.max_segments or count
    return Violation(
        "segments",
        spec.name,
        f"device '{spec.name}' needs {count} segments and may run {limit}: {count - limit} too "
        "many; move ops away, or raise `segments` in the cluster file",
        float(count - limit),
    )


def _too_large(problem: Problem, at: int, peaks: FloatArray) -> Violation:
    """Describe the limit of a device, or of pool `at` - n_devices, that a placement breaks."""
    cluster, counts = problem.cluster, problem.execution_model.memory_counts
    counted = "" if counts == "peak" else f" ({counts})"
    pool = cluster.shared_pools[at - cluster.n_devices] if at >= cluster.n_devices else None
    if pool is None and peaks[at] <= cluster.devices[at].memory_bytes:
        spec, peak = cluster.devices[at], float(peaks[at])
        over = {name: peak * part * spec.replicas / max(cluster.pools[name], 1.0)
                for name, part in spec.pool_shares.items()}  # fmt: skip
        pool = max(over, key=lambda name: over[name])
    if pool is not None:
        members = [d for d, device in enumerate(cluster.devices) if pool in device.pool_shares]
        parts = [cluster.devices[d].pool_shares[pool] for d in members]
        shares = [float(peaks[d]) * part * cluster.devices[d].replicas
                  for d, part in zip(members, parts, strict=True)]  # fmt: skip
        needed, limit, where = sum(shares), cluster.pools[pool], pool
        takers = [
            f"{format_bytes(share)} on '{cluster.device_names[d]}'"
            for d, share in zip(members, shares, strict=True)
            if share > 0
        ]
        what = f"pool '{pool}' needs {format_bytes(needed)} ({', '.join(takers[:_MOST_SHOWN])})"
        ways = "move ops to devices of another pool"
    else:
        device = cluster.devices[at]
        needed, limit, where = float(peaks[at]), device.memory_bytes, device.name
        what, ways = f"device '{where}' needs {format_bytes(needed)}", "move ops away"
    excess = needed - limit
    return Violation(
        "memory",
        where,
        f"{what} and has {format_bytes(limit)}: {format_bytes(excess)} short{counted}; "
        f"{ways} or raise its limit (argument `memory`)",
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
