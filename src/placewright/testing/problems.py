"""Small random problems with everything that constrains a placement."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import ExecutionModel, default_model
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.problem import Objective, Problem


def random_problem(
    rng: np.random.Generator,
    *,
    n_ops: int = 5,
    n_devices: int = 2,
    objective: Objective = "latency",
    constrained: bool = True,
) -> Problem:
    """A random problem; with constraints it may have no feasible placement.

    Args:
        rng: source of every choice.
        n_ops: number of ops, each a unit.
        n_devices: number of devices; the host is a memory of its own.
        objective: `throughput` gives the execution model `max-load`, the others `event`.
        constrained: with unsupported ops, a pin, a colocation class and memory limits, each drawn
            with some chance.
    """
    graph = _random_graph(rng, n_ops, constrained=constrained)
    seconds = rng.integers(1, 20, (n_ops, n_devices)).astype(np.float64)
    if constrained:
        seconds[rng.random(seconds.shape) < 0.1] = np.inf
        nowhere = ~np.isfinite(seconds).any(axis=1)
        seconds[nowhere, 0] = 7.0
    pins = {}
    if constrained and rng.random() < 0.4:
        pins[int(rng.integers(n_ops))] = int(rng.integers(n_devices))
    return Problem(
        graph,
        _random_cluster(rng, n_devices, graph, constrained=constrained),
        CostTable(frozen_floats(seconds)),
        Grouping.identity(n_ops),
        objective=objective,
        execution_model=default_model(objective, samples_in_flight=0),
        pins=pins,
    )


def impossible_problem(*, objective: Objective = "latency") -> Problem:
    """Two ops; one keeps 100 bytes resident and no device has more than 60."""
    builder = GraphBuilder()
    first = builder.add_op("small", "Op", weights=[builder.add_weight(10.0)])
    tensor = builder.add_tensor(first, 1.0)
    builder.add_op("large", "Op", inputs=[tensor], weights=[builder.add_weight(100.0)])
    devices = (Device("a", memory_bytes=60.0), Device("b", memory_bytes=50.0))
    links = (Link("a", "b"), Link("b", "a"))
    return Problem(
        builder.build(),
        Cluster(devices, links),
        CostTable(frozen_floats(np.ones((2, 2)))),
        Grouping.identity(2),
        objective=objective,
        execution_model=default_model(objective, samples_in_flight=0),
    )


def packing_problem(*, objective: Objective = "latency", n_ops: int = 3) -> Problem:
    """An odd number of ops that keep 3 bytes each, on two devices with room for half of them.

    There is no placement, but none of the short proofs says so: each op fits alone, and two bytes
    of each device stay free, so that three ops need 9 bytes of 10.
    """
    builder = GraphBuilder()
    inputs: list[int] = []
    for op in range(n_ops):
        name = f"op{op}"
        builder.add_op(name, "Op", inputs=inputs, module=name, weights=[builder.add_weight(3.0)])
        inputs = [builder.add_tensor(op, 0.0)]
    room = 3.0 * (n_ops // 2) + 2.0
    devices = (Device("a", memory_bytes=room), Device("b", memory_bytes=room))
    return Problem(
        builder.build(),
        Cluster(devices, (Link("a", "b"), Link("b", "a")), host="a"),
        CostTable(frozen_floats(np.ones((n_ops, 2)))),
        Grouping.identity(n_ops),
        objective=objective,
        execution_model=default_model(objective, samples_in_flight=0),
    )


def with_power(problem: Problem, objective: Objective) -> Problem:
    """The same problem with energy or price as its objective; the last device costs most."""
    devices = tuple(
        replace(device, busy_watts=9.0 * at + 2.0, idle_watts=1.0, price_per_hour=3600.0 * (at + 1))
        for at, device in enumerate(problem.cluster.devices)
    )
    return replace(problem, cluster=replace(problem.cluster, devices=devices), objective=objective)


def with_replicas(problem: Problem, replicas: int) -> Problem:
    """The same problem under max-load; its first device stands for a group of so many."""
    first, *others = problem.cluster.devices
    devices = (replace(first, replicas=replicas), *others)
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def with_pool(problem: Problem) -> Problem:
    """The same problem; its first two devices share a pool with room for one copy of everything."""
    cluster, graph = problem.cluster, problem.graph
    total = float(graph.weight_bytes.sum() + graph.tensor_bytes.sum())
    devices = tuple(
        replace(device, pool="ram") if at < 2 else device
        for at, device in enumerate(cluster.devices)
    )
    return replace(problem, cluster=replace(cluster, devices=devices, pools={"ram": total}))


def with_modes(problem: Problem) -> Problem:
    """The same problem; its first two devices compute on one processor, and have one stream."""
    cluster = problem.cluster
    devices = tuple(
        replace(device, processors=("p",), streams=1) if at < 2 else device
        for at, device in enumerate(cluster.devices)
    )
    return replace(problem, cluster=replace(cluster, devices=devices))


def under_subgraphs(problem: Problem, model: ExecutionModel) -> Problem:
    """Change a problem to `subgraph` or `subgraph-ip`; the last device is its only CPU.

    Each accelerator takes up to two subgraphs, and a transfer takes 2 seconds.
    """
    *fast, last = problem.cluster.devices
    devices = (*fast, replace(last, pays_transfers=False))
    return replace(
        problem,
        cluster=replace(problem.cluster, devices=devices),
        execution_model=model,
        transfer_seconds=frozen_floats(np.full(problem.graph.n_tensors, 2.0)),
    )


def _random_graph(rng: np.random.Generator, n_ops: int, *, constrained: bool) -> ComputationGraph:
    builder = GraphBuilder()
    tensors = [builder.add_input(float(rng.integers(1, 9)))]
    shared = builder.add_weight(float(rng.integers(1, 9)))
    colocated = constrained and rng.random() < 0.4
    for op in range(n_ops):
        count = int(rng.integers(1, 3))
        inputs = sorted(dict.fromkeys(int(t) for t in rng.integers(len(tensors), size=count)))
        weights = [builder.add_weight(float(rng.integers(0, 9)))]
        if rng.random() < 0.3:
            weights.append(shared)
        builder.add_op(
            f"op{op}",
            "MatMul" if op % 2 else "Relu",
            inputs=[tensors[index] for index in inputs],
            flops=float(rng.integers(1, 100)),
            module=f"block{op // 2}",
            colocation=0 if colocated and op % 3 == 0 else -1,
            weights=weights,
        )
        size, is_last = float(rng.integers(1, 9)), op == n_ops - 1
        tensors.append(builder.add_tensor(op, size, shape=(int(size),), is_output=is_last))
    return builder.build()


def _random_cluster(
    rng: np.random.Generator, n_devices: int, graph: ComputationGraph, *, constrained: bool
) -> Cluster:
    total = float(graph.weight_bytes.sum() + graph.tensor_bytes.sum())
    limited = constrained and rng.random() < 0.5
    devices = tuple(
        Device(
            f"d{index}",
            memory_bytes=math.ceil(total * rng.uniform(0.5, 1.2)) if limited else math.inf,
            streams=int(rng.integers(1, 3)) if constrained else 1,
            dispatch_seconds=float(rng.integers(0, 2)),
            cut_seconds=float(rng.integers(0, 2)),
        )
        for index in range(n_devices)
    )
    ends = [device.name for device in devices] + ["host"]
    channel = "bus" if rng.random() < 0.5 else None
    links = tuple(
        Link(a, b, latency_seconds=1.0, bandwidth=4.0, channel=channel)
        for a in ends
        for b in ends
        if a != b
    )
    return Cluster(devices, links)
