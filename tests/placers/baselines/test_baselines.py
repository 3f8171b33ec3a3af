"""Hand-worked cases of the baselines that read few costs or none."""

from __future__ import annotations

import networkx
import numpy as np
import pytest

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.errors import BudgetSpent
from placewright.placers.baselines.simple import contiguous_split, device_speeds
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator
from placewright.suites.suite.runs import random_layered_problem


def row(seconds: list[list[float]], sizes: list[float]) -> Problem:
    """Ops in a row that keep `sizes` bytes and pass nothing that takes time."""
    builder = GraphBuilder()
    tensor = None
    for op, size in enumerate(sizes):
        inputs = [] if tensor is None else [tensor]
        builder.add_op(f"op{op}", "Op", inputs=inputs, weights=[builder.add_weight(size)])
        tensor = builder.add_tensor(op, 0.0, is_output=op == len(sizes) - 1)
    names = [f"d{index}" for index in range(len(seconds[0]))]
    links = tuple(Link(a, b) for a in names for b in names if a != b)
    cluster = Cluster(tuple(Device(name) for name in names), links, host="d0")
    return Problem.of_ops(builder.build(), cluster, CostTable(frozen_floats(seconds)))


def solve(name: str, problem: Problem, evaluations: int = 50, **settings: str) -> Solution:
    evaluator = Evaluator(problem, Budget(evaluations=evaluations))
    return make_placer(name, settings).place(problem, evaluator, np.random.default_rng(0))


def devices(solution: Solution) -> list[int]:
    assert solution.placement is not None
    return [int(device) for device in solution.placement.device_of]


def test_single_takes_the_best_device() -> None:
    """Sums are 9 and 8 s; an op that d1 cannot run stays on d0."""
    best = solve("single", row([[4, 3], [5, 5]], [1, 1]))
    assert (devices(best), best.value, best.evaluations) == ([1, 1], 8.0, 2)
    assert devices(solve("single", row([[4, 3], [5, np.inf]], [1, 1]), device="d1")) == [1, 0]


def test_round_robin_deals() -> None:
    assert devices(solve("round-robin", row([[1, 9]] * 5, [1] * 5))) == [0, 1, 0, 1, 0]


def test_random_finds_the_best_of_four() -> None:
    """Two ops, two devices: fifty draws see all four placements; the best takes 1 + 2 s."""
    found = solve("random", row([[1, 5], [7, 2]], [1, 1]))
    assert (devices(found), found.value, found.evaluations) == ([0, 1], 3.0, 50)


@pytest.mark.parametrize(
    ("share", "expected"), [("work", [0, 0, 0, 1, 1, 1]), ("speed", [0, 0, 1, 1, 1, 1])]
)
def test_even_split_shares(share: str, expected: list[int]) -> None:
    """d1 is twice as fast: half of the ops by work, two thirds by speed."""
    assert devices(solve("even-split", row([[2, 1]] * 6, [1] * 6), share=share)) == expected


def test_m_topo_fills_by_bytes() -> None:
    """The share is 8 / 2 + 3 = 7 bytes: 3 + 3 + 1 fill d0, the last op of 1 byte goes to d1."""
    assert devices(solve("m-topo", row([[1, 9]] * 4, [3, 3, 1, 1]))) == [0, 0, 0, 1]


def test_cpop_keeps_the_critical_path_together() -> None:
    """A row is its own critical path: all of it on the device where it takes least, 2 + 2 + 2 s."""
    found = solve("cpop", row([[1, 2], [9, 2], [1, 2]], [1, 1, 1]))
    assert (devices(found), found.value) == ([1, 1, 1], 6.0)


def test_shares_of_memory_are_those_of_devices_that_compute_at_once() -> None:
    """The other mode of a card has memory without limit, and takes no share."""
    graph = networkx.DiGraph([(0, 1), (1, 2)])
    problem = Problem.from_costs(
        graph,
        [[4.0, 1.0, 1.0]] * 3,
        (0.0, np.inf),
        memory=[np.inf, 2**20, 2**20],
        devices=["slow", "fast", "other"],
        processors={"slow": ["card"], "fast": ["card"]},
    )
    found = contiguous_split(problem, "memory")
    assert set(found.tolist()) <= {1, 2}


def test_an_op_that_one_device_alone_can_run_says_nothing_of_its_speed() -> None:
    """Both can run two ops, in 1 and 10 s; the third one takes 100 s where it can run at all."""
    problem = row([[1.0, 10.0], [1.0, 10.0], [np.inf, 100.0]], [1.0] * 3)
    assert device_speeds(problem) == pytest.approx([1.0, 0.1])


def test_random_looks_at_the_clock_after_half_a_second_of_simulation() -> None:
    """It asks for twenty placements of 50,000 units at once, not for 64."""
    problem = random_layered_problem(np.random.default_rng(0), 50_000, 2)
    asked: list[int] = []

    class Ears(Evaluator):
        def evaluate_many(self, devices_of, *, keep=None):  # type: ignore[no-untyped-def]
            asked.append(len(devices_of))
            raise BudgetSpent

    evaluator = Ears(problem, Budget(seconds=9.0))
    make_placer("random").place(problem, evaluator, np.random.default_rng(0))
    assert asked == [20]
