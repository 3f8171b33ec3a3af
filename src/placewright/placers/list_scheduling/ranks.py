"""Priorities of list schedulers: longest paths, optimistic costs, orders by rank."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from placewright.core.arrays import BoolArray, Csr, FloatArray, IntArray, positions_in
from placewright.core.problem import Problem
from placewright.simulation.compiled import compiled, inlined, read_only
from placewright.simulation.layout import DIRECT, LOCAL, VIA_HOST, once_per_problem, problem_arrays
from placewright.simulation.ranks import mean_costs, mean_transfer_seconds


def with_transfers(problem: Problem) -> Problem:
    """The problem with copies that take their time on the link, for methods that know no others.

    Under `event` a copy that occupies a device is part of a unit, and its hop takes no time.
    """
    return _without_occupants(problem) if problem.cluster.occupied.any() else problem


@once_per_problem
def _without_occupants(problem: Problem) -> Problem:
    links = tuple(replace(link, occupies=None) for link in problem.cluster.links)
    return replace(problem, cluster=replace(problem.cluster, links=links))


def mean_transfers(problem: Problem) -> FloatArray:
    """Mean seconds of each unit tensor between two devices, shape (unit_graph.n_tensors,)."""
    return mean_transfer_seconds(with_transfers(problem))


def mean_upward_ranks(problem: Problem) -> FloatArray:
    """Upward ranks with mean costs and mean transfers, as HEFT uses them, shape (n_units,).

    Topcuoglu et al. 2002, equation 8.
    """
    costs, transfers = mean_costs(problem), mean_transfers(problem)
    return np.asarray(_upward(schedule_tables(problem), costs, transfers))


@compiled
def _upward(tables: ScheduleTables, costs: FloatArray, transfers: FloatArray) -> FloatArray:
    rank = np.zeros(len(costs))
    for at in range(len(costs) - 1, -1, -1):
        unit, longest = tables.topological[at], 0.0
        for index in range(tables.output_ptr[unit], tables.output_ptr[unit + 1]):
            tensor = tables.outputs[index]
            for edge in range(tables.consumer_ptr[tensor], tables.consumer_ptr[tensor + 1]):
                longest = max(longest, transfers[tensor] + rank[tables.consumers[edge]])
        rank[unit] = costs[unit] + longest
    return rank


def mean_downward_ranks(problem: Problem) -> FloatArray:
    """Longest path from a source to each unit, itself excluded, shape (n_units,).

    Topcuoglu et al. 2002, equation 9.
    """
    costs, transfers = mean_costs(problem), mean_transfers(problem)
    return np.asarray(_downward(schedule_tables(problem), costs, transfers))


@compiled
def _downward(tables: ScheduleTables, costs: FloatArray, transfers: FloatArray) -> FloatArray:
    rank = np.zeros(len(costs))
    for unit in tables.topological:
        for index in range(tables.output_ptr[unit], tables.output_ptr[unit + 1]):
            tensor = tables.outputs[index]
            path = rank[unit] + costs[unit] + transfers[tensor]
            for edge in range(tables.consumer_ptr[tensor], tables.consumer_ptr[tensor + 1]):
                consumer = tables.consumers[edge]
                rank[consumer] = max(rank[consumer], path)
    return rank


def optimistic_costs(problem: Problem) -> FloatArray:
    """OCT: seconds from a unit's end to the end of the program, each successor at its best device.

    Arabnejad and Barbosa 2014, equation 5.

    Returns:
        Shape (n_units, n_devices).
    """
    transfers = mean_transfers(problem)
    return np.asarray(_optimistic(schedule_tables(problem), problem.allowed, transfers))


@compiled
def _optimistic(tables: ScheduleTables, allowed: BoolArray, transfers: FloatArray) -> FloatArray:
    n_units, n_devices = tables.seconds.shape
    table = np.zeros((n_units, n_devices))
    onward = np.empty(n_devices)
    for at in range(n_units - 1, -1, -1):
        unit = tables.topological[at]
        for index in range(tables.output_ptr[unit], tables.output_ptr[unit + 1]):
            tensor = tables.outputs[index]
            for edge in range(tables.consumer_ptr[tensor], tables.consumer_ptr[tensor + 1]):
                successor = tables.consumers[edge]
                least, second, at_least = np.inf, np.inf, -1
                for device in range(n_devices):
                    own = tables.seconds[successor, device]
                    seconds = own if allowed[successor, device] else np.inf
                    onward[device] = table[successor, device] + seconds
                    if onward[device] < least:
                        least, second, at_least = onward[device], least, device
                    elif onward[device] < second:
                        second = onward[device]
                for device in range(n_devices):
                    elsewhere = second if device == at_least else least
                    best = min(onward[device], elsewhere + transfers[tensor])
                    table[unit, device] = max(table[unit, device], best)
    return table


def by_rank(problem: Problem, rank: FloatArray) -> IntArray:
    """Units by decreasing rank; equal ones in topological order."""
    position = positions_in(problem.unit_graph.topological_order)
    # Sums in another order differ in the last digit, which must not decide between equal ranks.
    steps = np.round(rank / max(float(rank.max()), 1e-300) * 1e12)
    return np.asarray(np.lexsort((position, -steps)), dtype=np.int64)


def ready_by_rank(problem: Problem, rank: FloatArray) -> IntArray:
    """Always the ready unit of highest rank, of equal ones the first, shape (n_units,)."""
    return np.asarray(_ready_by_rank(schedule_tables(problem), np.ascontiguousarray(rank)))


@compiled
def _ready_by_rank(tables: ScheduleTables, rank: FloatArray) -> IntArray:
    n_units = len(rank)
    missing = missing_inputs(tables)
    heap = [(0.0, -1)]
    heap.pop()
    for unit in range(n_units):
        if missing[unit] == 0:
            heapq.heappush(heap, (-rank[unit], unit))
    order = np.empty(n_units, np.int64)
    for at in range(n_units):
        _, unit = heapq.heappop(heap)
        order[at] = unit
        for index in range(tables.output_ptr[unit], tables.output_ptr[unit + 1]):
            tensor = tables.outputs[index]
            for edge in range(tables.consumer_ptr[tensor], tables.consumer_ptr[tensor + 1]):
                consumer = tables.consumers[edge]
                missing[consumer] -= 1
                if missing[consumer] == 0:
                    heapq.heappush(heap, (-rank[consumer], consumer))
    return order


@compiled
def missing_inputs(tables: ScheduleTables) -> IntArray:
    """Number of inputs of each unit that other units produce, (n_units,)."""
    missing = np.zeros(len(tables.topological), np.int64)
    for unit in range(len(missing)):
        for at in range(tables.input_ptr[unit], tables.input_ptr[unit + 1]):
            missing[unit] += tables.producer[tables.inputs[at]] >= 0
    return missing


def critical_path(problem: Problem, priority: FloatArray) -> IntArray:
    """Units of one longest path: from the source of highest priority, each time the next highest.

    Returns:
        In the order of the path, shape (length,).
    """
    return np.asarray(_critical_path(schedule_tables(problem), priority))


@compiled
def _critical_path(tables: ScheduleTables, priority: FloatArray) -> IntArray:
    missing = missing_inputs(tables)
    unit = -1
    for source in range(len(missing)):
        if missing[source] == 0 and (unit < 0 or priority[source] > priority[unit]):
            unit = source
    path = [unit]
    while True:
        following = -1
        for index in range(tables.output_ptr[unit], tables.output_ptr[unit + 1]):
            tensor = tables.outputs[index]
            for edge in range(tables.consumer_ptr[tensor], tables.consumer_ptr[tensor + 1]):
                other = tables.consumers[edge]
                is_higher = following < 0 or priority[other] > priority[following]
                is_equal = following >= 0 and priority[other] == priority[following]
                if is_higher or (is_equal and other < following):
                    following = other
        if following < 0:
            return np.array(path)
        path.append(following)
        unit = following


class ScheduleTables(NamedTuple):
    """The arrays of a problem; an endpoint is a device or, as the last endpoint, the host.

    A tensor takes ``latency + load x per_load`` seconds from one endpoint to a device, plus the
    same with `relay_latency` and `relay_per_load` if it goes through the host. A way from an
    endpoint to itself costs nothing; without a way, the latency is infinite.
    """

    seconds: FloatArray  # (n_units, n_devices)
    allowed: BoolArray  # (n_classes, n_devices)
    group_of: IntArray  # (n_units,): colocation class
    topological: IntArray  # (n_units,)
    input_ptr: IntArray  # (n_units + 1,)
    inputs: IntArray  # tensors that each unit reads
    output_ptr: IntArray  # (n_units + 1,)
    outputs: IntArray  # tensors that each unit produces
    consumer_ptr: IntArray  # (n_tensors + 1,)
    consumers: IntArray  # units that read each tensor
    producer: IntArray  # (n_tensors,): -1 for a graph input
    load: FloatArray  # (n_tensors,): bytes, or the tensor's own seconds
    host: int
    latency: FloatArray  # (n_endpoints, n_devices)
    per_load: FloatArray  # (n_endpoints, n_devices)
    relay_latency: FloatArray  # (n_endpoints, n_devices)
    relay_per_load: FloatArray  # (n_endpoints, n_devices)
    has_relays: bool
    stream_ptr: IntArray  # (n_devices + 1,)
    streams: IntArray  # numbers of the streams, or shared processors, that each device computes on
    holds_all: BoolArray  # (n_devices,): a unit holds all of them, for they are processors
    excludes: BoolArray  # (n_devices, n_devices): the two share a processor
    n_streams: int


def scaled_transfers(tables: ScheduleTables, factor: float) -> ScheduleTables:
    """The same problem with transfers that take `factor` times as long."""
    return read_only(
        tables._replace(
            latency=tables.latency * factor,
            per_load=tables.per_load * factor,
            relay_latency=tables.relay_latency * factor,
            relay_per_load=tables.relay_per_load * factor,
        )
    )


@once_per_problem
def schedule_tables(problem: Problem) -> ScheduleTables:
    """Lay a problem out for the kernels of all methods."""
    arrays = problem_arrays(with_transfers(problem))
    own = len(arrays.own_transfer) > 0
    latency = np.zeros_like(arrays.latency) if own else arrays.latency
    per_load = np.ones_like(arrays.seconds_per_byte) if own else arrays.seconds_per_byte
    route, host, n = arrays.route, arrays.host, problem.n_devices
    cases = [route == LOCAL, route == DIRECT, route == VIA_HOST]
    to_host = np.broadcast_to(latency[:, [host]], route.shape)
    per_to_host = np.broadcast_to(per_load[:, [host]], route.shape)
    through = route == VIA_HOST
    return read_only(
        ScheduleTables(
            seconds=arrays.seconds,
            allowed=problem.allowed_by_class,
            group_of=problem.colocation.group_of,
            topological=arrays.topological,
            input_ptr=arrays.input_ptr,
            inputs=arrays.inputs,
            output_ptr=arrays.output_ptr,
            outputs=arrays.outputs,
            consumer_ptr=arrays.consumer_ptr,
            consumers=arrays.consumers,
            producer=arrays.producer,
            load=arrays.own_transfer if own else arrays.tensor_bytes,
            host=host,
            latency=np.select(cases, [0.0, latency, to_host], np.inf)[:, :n],
            per_load=np.select(cases, [0.0, per_load, per_to_host], 0.0)[:, :n],
            relay_latency=np.where(through, latency[[host], :], 0.0)[:, :n],
            relay_per_load=np.where(through, per_load[[host], :], 0.0)[:, :n],
            has_relays=bool(through.any()),
            **_streams(problem),
            excludes=problem.cluster.excludes,
        )
    )


def _streams(problem: Problem) -> dict[str, Any]:
    """Streams of devices and processors that they share, by the names of `ScheduleTables`."""
    users = list(problem.cluster.shared_processors.values())
    rows, n_streams = [], len(users)
    for device, spec in enumerate(problem.cluster.devices):
        held = [at for at, devices in enumerate(users) if device in devices]
        own = 0 if held else min(spec.streams, problem.n_units)
        rows.append(held or list(range(n_streams, n_streams + own)))
        n_streams += own
    streams = Csr.from_rows(rows)
    return {
        "stream_ptr": streams.indptr,
        "streams": streams.indices,
        "holds_all": problem.cluster.excludes.any(axis=1),
        "n_streams": n_streams,
    }


@inlined
def note_arrivals(
    tables: ScheduleTables, device_of: IntArray, end: FloatArray, unit: int, arrival: FloatArray
) -> None:
    """Write the arrival of all inputs of a unit on each device; its producers are placed.

    Args:
        device_of: device of each placed unit, (n_units,).
        end: seconds at which each placed unit ends, (n_units,).
        arrival: (n_devices,) to write into.
    """
    for device in range(len(arrival)):
        arrival[device] = 0.0
    for at in range(tables.input_ptr[unit], tables.input_ptr[unit + 1]):
        tensor = tables.inputs[at]
        producer = tables.producer[tensor]
        source, made = tables.host, 0.0
        if producer >= 0:
            source, made = device_of[producer], end[producer]
        load = tables.load[tensor]
        if tables.has_relays:
            for device in range(len(arrival)):
                there = made + way_seconds(tables, load, source, device)
                arrival[device] = there if there > arrival[device] else arrival[device]
        else:
            for device in range(len(arrival)):
                way = tables.latency[source, device] + load * tables.per_load[source, device]
                there = made + way
                arrival[device] = there if there > arrival[device] else arrival[device]


@inlined
def way_seconds(tables: ScheduleTables, load: float, source: int, device: int) -> float:
    """Seconds of a tensor from an endpoint to a device; inf without a way."""
    first = tables.latency[source, device] + load * tables.per_load[source, device]
    second = tables.relay_latency[source, device] + load * tables.relay_per_load[source, device]
    return float(first + second)


@inlined
def longest_way(tables: ScheduleTables, unit: int, child: int, device: int) -> float:
    """Seconds that an output of a unit for a child takes to the farthest other device."""
    longest = 0.0
    for index in range(tables.output_ptr[unit], tables.output_ptr[unit + 1]):
        tensor = tables.outputs[index]
        for edge in range(tables.consumer_ptr[tensor], tables.consumer_ptr[tensor + 1]):
            if tables.consumers[edge] == child:
                for other in range(tables.latency.shape[1]):
                    way = way_seconds(tables, tables.load[tensor], device, other)
                    if other != device and np.isfinite(way):
                        longest = max(longest, way)
    return longest
