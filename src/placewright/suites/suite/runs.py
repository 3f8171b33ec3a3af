"""Runs of the suite: one process each, stored as soon as it ends, never repeated.

A run has a budget in wall-clock seconds, as for users. Its row also has the processor seconds of
the run and the load of the machine, which show disturbances.

The problems of the suite, in a fixed order: rows of results refer to their names.

Random ones are layered graphs and series-parallel graphs of any size, seeded.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
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
from placewright.core.solution import Budget
from placewright.errors import InputError, MissingExtraError, PlacewrightError, UnknownNameError
from placewright.files.results import ResultsFile
from placewright.files.tarnawski import read_workload
from placewright.io.content import one_line
from placewright.placers.bases import pass_interrupt_on
from placewright.placers.registry import solution_by
from placewright.session.comparison import named_placer
from placewright.simulation.evaluator import Evaluator
from placewright.suites.learned import zoo_cases
from placewright.suites.tarnawski import find_workloads, peak_memory
from placewright.workers.interface import Workers
from placewright.workers.processes import open_workers
from placewright.workers.tasks import Done, Shared, Task

FORMAT = "placewright.suite/1"
_PATIENCE = (10.0, 300.0)  # limit on a run: factor on its seconds, plus seconds


@dataclass(frozen=True)
class SuiteRow:
    """One placer on one problem with one seed; values and bounds in the problem's unit.

    Attributes:
        version: of the suite.
        problem, kind: of the problem.
        units, devices: its size.
        placer: registry name, with settings that differ from the defaults.
        seed: of its generator.
        budget: wall-clock seconds of its budget.
        status: of the solution; ``"left out"`` if the placer does not take the problem, ``"error"``
            if it failed, ``"ended"`` if the run was ended from outside.
        value: of the incumbent; NaN without one.
        bound: proven lower bound; 0 without one.
        evaluations: queries used.
        seconds: wall-clock seconds of the search.
        processor_seconds: of the search, all threads.
        peak_bytes: largest resident set of the run's process; 0 if the system does not tell.
        load: mean number of runnable threads of the machine in the last minute of the run.
        message: of the solution.
        history: (seconds, value, bound or 0) of each improvement.
    """

    version: int
    problem: str
    kind: str
    units: int
    devices: int
    placer: str
    seed: int
    budget: float
    status: str
    value: float = math.nan
    bound: float = 0.0
    evaluations: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    peak_bytes: int = 0
    load: float = 0.0
    message: str = ""
    history: list[list[float]] = field(default_factory=list)

    @property
    def identity(self) -> tuple[int, str, str, int, float]:
        """Identity of the run."""
        return self.version, self.problem, self.placer, self.seed, self.budget


Report = Callable[[SuiteRow], None]


def run_suite(
    problems: Sequence[SuiteProblem],
    placers: Sequence[str],
    seconds: float,
    results: Path,
    *,
    seeds: Sequence[int] = (0,),
    on_row: Report = lambda row: None,
    on_ahead: Callable[[int], None] = lambda number: None,
    workers: Workers | None = None,
) -> list[SuiteRow]:
    """Run all placers with all seeds on all problems; rows in the file are not repeated.

    Args:
        problems: in the order in which they are run.
        placers: ``NAME`` or ``NAME:key=value:...``.
        seconds: budget of each run, > 0.
        results: JSON file, written after every run.
        seeds: of the runs of each placer on each problem, >= 0.
        on_ahead: called with the number of new rows, before the first.
        workers: run the tasks, each in a process of its own; None is one worker here.

    Returns:
        The requested rows.

    Raises:
        UnknownNameError: a placer is not registered.
        FileFormatError: the results file is none of this benchmark.
    """
    for name in placers:
        try:
            named_placer(name, {})
        except MissingExtraError:
            continue  # its rows say so
    if not placers or not 0 < seconds < math.inf or min(seeds, default=-1) < 0:
        raise InputError(
            "bench suite needs placers, seconds > 0 and finite, and seeds >= 0, got "
            f"{len(placers)}, "
            f"{seconds}, {list(seeds)}"
        )
    file = ResultsFile(results, FORMAT, SuiteRow, lambda row: row.identity)
    stored = file.rows
    keys = {
        problem.name: [
            (SUITE_VERSION, problem.name, name, seed, float(seconds))
            for seed in dict.fromkeys(seeds)
            for name in dict.fromkeys(placers)
        ]
        for problem in problems
    }

    def is_done(key: tuple[int, str, str, int, float]) -> bool:
        return key in stored and _TO_INSTALL not in stored[key].message

    on_ahead(sum(not is_done(key) for wanted in keys.values() for key in wanted))

    def keep(row: SuiteRow) -> None:
        file.add([row])
        on_row(row)

    def missing() -> Iterator[Task]:
        for problem in problems:
            yield from _tasks(
                problem, [key for key in keys[problem.name] if not is_done(key)], keep
            )

    with open_workers(1, apart=True) if workers is None else nullcontext(workers) as all_workers:
        for done in all_workers.run(missing()):
            keep(_row_of(done))
    return [stored[key] for problem in problems for key in keys[problem.name]]


_TO_INSTALL = "pip install"  # in the message of a run that a missing package prevented


def _tasks(
    case: SuiteProblem, missing: Sequence[tuple[int, str, str, int, float]], keep: Report
) -> Iterator[Task]:
    """Each missing run in a process of its own, so that its memory is that of the run.

    A run that takes far too long is ended. Rows of problems that a placer does not take go to
    `keep` at once.
    """
    if not missing:
        return
    problem = case.build()
    shared = Shared(problem)
    for version, _, placer, seed, seconds in missing:
        row = SuiteRow(
            version=version,
            problem=case.name,
            kind=case.kind,
            units=problem.n_units,
            devices=problem.n_devices,
            placer=placer,
            seed=seed,
            budget=seconds,
            status="ended",
        )
        reason = _reason_to_leave_out(placer, problem)
        if reason is not None:
            keep(replace(row, status="left out", message=reason))
            continue
        longest = _PATIENCE[0] * seconds + _PATIENCE[1]
        yield Task(run_one, (row,), shared, placer, longest, tries=1, may_be_lost=True, alone=True)


def _row_of(done: Done) -> SuiteRow:
    row: SuiteRow = done.task.arguments[0] if done.lost else done.result
    if not done.lost or done.is_overdue:
        return row
    # As it is when the system has no memory left.
    return replace(row, status="error", message=done.lost)


def _reason_to_leave_out(placer: str, problem: Problem) -> str | None:
    try:
        return named_placer(placer, {}).why_not(problem)
    except MissingExtraError as error:
        return str(error)


def run_one(problem: Problem, row: SuiteRow) -> SuiteRow:
    """Do the run that a row describes, in this process; return the row with its results."""
    try:
        placer = named_placer(row.placer, {})
        evaluator = Evaluator(problem, Budget(seconds=row.budget))
        began = time.process_time()
        solution = pass_interrupt_on(solution_by(placer, problem, evaluator, row.seed))
    except PlacewrightError as error:
        return replace(row, status="error", message=str(error))
    except Exception as error:  # of a placer from outside, or of its library
        return replace(row, status="error", message=f"{type(error).__name__}: {one_line(error)}")
    return replace(
        row,
        status=solution.status,
        value=solution.value if math.isfinite(solution.value) else math.nan,
        bound=solution.lower_bound if math.isfinite(solution.lower_bound) else 0.0,
        evaluations=solution.evaluations,
        seconds=round(evaluator.seconds, 3),
        processor_seconds=round(time.process_time() - began, 3),
        peak_bytes=peak_memory(),
        load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0,
        message=solution.message,
        history=[
            [round(point.seconds, 4), point.value, point.lower_bound or 0.0]
            for point in solution.history
        ],
    )


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
