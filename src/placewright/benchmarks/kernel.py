"""`bench kernel`: how many ops per second one core simulates, beside plain Python.

The rate is ops divided by the median seconds of one evaluation of a random placement, with ranks,
transfers and peak memory, on random layered graphs of mean degree 2.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from placewright.benchmarks.plain_simulator import PlainSimulator
from placewright.core.arrays import Csr, frozen_bools, frozen_floats, frozen_ints
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.graph import ComputationGraph
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import MismatchError
from placewright.simulation.model import Simulator

_REACH = 40  # an op reads outputs of at most this many ops before it
_PLAIN_UP_TO = 100_000  # ops above which plain Python is not timed


@dataclass(frozen=True)
class KernelRow:
    """One size: the median of one evaluation.

    Attributes:
        ops, devices, edges: of the random problem.
        seconds: median wall-clock seconds of one evaluation by the kernel.
        ops_per_second: ops / seconds.
        plain_seconds: median of the plain-Python simulator; nan where it was not timed.
        times_plain_python: plain_seconds / seconds.
    """

    ops: int
    devices: int
    edges: int
    seconds: float
    ops_per_second: float
    plain_seconds: float
    times_plain_python: float


def run_kernel_benchmark(
    sizes: Sequence[int], devices: int = 4, *, seed: int = 0, repeats: int = 9
) -> list[KernelRow]:
    """Time one evaluation at each size.

    Raises:
        MismatchError: the two simulators give different makespans.
    """
    rng = np.random.default_rng(seed)
    return [_row(random_layered_problem(rng, size, devices), rng, repeats) for size in sizes]


def write_results(rows: Sequence[KernelRow], path: Path) -> None:
    """Write rows as JSON."""
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def random_layered_problem(rng: np.random.Generator, n_ops: int, n_devices: int) -> Problem:
    """Every op reads the outputs of two of the ops before it; all devices are linked."""
    ops = np.arange(n_ops)
    reach = np.minimum(np.maximum(ops, 1), _REACH)
    back = 1 + (rng.random((2, n_ops)) * reach).astype(np.int64)
    sources = np.maximum(ops[None, :] - back, 0)
    keys = np.unique((sources * n_ops + ops[None, :])[:, 1:])
    consumers = Csr.from_pairs(keys // n_ops, keys % n_ops, n_ops)
    graph = ComputationGraph(
        op_names=tuple(f"op{op}" for op in range(n_ops)),
        op_kinds=("Op",) * n_ops,
        op_flops=frozen_floats(np.zeros(n_ops)),
        op_phases=frozen_ints(np.zeros(n_ops)),
        op_modules=("",) * n_ops,
        op_colocation=frozen_ints(np.full(n_ops, -1)),
        op_weights=Csr.from_rows([[]] * n_ops),
        weight_bytes=frozen_floats([]),
        tensor_bytes=frozen_floats(rng.integers(1, 1000, n_ops)),
        tensor_producers=frozen_ints(ops),
        tensor_consumers=consumers,
        tensor_is_output=frozen_bools(np.diff(consumers.indptr) == 0),
        tensor_shapes=((),) * n_ops,
        tensor_dtypes=("f32",) * n_ops,
    )
    names = [f"d{index}" for index in range(n_devices)]
    links = [Link(a, b, 1e-6, 1e9) for a in [*names, "host"] for b in [*names, "host"] if a != b]
    cluster = Cluster(tuple(Device(name) for name in names), tuple(links))
    seconds = rng.random((n_ops, n_devices)) * 1e-5
    return Problem.of_ops(graph, cluster, CostTable(frozen_floats(seconds), "random"))


def _row(problem: Problem, rng: np.random.Generator, repeats: int) -> KernelRow:
    simulator = Simulator(problem)
    device_of = rng.integers(0, problem.n_devices, problem.n_units)
    placement = Placement.of(device_of)
    value = simulator.value(placement)
    seconds = _median_seconds(lambda: simulator.value(placement), repeats)
    plain_seconds = float("nan")
    if problem.n_units <= _PLAIN_UP_TO:
        plain, devices = PlainSimulator(problem), device_of.tolist()
        expected, peaks = plain.makespan(devices)
        if value != expected or simulator.memory_peaks(placement).tolist() != peaks:
            raise MismatchError(
                f"kernel: {value} s, plain Python: {expected} s; value and memory must be equal"
            )
        plain_seconds = _median_seconds(lambda: plain.makespan(devices), max(1, repeats // 3))
    return KernelRow(
        ops=problem.n_units,
        devices=problem.n_devices,
        edges=problem.unit_graph.n_edges,
        seconds=seconds,
        ops_per_second=problem.n_units / seconds,
        plain_seconds=plain_seconds,
        times_plain_python=plain_seconds / seconds,
    )


def _median_seconds(call: Callable[[], object], repeats: int) -> float:
    samples = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        samples.append(time.perf_counter() - began)
    return statistics.median(samples)
