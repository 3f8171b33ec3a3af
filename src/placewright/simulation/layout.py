"""The arrays of a problem, made once, which all kernels and bounds read."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.cluster import Cluster
from placewright.core.execution_models import Event
from placewright.core.graph import compute_bound_tensors
from placewright.core.problem import Problem
from placewright.simulation.compiled import compiled, inlined, read_only

NO_ROUTE, LOCAL, DIRECT, VIA_HOST = -1, 0, 1, 2
NO_LIMIT = 2**31  # segments, or ops of a segment
BLOCK = 64  # terms that are added to each other before their sums are

Made = TypeVar("Made")


class ProblemArrays(NamedTuple):
    """A problem as arrays; units, tensors and devices are numbers.

    M is the number of endpoints: the devices, then the host if it is not a device.
    """

    seconds: FloatArray  # (n_units, n_devices)
    allowed: BoolArray  # (n_units, n_devices)
    colocation: IntArray  # (n_units,): class of each unit
    n_classes: int
    topological: IntArray  # (n_units,)
    input_ptr: IntArray  # (n_units + 1,)
    inputs: IntArray  # tensors that each unit reads
    output_ptr: IntArray  # (n_units + 1,)
    outputs: IntArray  # tensors that each unit makes
    consumer_ptr: IntArray  # (n_tensors + 1,)
    consumers: IntArray  # units that read each tensor; an edge is an index of this array
    producer: IntArray  # (n_tensors,): -1 for a graph input
    tensor_bytes: FloatArray  # (n_tensors,)
    is_output: BoolArray  # (n_tensors,)
    own_transfer: FloatArray  # (n_tensors,) seconds, or empty: from the links
    route: IntArray  # (M, M): NO_ROUTE, LOCAL, DIRECT or VIA_HOST
    latency: FloatArray  # (M, M) seconds; 0 under `event` if the copy is part of a unit
    seconds_per_byte: FloatArray  # (M, M)
    occupied: IntArray  # (M, M): SENDER | RECEIVER, the ends that copy; 0 except under `event`
    copy_latency: FloatArray  # (M, M) seconds that each occupied device adds to a unit, else 0
    copy_per_byte: FloatArray  # (M, M)
    channel: IntArray  # (M, M)
    queues: BoolArray  # (M, M): transfers wait for each other
    n_channels: int
    host: int
    streams: IntArray  # (n_devices,)
    dispatch: FloatArray  # (n_devices,) seconds per segment
    cut: FloatArray  # (n_devices,) seconds per tensor that enters a segment
    cut_per_byte: FloatArray  # (n_devices,)
    layout: FloatArray  # (n_devices,) seconds more per such tensor that a compute-bound unit made
    layout_per_byte: FloatArray  # (n_devices,)
    has_layout: BoolArray  # (n_tensors,): made by a compute-bound unit
    has_cuts: bool
    domain: IntArray  # (n_devices,): memory domain, -1 for none
    factors: FloatArray  # (n_domains, n_members + 1): factor for a number of used devices
    kept_ptr: IntArray  # (n_kept + 1,)
    kept_units: IntArray  # units that need each entry of `Problem.kept`
    kept_bytes: FloatArray  # (n_kept,)
    memory: FloatArray  # (n_devices,) bytes: the limit of the device and of its pool
    pool_shares: FloatArray  # (n_pools, n_devices) of `Cluster`
    pool_bytes: FloatArray  # (n_pools,)
    segments: IntArray  # (n_devices,) segments at most; empty if no device limits its segments
    segment_ops: IntArray  # (n_devices,) ops of a segment at most, or empty
    unit_ops: IntArray  # (n_units,) ops of each unit, or empty
    excludes: BoolArray  # (n_devices, n_devices): never compute at once; empty if all pairs may


def once_per_problem(of_problem: Callable[[Problem], Made]) -> Callable[[Problem], Made]:
    """Decorate a function that computes something of a problem: once, while the problem lives."""
    made: WeakKeyDictionary[Problem, Made] = WeakKeyDictionary()

    @wraps(of_problem)
    def cached(problem: Problem) -> Made:
        if problem not in made:
            made[problem] = of_problem(problem)
        return made[problem]

    return cached


@once_per_problem
def problem_arrays(problem: Problem) -> ProblemArrays:
    """Lay a problem out as arrays."""
    graph, cluster = problem.unit_graph, problem.cluster
    devices = cluster.devices
    own = problem.unit_transfer_seconds
    kept = problem.kept
    domain, factors = _contention(problem)
    cut = np.array([device.cut_seconds for device in devices])
    cut_per_byte = np.array([device.cut_seconds_per_byte for device in devices])
    layout = np.array([device.layout_seconds for device in devices])
    layout_per_byte = np.array([device.layout_seconds_per_byte for device in devices])
    arrays = ProblemArrays(
        seconds=problem.costs.seconds,
        allowed=problem.allowed,
        colocation=problem.colocation.group_of,
        n_classes=problem.colocation.n_groups,
        topological=graph.topological_order,
        input_ptr=graph.op_inputs.indptr,
        inputs=graph.op_inputs.indices,
        output_ptr=graph.op_outputs.indptr,
        outputs=graph.op_outputs.indices,
        consumer_ptr=graph.tensor_consumers.indptr,
        consumers=graph.tensor_consumers.indices,
        producer=graph.tensor_producers,
        tensor_bytes=graph.tensor_bytes,
        is_output=graph.tensor_is_output,
        own_transfer=np.empty(0) if own is None else own,
        route=routes(problem),
        **_link_times(problem),
        channel=cluster.link_channel,
        queues=cluster.link_queues,
        n_channels=cluster.n_channels,
        host=cluster.host_endpoint,
        streams=np.array([device.streams for device in devices], dtype=np.int64),
        dispatch=np.array([device.dispatch_seconds for device in devices]),
        cut=cut,
        cut_per_byte=cut_per_byte,
        layout=layout,
        layout_per_byte=layout_per_byte,
        has_layout=compute_bound_tensors(graph),
        has_cuts=any(costs.any() for costs in (cut, cut_per_byte, layout, layout_per_byte)),
        domain=domain,
        factors=factors,
        kept_ptr=kept.units.indptr,
        kept_units=kept.units.indices,
        kept_bytes=kept.sizes,
        **_limits(cluster),
        **_segment_limits(problem),
        excludes=cluster.excludes if cluster.shared_processors else np.zeros((0, 0), np.bool_),
    )
    return read_only(arrays)


def _limits(cluster: Cluster) -> dict[str, Any]:
    """Memory of devices and shared pools, by the names of `ProblemArrays`."""
    return {
        "memory": cluster.memory_bytes,
        "pool_shares": cluster.pool_shares,
        "pool_bytes": cluster.pool_bytes,
    }


def _segment_limits(problem: Problem) -> dict[str, Any]:
    """Limits on segments, by the names of `ProblemArrays`; a large number is no limit."""
    devices = problem.cluster.devices if problem.cluster.limits_segments else ()
    return {
        "segments": np.array(
            [device.max_segments or NO_LIMIT for device in devices], dtype=np.int64
        ),
        "segment_ops": np.array(
            [device.max_segment_ops or NO_LIMIT for device in devices], dtype=np.int64
        ),
        "unit_ops": np.bincount(problem.units.group_of, minlength=problem.n_units)[
            : problem.n_units if devices else 0
        ],
    }


def _link_times(problem: Problem) -> dict[str, Any]:
    """Seconds of hops, and of copies that are parts of units.

    Under `event` a copy that occupies a device is an overhead of a unit, and the hop takes no time,
    so that bounds on plain costs hold. Under other models devices pay for hops in any case.
    """
    cluster = problem.cluster
    latency, per_byte = cluster.link_latency, cluster.link_seconds_per_byte
    occupied = cluster.occupied
    if not isinstance(problem.execution_model, Event):
        occupied = np.zeros_like(occupied)
    by_unit = occupied > 0
    return {
        "latency": np.where(by_unit, 0.0, latency) if by_unit.any() else latency,
        "seconds_per_byte": np.where(by_unit, 0.0, per_byte) if by_unit.any() else per_byte,
        "occupied": occupied,
        "copy_latency": np.where(by_unit, latency, 0.0),
        "copy_per_byte": np.where(by_unit, per_byte, 0.0),
    }


def routes(problem: Problem) -> IntArray:
    """Kind of route from each endpoint to each other, shape (M, M), int64."""
    cluster = problem.cluster
    linked = cluster.link_channel >= 0
    host = cluster.host_endpoint
    route = np.full(linked.shape, NO_ROUTE, dtype=np.int64)
    through = linked[:, host][:, None] & linked[host, :][None, :]
    route[through] = VIA_HOST
    route[linked] = DIRECT
    np.fill_diagonal(route, LOCAL)
    return route


def named_channels(problem: Problem) -> BoolArray:
    """Channels that links share by name, shape (n_channels,): they alone have a load."""
    cluster = problem.cluster
    named = np.zeros(cluster.n_channels, dtype=np.bool_)
    for link in cluster.links:
        ends = cluster.endpoint_index[link.source], cluster.endpoint_index[link.destination]
        named[cluster.link_channel[ends]] |= link.channel is not None
    return named


def _contention(problem: Problem) -> tuple[IntArray, FloatArray]:
    cluster = problem.cluster
    names = list(cluster.contention)
    domain = np.array(
        [names.index(d.memory_domain) if d.memory_domain in names else -1 for d in cluster.devices],
        dtype=np.int64,
    )
    n_members = int(cluster.replicas.sum())
    factors = np.ones((len(names), n_members + 1))
    for row, name in enumerate(names):
        by_count = cluster.contention[name]
        for used in range(1, n_members + 1):
            factors[row, used] = by_count[min(used, len(by_count)) - 1]
    return domain, factors


def link_seconds(arrays: ProblemArrays, tensor: int, source: int, target: int) -> float:
    """Seconds of a tensor on the link from one endpoint to another."""
    if len(arrays.own_transfer):
        return float(arrays.own_transfer[tensor])
    per_byte = arrays.seconds_per_byte[source, target]
    return float(arrays.latency[source, target] + arrays.tensor_bytes[tensor] * per_byte)


hop_seconds = inlined(link_seconds)  # the same for kernels


@inlined
def transfer_seconds(arrays: ProblemArrays, tensor: int, source: int, target: int) -> float:
    """Seconds of all hops of a tensor between two endpoints; inf without a route."""
    kind = arrays.route[source, target]
    if source == target:
        return 0.0
    if kind == DIRECT:
        return hop_seconds(arrays, tensor, source, target)
    if kind == VIA_HOST:
        return hop_seconds(arrays, tensor, source, arrays.host) + hop_seconds(
            arrays, tensor, arrays.host, target
        )
    return np.inf


def broken_limit(arrays: ProblemArrays, used: FloatArray) -> int:
    """The first device, or n_devices + shared pool, that keeps too much; -1 if all limits hold.

    Args:
        used: bytes of each device, shape (n_devices,).
    """
    over = np.flatnonzero(used > arrays.memory)
    if len(over):
        return int(over[0])
    pool = overfull_pool(arrays.pool_shares, arrays.pool_bytes, used)
    return -1 if pool < 0 else len(used) + int(pool)


@inlined
def overfull_pool(pool_shares: FloatArray, pool_bytes: FloatArray, used: FloatArray) -> int:
    """The first shared pool whose devices take too much together, -1 for none.

    Args:
        pool_shares, pool_bytes: of `ProblemArrays`.
        used: bytes of each device, shape (n_devices,).
    """
    for pool in range(len(pool_bytes)):
        total = 0.0
        for device in range(len(used)):
            if pool_shares[pool, device] > 0.0:
                total += used[device] * pool_shares[pool, device]
        if total > pool_bytes[pool]:
            return pool
    return -1


@compiled
def resident_bytes(arrays: ProblemArrays, device_of: IntArray) -> FloatArray:
    """Resident bytes of each device, an entry once per device, shape (n_devices,)."""
    total = np.zeros(arrays.seconds.shape[1])
    seen = np.full(len(total), -1, np.int64)
    for first in range(0, len(arrays.kept_bytes), BLOCK):
        part = np.zeros(len(total))
        for entry in range(first, min(len(arrays.kept_bytes), first + BLOCK)):
            for at in range(arrays.kept_ptr[entry], arrays.kept_ptr[entry + 1]):
                device = device_of[arrays.kept_units[at]]
                if seen[device] != entry:
                    seen[device] = entry
                    part[device] += arrays.kept_bytes[entry]
        total += part
    return total


def all_in_turn(problem: Problem) -> float:
    """Seconds that no schedule without needless waiting exceeds, occupying copies left out."""
    arrays = problem_arrays(problem)
    seconds = np.where(np.isfinite(arrays.seconds), arrays.seconds, 0.0).max(axis=1).sum()
    slowest = float(np.max(arrays.seconds_per_byte, initial=0.0, where=arrays.channel >= 0))
    latency = float(np.max(arrays.latency, initial=0.0, where=arrays.channel >= 0))
    hop = latency + arrays.tensor_bytes * slowest
    if len(arrays.own_transfer):
        hop = arrays.own_transfer
    per_byte = arrays.cut_per_byte + arrays.layout_per_byte
    cuts = ((arrays.cut + arrays.layout)[:, None] + per_byte[:, None] * arrays.tensor_bytes).max(0)
    readers = np.diff(arrays.consumer_ptr)
    overheads = float(arrays.dispatch.max() * problem.n_units + (readers * cuts).sum())
    factor = float(arrays.factors.max(initial=1.0))
    ways = readers + arrays.is_output  # to the readers, and home
    return float(seconds * factor + overheads + 2.0 * (ways * hop).sum())


def copies_in_turn(problem: Problem) -> float:
    """Seconds of all copies that may occupy devices, as parts of sender and receiver."""
    arrays = problem_arrays(problem)
    slowest = float(arrays.copy_per_byte.max(initial=0.0))
    copy = float(arrays.copy_latency.max(initial=0.0)) + arrays.tensor_bytes * slowest
    return float(2.0 * (np.diff(arrays.consumer_ptr) * copy).sum())
