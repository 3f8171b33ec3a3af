"""Problems and plans for the tests of pages."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import Event
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import HistoryPoint, Solution
from placewright.session.plans import plan_of
from placewright.simulation.model import Simulator
from placewright.testing.problems import random_problem


def odd_problem(seed: int) -> Problem:
    """A random problem with what makes time and memory hard to count: each third has another mix
    of ways through the host, links that never queue, contention, layouts, pools and own transfers.
    Half of them dispatch first in, first out."""
    rng = np.random.default_rng(seed)
    n_ops, n_devices = int(rng.integers(4, 40)), int(rng.integers(2, 5))
    problem = random_problem(rng, n_ops=n_ops, n_devices=n_devices, constrained=seed % 2 == 0)
    cluster = problem.cluster
    links = list(cluster.links)
    if seed % 3 == 0:  # devices reach each other through the host alone
        links = [link for link in links if "host" in (link.source, link.destination)]
    if seed % 3 == 1:
        links = [replace(link, channel=None, queues=i % 2 == 0) for i, link in enumerate(links)]
    if seed % 6 == 1:  # no device has several streams
        who = ("receiver", "sender", "both", "nobody")
        links = [
            replace(link, occupies=who[i // 2 % 4])
            if link.queues and "host" not in (link.source, link.destination)
            else link
            for i, link in enumerate(links)
        ]
    devices = tuple(
        replace(
            device,
            memory_domain="shared",
            cut_seconds_per_byte=0.125,
            layout_seconds=0.5,
            layout_seconds_per_byte=0.25,
        )
        for device in cluster.devices
    )
    contention = {"shared": (1.0, 1.25, 1.5)} if seed % 4 else {}
    pools = {}
    if seed % 5 == 3:
        total = float(problem.graph.weight_bytes.sum() + problem.graph.tensor_bytes.sum())
        pools = {"ram": total}
        devices = (*(replace(one, pool="ram") for one in devices[:2]), *devices[2:])
    own = frozen_floats(rng.integers(0, 5, problem.graph.n_tensors) / 4.0)
    return replace(
        problem,
        cluster=Cluster(devices, tuple(links), "host", contention, pools=pools),
        transfer_seconds=own if seed % 5 == 0 else None,
        execution_model=Event(dispatch="fifo" if seed % 4 in (1, 2) else "rank"),
    )


def allowed_rows(problem: Problem, rng: np.random.Generator, n_rows: int) -> np.ndarray:
    """Random placements that keep support, pins and colocation, shape (n_rows, n_units)."""
    classes = problem.colocation.group_of
    choices = [np.flatnonzero(row) for row in problem.allowed_by_class]
    if any(len(choice) == 0 for choice in choices):
        return np.zeros((0, problem.n_units), dtype=np.int64)
    drawn = [[int(rng.choice(choice)) for choice in choices] for _ in range(n_rows)]
    return np.array(drawn)[:, classes]


def feasible_rows(problem: Problem, seed: int) -> list[np.ndarray]:
    """Those of twenty `allowed_rows` that have a value; a test is skipped if none has."""
    simulator = Simulator(problem)
    rows = allowed_rows(problem, np.random.default_rng(seed), 20)
    feasible = [row for row in rows if math.isfinite(simulator.value(Placement.of(row)))]
    if not feasible:
        pytest.skip("no placement of these fits")
    return feasible


def layered_problem(n_ops: int, n_devices: int = 4, *, modules: bool = True) -> Problem:
    """A network of layers with module paths, and a random cost for each op on each device."""
    rng, builder = np.random.default_rng(0), GraphBuilder()
    tensors = [builder.add_input(1e5)]
    for op in range(n_ops):
        low = max(0, len(tensors) - 8)
        inputs = sorted(dict.fromkeys(rng.integers(low, len(tensors), 2).tolist()))
        path = f"model.layers.{op // 50}.block{op // 10 % 5}" if modules else ""
        builder.add_op(
            f"{path or 'net'}.op_{op}",
            ("MatMul", "Add", "Relu", "Softmax")[op % 4],
            inputs=[tensors[at] for at in inputs],
            flops=1e6,
            module=path,
            weights=[builder.add_weight(1e4)],
        )
        size = float(rng.integers(1_000, 1_000_000))
        tensors.append(builder.add_tensor(op, size, is_output=op == n_ops - 1))
    devices = tuple(Device(f"gpu:{at}", "gpu", memory_bytes=4e10) for at in range(n_devices))
    ends = [device.name for device in devices] + ["host"]
    links = tuple(
        Link(a, b, 1e-5, 1e10, channel="pcie" if "host" in (a, b) else None)
        for a in ends
        for b in ends
        if a != b
    )
    costs = CostTable(frozen_floats(rng.uniform(1e-5, 1e-3, (n_ops, n_devices))))
    return Problem.of_ops(builder.build(), Cluster(devices, links), costs)


def plan_for(problem: Problem, device_of: np.ndarray, order: np.ndarray | None = None) -> Plan:
    """A plan of a placement, with a short history."""
    placement = Placement.of(device_of, order)
    value = Simulator(problem).value(placement)
    assert math.isfinite(value)
    history = (
        HistoryPoint(1, 0.1, 2.0 * value),
        HistoryPoint(40, 0.9, 1.3 * value, 0.6 * value),
        HistoryPoint(300, 3.4, value, 0.7 * value),
    )
    record = PlacerRecord("local-search", "1", 0, 500, 12.0, history)
    solution = Solution(placement, value, "feasible", 0.7 * value)
    return plan_of(problem, solution, record, "openvino")


def layered_plan(n_ops: int, seed: int = 1, *, modules: bool = True) -> Plan:
    """A plan of `layered_problem` that keeps fifty neighbours together."""
    problem = layered_problem(n_ops, modules=modules)
    blocks = np.random.default_rng(seed).integers(0, 4, -(-n_ops // 50))
    return plan_for(problem, np.repeat(blocks, 50)[:n_ops])


N_PROBLEMS, N_MOVES = 10, 50


def moved_rows(problem: Problem, seed: int, n_moves: int) -> np.ndarray:
    """One placement after another, each with one unit elsewhere, legal or not."""
    rng = np.random.default_rng(seed)
    start = allowed_rows(problem, rng, 1)
    row = start[0] if len(start) else np.zeros(problem.n_units, dtype=np.int64)
    rows = []
    for _ in range(n_moves):
        row = row.copy()
        row[rng.integers(problem.n_units)] = rng.integers(problem.n_devices)
        rows.append(row)
    return np.array(rows)
