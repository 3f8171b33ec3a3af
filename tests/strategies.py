"""Random problems for property tests: every number is dyadic, so that sums are exact."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import GroupingError
from tests.simulation.oracle import Reference

seeds = st.integers(min_value=0, max_value=2**32 - 1)


def random_graph(rng: np.random.Generator, n_ops: int) -> ComputationGraph:
    """Ops with 0 to 2 outputs each, shared weights, graph inputs and outputs, colocation."""
    builder = GraphBuilder()
    tensors = [
        builder.add_input(float(rng.integers(0, 5)), is_output=bool(rng.random() < 0.1))
        for _ in range(rng.integers(0, 3))
    ]
    weights = [builder.add_weight(float(rng.integers(0, 6))) for _ in range(rng.integers(0, 4))]
    for op in range(n_ops):
        reads = rng.choice(tensors, min(len(tensors), rng.integers(0, 4))) if tensors else []
        keeps = rng.choice(weights, rng.integers(0, 3)) if weights else []
        colocation = int(rng.integers(0, 2)) if rng.random() < 0.15 else -1
        builder.add_op(
            f"op{op}",
            "Op",
            inputs=[int(tensor) for tensor in reads],
            weights=[int(weight) for weight in keeps],
            colocation=colocation,
            flops=float(rng.choice([0.0, 10.0, 50.0, 200.0])),
        )
        for _ in range(rng.choice([0, 1, 1, 1, 2])):
            size = float(rng.integers(0, 5))
            tensors.append(builder.add_tensor(op, size, is_output=bool(rng.random() < 0.2)))
    return builder.build()


def random_cluster(rng: np.random.Generator) -> Cluster:
    """Streams, overheads, contention, shared channels, modes, few links, a host apart or not."""
    n_devices = int(rng.integers(1, 5))
    plain = rng.random() < 0.4
    devices = tuple(
        Device(
            f"d{index}",
            memory_bytes=float(rng.integers(5, 60)) if rng.random() < 0.3 else math.inf,
            streams=int(rng.choice([1, 1, 2, 3])),
            dispatch_seconds=0.0 if plain else float(rng.integers(0, 3)) / 2,
            cut_seconds=0.0 if plain else float(rng.integers(0, 3)) / 4,
            cut_seconds_per_byte=0.0 if plain else float(rng.integers(0, 2)) / 8,
            layout_seconds=0.0 if plain else float(rng.integers(0, 2)) / 4,
            layout_seconds_per_byte=0.0 if plain else float(rng.integers(0, 2)) / 16,
            memory_domain=[None, "ram", "other"][rng.integers(0, 3)],
        )
        for index in range(n_devices)
    )
    devices = _as_modes(devices, rng.spawn(1)[0])  # which leaves other numbers of a seed alone
    host = "host" if rng.random() < 0.5 else "d0"
    ends = [device.name for device in devices] + (["host"] if host == "host" else [])
    density = rng.choice([1.0, 0.8, 0.5, 0.0])
    of_host = rng.choice([1.0, 1.0, 1.0, 1.0, 0.8])  # now and then a tensor has no way at all
    links = tuple(
        Link(a, b, float(rng.integers(0, 4)) / 2, *_bandwidth_channel_and_queues(rng))
        for a in ends
        for b in ends
        if a != b and rng.random() < (of_host if host in (a, b) else density)
    )
    contention = {"ram": (1.0, 1.5, 2.0)} if rng.random() < 0.4 else {}
    return Cluster(devices, links, host, contention)


def _as_modes(devices: tuple[Device, ...], rng: np.random.Generator) -> tuple[Device, ...]:
    """Now and then devices share processors, and have one stream and no memory domain then."""
    if rng.random() > 0.3:
        return devices
    names = [rng.choice(["p", "q", "r"], rng.integers(1, 3), replace=False) for _ in devices]
    return tuple(
        replace(device, processors=tuple(sorted(own)), streams=1, memory_domain=None)
        for device, own in zip(devices, names, strict=True)
    )


def _bandwidth_channel_and_queues(rng: np.random.Generator) -> tuple[float, str | None, bool]:
    channel = [None, None, "bus", "ring"][rng.integers(0, 4)]
    queues = channel is not None or bool(rng.random() < 0.7)
    return float(rng.choice([0.5, 1.0, 2.0, math.inf])), channel, queues


def random_problem(rng: np.random.Generator, n_ops: int | None = None) -> Problem:
    """A problem of execution model `event`; about a third are coarsened into units.

    Args:
        rng: of everything.
        n_ops: None draws 1 to 13, and in one of fifty cases 65 to 90: more units than one word of
            the kernel's sets has bits.
    """
    if n_ops is None:
        n_ops = int(rng.integers(65, 91) if rng.random() < 0.02 else rng.integers(1, 14))
    graph = random_graph(rng, n_ops)
    cluster = random_cluster(rng)
    seconds = rng.integers(0, 9, (graph.n_ops, cluster.n_devices)) / 2.0
    seconds[rng.random(seconds.shape) < 0.05] = math.inf
    seconds[~np.isfinite(seconds).any(axis=1)] = 1.0
    own = rng.integers(0, 9, graph.n_tensors) / 2.0 if rng.random() < 0.2 else None
    problem = Problem(
        graph,
        cluster,
        CostTable(frozen_floats(seconds)),
        Grouping.identity(graph.n_ops),
        pins={0: int(np.flatnonzero(np.isfinite(seconds[0]))[0])} if rng.random() < 0.2 else {},
        transfer_seconds=None if own is None else frozen_floats(own),
    )
    if rng.random() < 0.3:
        order = graph.topological_order
        labels = np.empty(graph.n_ops, dtype=np.int64)
        labels[order] = np.cumsum(rng.random(graph.n_ops) < 0.6)
        finite = np.where(np.isfinite(seconds), seconds, 1.0)
        whole = Problem(graph, cluster, CostTable(frozen_floats(finite)), problem.units)
        try:
            return whole.coarsened(Grouping.from_labels(labels))
        except GroupingError:
            return problem
    return problem


def without_modes(problem: Problem) -> Problem:
    """Every device computes on a processor of its own, as published execution models have it."""
    devices = tuple(replace(device, processors=()) for device in problem.cluster.devices)
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def without_memory_limits(problem: Problem) -> Problem:
    """The same problem with room for everything on every device."""
    devices = tuple(replace(one, memory_bytes=math.inf) for one in problem.cluster.devices)
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def random_placement(rng: np.random.Generator, problem: Problem) -> Placement:
    """Mostly legal, half of them with an order."""
    per_class = rng.integers(0, problem.n_devices, problem.colocation.n_groups)
    device_of = problem.colocation.expand(per_class)
    for unit in range(problem.n_units):
        if not problem.allowed[unit, device_of[unit]] and rng.random() < 0.9:
            device_of[unit] = rng.choice(np.flatnonzero(problem.allowed[unit]))
    order = random_order(rng, problem) if rng.random() < 0.5 else None
    return Placement.of(device_of, order)


def random_order(rng: np.random.Generator, problem: Problem) -> list[int]:
    """A uniform choice among the free units, again and again."""
    graph = problem.unit_graph
    waiting = [len(graph.predecessors.row(unit)) for unit in range(graph.n_ops)]
    free = [unit for unit in range(graph.n_ops) if waiting[unit] == 0]
    order = []
    while free:
        unit = free.pop(int(rng.integers(0, len(free))))
        order.append(unit)
        for after in graph.successors.row(unit).tolist():
            waiting[after] -= 1
            if waiting[after] == 0:
                free.append(after)
    return order


def tight_problem(rng: np.random.Generator, n_ops: int) -> Problem | None:
    """A problem whose limits are the peaks of one placement, by the oracle; None if it has none.

    Half of the placements have an order. Some limits are those of a pool, and some devices share
    their weights.
    """
    problem = without_memory_limits(random_problem(rng, n_ops))
    once = replace(problem.cluster, shares_weights=bool(rng.random() < 0.3))
    problem = replace(problem, cluster=once)
    planted = Reference(problem, random_placement(rng, problem))
    if not math.isfinite(planted.value()):
        return None
    peaks = [float(math.ceil(peak)) for peak in planted.peaks()]
    devices = [
        replace(device, memory_bytes=peak)
        for device, peak in zip(problem.cluster.devices, peaks, strict=True)
    ]
    pools = {}
    if rng.random() < 0.4:
        pools["ram"] = sum(peaks[:2])
        lifts = rng.random() < 0.5  # the pool alone limits its devices
        devices[:2] = [
            replace(one, pool="ram", memory_bytes=math.inf if lifts else one.memory_bytes)
            for one in devices[:2]
        ]
    return replace(problem, cluster=replace(once, devices=tuple(devices), pools=pools))
