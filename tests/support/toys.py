"""Problems small enough to know the best placement, and what a run evaluated on them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from placewright.core.arrays import IntArray, frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.placers.registry import Placer
from placewright.simulation.evaluator import Evaluator


def cluster_of(n_devices: int, memory_bytes: float = np.inf, bandwidth: float = 1e9) -> Cluster:
    """n devices, all linked to each other and to the host."""
    names = [f"gpu:{index}" for index in range(n_devices)]
    ends = [*names, "host"]
    links = [Link(a, b, 0.0, bandwidth) for a in ends for b in ends if a != b]
    return Cluster(tuple(Device(name, "gpu", memory_bytes) for name in names), tuple(links))


def separable_problem(n_groups: int = 7, n_devices: int = 2) -> Problem:
    """`n_groups` ops without edges; op i takes 1 s on device i % n_devices, elsewhere 2 s."""
    builder = GraphBuilder()
    for index in range(n_groups):
        op = builder.add_op(f"op{index}", f"Kind{index}", flops=1.0)
        builder.add_tensor(op, 1.0, shape=(index + 1,), is_output=True)
    seconds = np.full((n_groups, n_devices), 2.0)
    seconds[np.arange(n_groups), best_devices(n_groups, n_devices)] = 1.0
    costs = CostTable(frozen_floats(seconds))
    return Problem.of_ops(builder.build(), cluster_of(n_devices), costs)


def best_devices(n_groups: int = 7, n_devices: int = 2) -> IntArray:
    """The best placement of `separable_problem`."""
    return (np.arange(n_groups) % n_devices).astype(np.int64)


def two_cluster_problem(size: int = 4) -> Problem:
    """Two ladders of `size` rungs (2 ops each) with heavy tensors inside, light ones between.

    The first ladder's ops take 1 s on device 0 and 3 s on device 1, the second's the other way
    round; a tensor inside a ladder takes 0.5 s to move, one between the ladders 0.001 s.
    """
    builder = GraphBuilder()
    before: list[int] = []
    rows: list[list[float]] = []
    for ladder in range(2):
        for rung in range(size):
            last = rung == size - 1
            size_bytes, is_output = 1e6 if last else 5e8, last and ladder == 1
            left = builder.add_op(f"left{ladder}{rung}", f"A{ladder}", inputs=before)
            a = builder.add_tensor(left, size_bytes, shape=(5,), is_output=is_output)
            right = builder.add_op(f"right{ladder}{rung}", f"B{ladder}", inputs=[a, *before])
            b = builder.add_tensor(right, size_bytes, shape=(5,), is_output=is_output)
            before = [a, b]
            rows += [[1.0, 3.0] if ladder == 0 else [3.0, 1.0]] * 2
    return Problem.of_ops(builder.build(), cluster_of(2), CostTable(frozen_floats(rows)))


def two_cluster_optimum(problem: Problem) -> IntArray:
    """The first half on device 0, the second on device 1."""
    return (np.arange(problem.n_units) >= problem.n_units // 2).astype(np.int64)


def tight_problem() -> Problem:
    """A chain of eight ops with weights of 100 bytes; device 0 is faster and holds five of them."""
    builder = GraphBuilder()
    before: list[int] = []
    for index in range(8):
        weight = builder.add_weight(100.0)
        op = builder.add_op(f"op{index}", "MatMul", inputs=before, weights=[weight])
        before = [builder.add_tensor(op, 1.0, shape=(1,), is_output=index == 7)]
    costs = CostTable(frozen_floats(np.tile([1.0, 3.0], (8, 1))))
    return Problem.of_ops(builder.build(), cluster_of(2, memory_bytes=510.0), costs)


class Recorder:
    """Times placements by a matrix of costs, and remembers all that were asked for."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.placements: list[IntArray] = []

    def __call__(self, placement: Placement) -> float:
        self.placements.append(placement.device_of)
        seconds = self.problem.costs.seconds
        return float(seconds[np.arange(self.problem.n_units), placement.device_of].sum())


class Busy(Evaluator):
    """An evaluator whose incumbent another lane replaces whenever it is read without its value."""

    replaced = 0

    @property
    def best(self) -> Placement | None:
        known = super().best
        self.replaced += 1
        devices = np.full(self.problem.n_units, self.replaced % 2, dtype=np.int64)
        self.begin_from(Placement.of(devices), 0.5**self.replaced)
        return known


def run(
    placer: Placer,
    problem: Problem,
    evaluations: int,
    seed: int = 0,
    measure: Callable[[Placement], float] | None = None,
) -> Evaluator:
    """One run; the evaluator holds the incumbent and the counts."""
    evaluator = Evaluator(problem, Budget(evaluations=evaluations), measure=measure)
    placer.place(problem, evaluator, np.random.default_rng(seed))
    return evaluator


def optimal_share(recorder: Recorder, best: IntArray, last: int, every: int = 1) -> float:
    """Share of units on their best device in the last placements, one in `every`."""
    rows = np.stack(recorder.placements[::-1][::every][:last])
    return float((rows == best).mean())


def separable_share(
    placer: Placer, n_ops: int, evaluations: int, seed: int = 0, every: int = 1
) -> float:
    """Share of ops on their best device in the last 100 placements of the separable toy."""
    problem = separable_problem(n_ops)
    recorder = Recorder(problem)
    run(placer, problem, evaluations, seed, measure=recorder)
    return optimal_share(recorder, best_devices(n_ops), 100 // every, every)


class _OptimumFound(Exception):
    """Ends a run."""


def evaluations_to_optimum(placer: Placer, evaluations: int, seed: int) -> int | None:
    """Evaluations until the optimum of the two ladders was met; None where it was not."""
    problem = two_cluster_problem()
    evaluator = Evaluator(problem)
    best = evaluator.evaluate(two_cluster_optimum(problem))
    asked = 0

    def until_found(placement: Placement) -> float:
        nonlocal asked
        asked += 1
        value = evaluator.simulator.value(placement)
        if value <= best * (1.0 + 1e-9):
            raise _OptimumFound
        return value

    try:
        run(placer, problem, evaluations, seed, measure=until_found)
    except _OptimumFound:
        return asked
    return None
