"""The problems of the suite, in a fixed order: rows of results refer to their names.

Random ones are layered graphs and series-parallel graphs of any size, seeded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from placewright.core.arrays import (
    Csr,
    FloatArray,
    IntArray,
    frozen_bools,
    frozen_floats,
    frozen_ints,
)
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.graph import ComputationGraph
from placewright.core.problem import Objective, Problem
from placewright.errors import UnknownNameError
from placewright.files.tarnawski import read_workload
from placewright.suites.learned import zoo_cases
from placewright.suites.tarnawski import find_workloads

_REACH = 40  # an op of a layered graph reads outputs of the last so many ops
_BRANCHES = 4  # most branches of a fork
_FORK, _BRANCH_ENDS, _JOIN = 0, -1, -2  # marks among pieces
_SPREAD = 0.5  # standard deviation of the logarithm of a device's seconds around an op's own


def random_layered_problem(
    rng: np.random.Generator, n_ops: int, n_devices: int, n_inputs: int = 2
) -> Problem:
    """Every op reads the outputs of `n_inputs` ops before it (or fewer); all devices are linked."""
    ops = np.arange(n_ops)
    reach = np.minimum(np.maximum(ops, 1), _REACH)
    back = 1 + (rng.random((n_inputs, n_ops)) * reach).astype(np.int64)
    sources = np.maximum(ops[None, :] - back, 0)
    keys = np.unique((sources * n_ops + ops[None, :])[:, 1:])
    consumers = Csr.from_pairs(keys // n_ops, keys % n_ops, n_ops)
    graph = graph_of_edges(consumers, frozen_floats(rng.integers(1, 1000, n_ops)))
    seconds = rng.random((n_ops, n_devices))
    seconds *= 1e-5  # in place, without a copy: the largest table takes half a gibibyte
    seconds.setflags(write=False)
    return Problem.of_ops(graph, linked_devices(n_devices), CostTable(seconds, "random"))


def random_series_parallel_problem(rng: np.random.Generator, n_ops: int, n_devices: int) -> Problem:
    """A series-parallel graph; an op's seconds vary around its own mean from device to device.

    A graph of n ops is one op, two graphs in a row, or a fork op, two to four branches and a join
    op. J. Valdes, R. E. Tarjan, E. L. Lawler, "The Recognition of Series Parallel Digraphs", SIAM
    Journal on Computing 11(2), 1982. Transfers take about as long as ops.
    """
    producers, consumers = _series_parallel_edges(rng, n_ops)
    keys = np.unique(producers * n_ops + consumers)
    rows = Csr.from_pairs(keys // n_ops, keys % n_ops, n_ops)
    graph = graph_of_edges(rows, frozen_floats(rng.integers(1, 10_000, n_ops)))
    seconds = np.exp(_SPREAD * rng.standard_normal((n_ops, n_devices)))
    seconds *= 1e-5 * rng.random((n_ops, 1))
    seconds.setflags(write=False)
    return Problem.of_ops(graph, linked_devices(n_devices), CostTable(seconds, "random"))


def graph_of_edges(consumers: Csr, tensor_bytes: FloatArray) -> ComputationGraph:
    """Ops without weights, each with one tensor; rows of `consumers` are producers."""
    n_ops = len(tensor_bytes)
    return ComputationGraph(
        op_names=tuple(f"op{op}" for op in range(n_ops)),
        op_kinds=("Op",) * n_ops,
        op_flops=frozen_floats(np.zeros(n_ops)),
        op_phases=frozen_ints(np.zeros(n_ops)),
        op_modules=("",) * n_ops,
        op_colocation=frozen_ints(np.full(n_ops, -1)),
        op_weights=Csr.from_rows([[]] * n_ops),
        weight_bytes=frozen_floats([]),
        tensor_bytes=tensor_bytes,
        tensor_producers=frozen_ints(np.arange(n_ops)),
        tensor_consumers=consumers,
        tensor_is_output=frozen_bools(np.diff(consumers.indptr) == 0),
        tensor_shapes=((),) * n_ops,
        tensor_dtypes=("f32",) * n_ops,
    )


def linked_devices(n_devices: int) -> Cluster:
    """Devices and a host, every pair with a link of its own: 1 microsecond, 1 GB/s."""
    names = [f"d{index}" for index in range(n_devices)]
    links = [Link(a, b, 1e-6, 1e9) for a in [*names, "host"] for b in [*names, "host"] if a != b]
    return Cluster(tuple(Device(name) for name in names), tuple(links))


def _series_parallel_edges(rng: np.random.Generator, n_ops: int) -> tuple[IntArray, IntArray]:
    """Producers and consumers of the edges; ops are numbered in topological order.

    A stack holds the pieces that are not laid out yet, so that deep graphs need no recursion: a
    number of ops (> 0), or one of the marks above.
    """
    producers: list[int] = []
    consumers: list[int] = []
    made = 0
    last = -1  # the op that the next one follows
    forks: list[int] = []
    branch_ends: list[list[int]] = []
    draws = iter(rng.random(4 * n_ops + 16).tolist())
    stack = [n_ops]
    while stack:
        piece = stack.pop()
        if piece > 3:
            stack += reversed(_split(piece, next(draws), next(draws)))
            continue
        if piece == _BRANCH_ENDS:
            branch_ends[-1].append(last)
            last = forks[-1]
            continue
        before = branch_ends.pop() if piece == _JOIN else [last]
        for _ in range(max(1, piece)):
            producers += [op for op in before if op >= 0]
            consumers += [made] * sum(op >= 0 for op in before)
            last, before = made, [made]
            made += 1
        if piece == _FORK:
            forks.append(last)
            branch_ends.append([])
        elif piece == _JOIN:
            forks.pop()
    return np.array(producers, dtype=np.int64), np.array(consumers, dtype=np.int64)


def _split(n_ops: int, draw: float, share: float) -> list[int]:
    """The pieces of a graph of at least four ops: two in a row, or fork, branches and join."""
    if draw < 0.5:
        first = min(n_ops - 1, 1 + int(share * (n_ops - 1)))
        return [first, n_ops - first]
    n_branches = min(n_ops - 2, 2 + int(share * (_BRANCHES - 1)))
    pieces = [_FORK]
    for branch in range(n_branches):
        size = (n_ops - 2 + branch) // n_branches
        pieces += [size, _BRANCH_ENDS]
    return [*pieces, _JOIN]


SUITE_VERSION = 1  # increases if a problem changes: rows of other versions are repeated
MODELS = ("inception_v3", "resnet50", "bert_base", "gpt2", "moe", "nasnet_a", "rnnlm", "gnmt")
CLUSTERS = ("2gpu", "4gpu", "8gpu", "cpu+gpu")
SIZES = ((1_000, 4), (10_000, 8), (100_000, 16), (1_000_000, 64))  # ops, devices

# Of `bench auto`: all kinds and sizes that have an answer within 20 s from every method.
OF_AUTO = (
    "inception_v3 2gpu",
    "inception_v3 cpu+gpu",
    "resnet50 2gpu",
    "resnet50 4gpu",
    "bert_base 2gpu",
    "bert_base cpu+gpu",
    "gpt2 2gpu",
    "gpt2 8gpu",
    "moe 2gpu",
    "moe cpu+gpu",
    "nasnet_a 2gpu",
    "nasnet_a 4gpu",
    "rnnlm 2gpu",
    "rnnlm 4gpu",
    "gnmt 2gpu",
    "gnmt 8gpu",
    "resnet50 training 2gpu",
    "rnnlm training 4gpu",
    "gnmt training 8gpu",
    "layered 1000 x 4",
    "layered 10000 x 8",
    "layered 100000 x 16",
    "series-parallel 1000 x 4",
    "series-parallel 10000 x 8",
)


@dataclass(frozen=True)
class SuiteProblem:
    """One problem, built on demand."""

    name: str  # such as ``"gnmt training 8gpu"``
    kind: str  # ``"zoo"``, ``"training"``, ``"layered"``, ``"series-parallel"`` or ``"tarnawski"``
    build: Callable[[], Problem]  # makes the problem, the same one every time


def suite_problems(data: Path | str | None = None) -> list[SuiteProblem]:
    """All problems, in the order in which they are run.

    Args:
        data: folder with the workloads of Tarnawski et al. 2020; None leaves them out.

    Raises:
        InputError: the folder holds no workloads.
    """
    problems = [
        SuiteProblem(case.name, kind, case.build)
        for objective, kind in (("latency", "zoo"), ("training", "training"))
        for case in zoo_cases(MODELS, CLUSTERS, _objective(objective))
    ]
    for kind, make in (
        ("layered", random_layered_problem),
        ("series-parallel", random_series_parallel_problem),
    ):
        problems += [_random(kind, make, n_ops, n_devices) for n_ops, n_devices in SIZES]
    if data is not None:
        problems += [_workload(name, path) for name, path in find_workloads(data).items()]
    return problems


def chosen_problems(problems: Sequence[SuiteProblem], parts: Sequence[str]) -> list[SuiteProblem]:
    """Problems named by one of `parts`, or with a part in their name if no name is equal.

    Raises:
        UnknownNameError: a part is in no name.
    """
    wanted: dict[str, SuiteProblem] = {}
    for part in parts:
        matches = [problem for problem in problems if problem.name == part]
        matches = matches or [problem for problem in problems if part in problem.name]
        if not matches:
            raise UnknownNameError("problem", part, [problem.name for problem in problems])
        wanted |= {problem.name: problem for problem in matches}
    return [p for p in problems if p.name in wanted] if parts else list(problems)


def _random(
    kind: str, make: Callable[[np.random.Generator, int, int], Problem], n_ops: int, n_devices: int
) -> SuiteProblem:
    def build() -> Problem:
        return make(np.random.default_rng(0), n_ops, n_devices)

    return SuiteProblem(f"{kind} {n_ops} x {n_devices}", kind, build)


def _workload(name: str, path: Path) -> SuiteProblem:
    def build() -> Problem:
        is_throughput = name.startswith("throughput")
        return read_workload(path, objective="throughput" if is_throughput else "latency")

    return SuiteProblem(f"tarnawski {name}", "tarnawski", build)


def _objective(name: str) -> Objective:
    return "training" if name == "training" else "latency"
