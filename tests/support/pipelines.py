"""Random max-load and subgraph problems, and plain re-tellings of what their values mean."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np

from placewright.core.arrays import FloatArray, IntArray, frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.graph import BACKWARD, FORWARD
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.placers.pipelines.ideals.load_model import AT_HOST, LoadModel
from placewright.simulation.model import Simulator
from placewright.testing.brute_force import legal_placements


def pipeline_problem(
    seconds: list[list[float]],
    edges: list[tuple[int, int]],
    transfers: list[float],
    *,
    n_cpus: int = 0,
    sizes: list[float] | None = None,
    memory: float = math.inf,
    phases: list[int] | None = None,
    classes: list[int] | None = None,
    tensor_bytes: list[float] | None = None,
    **settings: object,
) -> Problem:
    """A problem as the published workloads have it: one tensor per op with consumers."""
    n_ops, n_devices = len(seconds), len(seconds[0])
    builder = GraphBuilder()
    for op in range(n_ops):
        weight = builder.add_weight(0.0 if sizes is None else sizes[op])
        builder.add_op(
            str(op),
            "Op",
            phase=FORWARD if phases is None else phases[op],
            colocation=-1 if classes is None else classes[op],
            weights=[weight],
        )
    carried: list[float] = []
    for op in range(n_ops):
        consumers = [after for before, after in edges if before == op]
        if consumers:
            tensor = builder.add_tensor(op, 1.0 if tensor_bytes is None else tensor_bytes[op])
            carried.append(transfers[op])
            for consumer in consumers:
                builder.connect(tensor, consumer)
    n_fast = n_devices - n_cpus
    devices = [Device(f"acc:{i}", "accelerator", memory_bytes=memory) for i in range(n_fast)]
    devices += [Device(f"cpu:{i}", pays_transfers=False) for i in range(n_cpus)]
    host = "cpu:0" if n_cpus else "host"
    ends = [device.name for device in devices if device.name != host]
    links = [Link(*pair) for end in ends for pair in ((end, host), (host, end))]
    return Problem(
        builder.build(),
        Cluster(tuple(devices), tuple(links), host=host),
        CostTable(frozen_floats(seconds)),
        Grouping.identity(n_ops),
        transfer_seconds=frozen_floats(carried),
        **{"objective": "throughput", "execution_model": MaxLoad(0), **settings},  # type: ignore[arg-type]
    )


def random_pipeline(
    rng: np.random.Generator, n_ops: int, n_fast: int, n_cpus: int, **settings: object
) -> Problem:
    """Random costs of two kinds, some unsupported, memory that binds now and then."""
    fast = rng.integers(1, 20, n_ops).astype(float)
    slow = fast * rng.integers(2, 6, n_ops)
    if n_cpus:
        fast[rng.random(n_ops) < 0.15] = math.inf
    seconds = [[fast[op]] * n_fast + [slow[op]] * n_cpus for op in range(n_ops)]
    edges = [
        (before, after)
        for before, after in itertools.combinations(range(n_ops), 2)
        if rng.random() < 2.0 / n_ops
    ]
    sizes = rng.integers(0, 5, n_ops).astype(float)
    memory = float(math.ceil(sizes.sum() * rng.uniform(0.5, 1.2)))
    return pipeline_problem(
        seconds,
        edges,
        rng.integers(0, 6, n_ops).astype(float).tolist(),
        n_cpus=n_cpus,
        sizes=sizes.tolist(),
        memory=memory,
        **settings,
    )


def random_training(rng: np.random.Generator, n_forward: int, n_fast: int) -> Problem:
    """A forward graph, its mirror image as backward, and one backward op without a forward one."""
    n_ops = 2 * n_forward + 1
    fast = rng.integers(1, 20, n_ops).astype(float)
    forward = [
        (before, after)
        for before, after in itertools.combinations(range(n_forward), 2)
        if rng.random() < 0.4
    ]
    edges = forward + [(n_forward + after, n_forward + before) for before, after in forward]
    edges += [(op, n_forward + op) for op in range(n_forward)]
    edges.append((n_forward, n_ops - 1))  # the gradient of op 0 feeds the lone one
    return pipeline_problem(
        [[value] * n_fast for value in fast.tolist()],
        edges,
        rng.integers(0, 6, n_ops).astype(float).tolist(),
        phases=[FORWARD] * n_forward + [BACKWARD] * (n_forward + 1),
        classes=[*range(n_forward), *range(n_forward), n_forward],
    )


def max_load(problem: Problem, device_of: list[int]) -> float:
    """The max-load of a placement, told plainly; inf where it is not legal."""
    graph, cluster = problem.graph, problem.cluster
    loads = [[0.0, 0.0] for _ in cluster.devices]
    resident = [0.0] * cluster.n_devices
    replicas = [device.replicas for device in cluster.devices]
    for op, device in enumerate(device_of):
        seconds = float(problem.costs.seconds[op, device])
        if not math.isfinite(seconds):
            return math.inf
        loads[device][int(graph.op_phases[op] != FORWARD)] += seconds / replicas[device]
        resident[device] += float(graph.op_weight_bytes[op])
    model = problem.execution_model
    assert isinstance(model, MaxLoad)
    for tensor, size in enumerate(graph.tensor_bytes.tolist()):
        users = {int(graph.tensor_producers[tensor]), *graph.tensor_consumers.row(tensor).tolist()}
        for device in {device_of[op] for op in users}:
            resident[device] += model.samples_in_flight * size
    if any(r > d.memory_bytes for r, d in zip(resident, cluster.devices, strict=True)):
        return math.inf
    for one, other in itertools.combinations(range(graph.n_ops), 2):
        together = graph.op_colocation[one] == graph.op_colocation[other] >= 0
        if together and device_of[one] != device_of[other]:
            return math.inf
    assert problem.transfer_seconds is not None
    for tensor in range(graph.n_tensors):
        producer = int(graph.tensor_producers[tensor])
        readers = {device_of[op] for op in graph.tensor_consumers.row(tensor).tolist()}
        readers.discard(device_of[producer])
        for device in sorted(readers | ({device_of[producer]} if readers else set())):
            if cluster.devices[device].pays_transfers:
                phase = int(graph.op_phases[producer] != FORWARD)
                seconds = float(problem.transfer_seconds[tensor])
                loads[device][phase] += seconds / replicas[device]
    if model.split_phases:
        return max(load[0] for load in loads) + max(load[1] for load in loads)
    return max(sum(load) for load in loads)


def is_contiguous(problem: Problem, device_of: list[int]) -> bool:
    """True when the devices' forward sets can be put in a row that all forward edges follow."""
    graph = problem.graph
    colour = [int(c) if c >= 0 else -1 - op for op, c in enumerate(graph.op_colocation)]
    has_forward = {colour[op] for op in range(graph.n_ops) if graph.op_phases[op] == FORWARD}
    follows: set[tuple[int, int]] = set()
    for tensor in range(graph.n_tensors):
        producer = int(graph.tensor_producers[tensor])
        if producer < 0:
            continue
        for consumer in graph.tensor_consumers.row(tensor).tolist():
            ahead = graph.op_phases[producer] == FORWARD == graph.op_phases[consumer]
            behind = FORWARD not in (graph.op_phases[producer], graph.op_phases[consumer])
            if ahead:
                follows.add((device_of[producer], device_of[consumer]))
            elif behind and not {colour[producer], colour[consumer]} <= has_forward:
                follows.add((device_of[consumer], device_of[producer]))
    follows = {(one, other) for one, other in follows if one != other}
    n = problem.n_devices
    return any(
        all(row.index(one) < row.index(other) for one, other in follows)
        for row in itertools.permutations(range(n))
    )


def best_by_brute_force(problem: Problem, *, contiguous: bool) -> float:
    """Least max-load over all placements of few ops."""
    best = math.inf
    for device_of in itertools.product(range(problem.n_devices), repeat=problem.n_units):
        value = max_load(problem, list(device_of))
        if value < best and (not contiguous or is_contiguous(problem, list(device_of))):
            best = value
    return best


def best_contiguous(problem: Problem) -> float:
    """Least max-load over contiguous placements, the simulator's values: fast for eight ops."""
    rows = np.array(list(legal_placements(problem)))
    values = Simulator(problem).values(rows)
    for index in np.argsort(values, kind="stable").tolist():
        if math.isfinite(values[index]) and is_contiguous(problem, rows[index].tolist()):
            return float(values[index])
    return math.inf


def streamed_chain(limit: float, seconds: tuple[float, ...] = (1.0,) * 8) -> Problem:
    """A chain of eight ops on two devices with free links; weights of 5 bytes, tensors of 7.

    Args:
        limit: memory of each device, in bytes.
        seconds: of each op.
    """
    builder = GraphBuilder()
    inputs: list[int] = []
    for op in range(8):
        made = builder.add_op(str(op), "Op", inputs=inputs, weights=[builder.add_weight(5.0)])
        inputs = [builder.add_tensor(made, 7.0)]
    names = ("a", "b")
    links = tuple(Link(*pair) for pair in itertools.permutations((*names, "host"), 2))
    devices = tuple(Device(name, memory_bytes=limit) for name in names)
    costs = CostTable(frozen_floats(np.repeat(np.array(seconds)[:, None], 2, axis=1)))
    problem = Problem.of_ops(builder.build(), Cluster(devices, links), costs)
    return replace(problem, objective="throughput", execution_model=MaxLoad())


def loads_of(model: LoadModel, device_of: IntArray) -> FloatArray:
    """Load of each device by a load model, shape (n_devices,); inf if it may not run an item."""
    items = np.arange(model.n_items)
    n_devices = len(model.kind_of)
    seconds = model.seconds[model.kind_of[device_of], items]
    compute = np.bincount(device_of, seconds, minlength=n_devices)
    receives, sends = _transfers(model, device_of)
    transfers = np.array(model.standing.sum(axis=0)[model.kind_of], dtype=np.float64)
    np.add.at(transfers, receives[1], model.receive[model.kind_of[receives[1]], receives[0]])
    np.add.at(transfers, sends[1], model.send[model.kind_of[sends[1]], sends[0]])
    overlaps = model.overlaps[model.kind_of]
    return np.where(overlaps, np.maximum(compute, transfers), compute + transfers)


def _transfers(model: LoadModel, device_of: IntArray) -> tuple[tuple[IntArray, IntArray], ...]:
    """Arrays (tensors, devices) of all receives, and of all sends."""
    n_devices = len(model.kind_of)
    tensor = model.consumers.row_of_each()
    target = device_of[model.consumers.indices]
    origin = np.where(model.producers >= 0, device_of[np.maximum(model.producers, 0)], -1)
    origin[model.producers == AT_HOST] = model.host_device
    crossing = target != origin[tensor]
    received = np.unique(tensor[crossing] * n_devices + target[crossing])
    sent = np.zeros(model.n_tensors, dtype=np.bool_)
    sent[tensor[crossing]] = True
    sending = np.flatnonzero(sent & (origin >= 0))
    return (received // n_devices, received % n_devices), (sending, origin[sending])


def bytes_of(model: LoadModel, device_of: IntArray) -> FloatArray:
    """Bytes that each device keeps by a load model, shared weights once, shape (n_devices,)."""
    n_weights = max(1, len(model.weight_bytes))
    used = np.unique(device_of[model.weights.row_of_each()] * n_weights + model.weights.indices)
    sizes = model.weight_bytes[used % n_weights]
    return np.bincount(used // n_weights, sizes, minlength=len(model.kind_of)).astype(np.float64)
