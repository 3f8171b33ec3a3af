"""Problems on machines with several devices, and the best split in groups by brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
from support.pipelines import is_contiguous

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.graph import FORWARD
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.placers.pipelines.ideals.two_levels import link_levels

Edges = list[tuple[int, int]]


def hosts(
    sizes: list[int], near: float, far: float, *, with_host: bool = False, memory: float = math.inf
) -> Cluster:
    """Machines with so many devices, seconds per byte within one and between two of them."""
    names = [f"acc:{machine}.{i}" for machine, size in enumerate(sizes) for i in range(size)]
    machine_of = [machine for machine, size in enumerate(sizes) for _ in range(size)]
    links = [
        Link(names[a], names[b], bandwidth=1 / (near if machine_of[a] == machine_of[b] else far))
        for a, b in itertools.permutations(range(len(names)), 2)
    ]
    if with_host:
        ends = [pair for name in names for pair in ((name, "host"), ("host", name))]
        links += [Link(*pair, bandwidth=1 / (far / 2)) for pair in ends]
    devices = tuple(Device(name, "accelerator", memory_bytes=memory) for name in names)
    return Cluster(devices, tuple(links))


def problem_on(
    cluster: Cluster,
    seconds: list[float],
    edges: Edges,
    sizes: list[float],
    *,
    phases: list[int] | None = None,
    ends: bool = False,
    weights: list[float] | None = None,
) -> Problem:
    """One tensor per op with readers; with `ends` the graph has an input and an output."""
    builder = GraphBuilder()
    n_ops = len(seconds)
    for op in range(n_ops):
        builder.add_op(
            str(op),
            "Op",
            phase=FORWARD if phases is None else phases[op],
            colocation=-1 if phases is None else op % (n_ops // 2),
            weights=[builder.add_weight(0.0 if weights is None else weights[op])],
        )
    for op in range(n_ops):
        readers = [after for before, after in edges if before == op]
        is_output = ends and op == n_ops - 1
        if readers or is_output:
            tensor = builder.add_tensor(op, sizes[op], is_output=is_output)
            for reader in readers:
                builder.connect(tensor, reader)
    if ends:
        builder.connect(builder.add_tensor(-1, 2.0), 0)
    return Problem(
        builder.build(),
        cluster,
        CostTable(frozen_floats([[value] * cluster.n_devices for value in seconds])),
        Grouping.identity(n_ops),
        objective="throughput",
        execution_model=MaxLoad(samples_in_flight=0),
    )


def in_groups(problem: Problem, group_of: list[int], device_of: list[int]) -> bool:
    """True when devices can be put in a row, group by group, that all forward edges follow."""
    groups = sorted(set(group_of))
    members = [[d for d, g in enumerate(group_of) if g == group] for group in groups]
    rows = (
        [device for part in parts for device in part]
        for order in itertools.permutations(members)
        for parts in itertools.product(*(itertools.permutations(part) for part in order))
    )
    if not is_contiguous(problem, device_of):
        return False
    graph = problem.graph
    pairs = {
        (device_of[int(graph.tensor_producers[tensor])], device_of[reader])
        for tensor in range(graph.n_tensors)
        if graph.tensor_producers[tensor] >= 0
        and graph.op_phases[graph.tensor_producers[tensor]] == FORWARD
        for reader in graph.tensor_consumers.row(tensor).tolist()
        if graph.op_phases[reader] == FORWARD
    }
    return any(all(row.index(a) <= row.index(b) for a, b in pairs) for row in rows)


def load_over_links(problem: Problem, device_of: list[int]) -> float:
    """Max-load told plainly where every two devices have a link; inf where memory is short."""
    graph, cluster = problem.graph, problem.cluster
    price = cluster.link_seconds_per_byte
    host = cluster.host_endpoint
    load = np.zeros(cluster.n_devices)
    held = np.zeros(cluster.n_devices)
    np.add.at(load, device_of, [problem.costs.seconds[op, d] for op, d in enumerate(device_of)])
    np.add.at(held, device_of, graph.op_weight_bytes)
    model = problem.execution_model
    assert isinstance(model, MaxLoad)
    for tensor, size in enumerate(graph.tensor_bytes.tolist()):
        users = [int(graph.tensor_producers[tensor]), *graph.tensor_consumers.row(tensor).tolist()]
        for device in sorted({device_of[user] for user in users if user >= 0}):
            held[device] += model.samples_in_flight * size
    if (held > cluster.memory_bytes).any():
        return math.inf
    for tensor in range(graph.n_tensors):
        producer, size = int(graph.tensor_producers[tensor]), float(graph.tensor_bytes[tensor])
        source = device_of[producer] if producer >= 0 else host
        targets = {device_of[reader] for reader in graph.tensor_consumers.row(tensor).tolist()}
        targets |= {host} if graph.tensor_is_output[tensor] else set()
        targets -= {source}
        for target in sorted(targets - {host}):
            load[target] += size * price[source, target]
        if targets and source != host:
            load[source] += size * max(price[source, target] for target in sorted(targets))
    return float(load.max())


def best_in_groups(problem: Problem) -> float:
    """Least max-load of all placements whose devices and groups are contiguous."""
    levels = link_levels(problem)
    assert levels is not None
    group_of = levels.group_of.tolist()
    same_class = problem.colocation.group_of
    best = math.inf
    for device_of in itertools.product(range(problem.n_devices), repeat=problem.n_units):
        if any(
            same_class[a] == same_class[b] and device_of[a] != device_of[b]
            for a, b in itertools.combinations(range(problem.n_units), 2)
        ):
            continue
        value = load_over_links(problem, list(device_of))
        if value < best and in_groups(problem, group_of, list(device_of)):
            best = value
    return best
