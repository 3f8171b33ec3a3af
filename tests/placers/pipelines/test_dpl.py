"""The linearised program, PipeDream's partitioner, and greedy filling."""

from __future__ import annotations

import time

import numpy as np
import pytest
from support.pipelines import best_by_brute_force, max_load, pipeline_problem, random_pipeline

from placewright.core.arrays import Csr
from placewright.core.solution import Budget
from placewright.placers.pipelines.dpl import Dpl
from placewright.placers.pipelines.greedy import filled
from placewright.placers.pipelines.ideal_dp import IdealDp
from placewright.placers.pipelines.ideals.items import depth_first_order, items_of, most_in_memory
from placewright.placers.pipelines.ideals.load_model import load_model_of
from placewright.placers.pipelines.ideals.program import TOO_MANY_KINDS, solved_in_order
from placewright.placers.pipelines.pipedream import Pipedream, biconnected_tails
from placewright.placers.registry import Placer
from placewright.simulation.evaluator import Evaluator


def test_the_order_follows_chains() -> None:
    """Two chains 0-1-2 and 3-4-5: the one that became free last is followed to its end."""
    order = depth_first_order(Csr.from_rows([[1], [2], [], [4], [5], []]))
    assert order.tolist() == [3, 4, 5, 0, 1, 2]


@pytest.mark.parametrize("seed", range(10))
def test_it_is_legal_and_never_beats_the_best_contiguous_split(seed: int) -> None:
    problem = random_pipeline(np.random.default_rng(seed), 6, 2, 1)
    best = best_by_brute_force(problem, contiguous=True)
    for placer in (Dpl(), Pipedream()):
        solution = placer.place(problem, Evaluator(problem), np.random.default_rng(0))
        if solution.placement is not None:
            value = max_load(problem, solution.placement.device_of.tolist())
            assert solution.value == pytest.approx(value)
            assert solution.value >= best - 1e-9


def test_the_branches_of_a_diamond_become_one_layer() -> None:
    """0-1-2 is a chain, 2 forks to 3 and 4, which join in 5, then 6: layers 0 | 1 | 2 3 4 | 5 | 6
    (a component's last op is no tail, so it stays outside)."""
    pairs = np.array([[0, 1], [1, 2], [2, 3], [2, 4], [3, 5], [4, 5], [5, 6]])
    assert biconnected_tails(7, pairs).group_of.tolist() == [0, 1, 2, 2, 2, 3, 4]


def test_pipedream_cannot_split_the_branches() -> None:
    """Fork to 8 and 8 on two devices: the ideal split has 9 + 1, PipeDream keeps 1 + 8 + 8."""
    problem = pipeline_problem(
        [[1] * 2, [8] * 2, [8] * 2, [1] * 2], [(0, 1), (0, 2), (1, 3), (2, 3)], [0.5] * 4
    )
    solution = Pipedream().place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.value == 18  # all four on one device: any cut of 17 | 1 costs 0.5 + 0.5
    assert best_by_brute_force(problem, contiguous=True) < 18


def test_ignored_ops_form_no_component() -> None:
    problem = pipeline_problem(
        [[1] * 2, [8] * 2, [8] * 2, [1] * 2], [(0, 1), (0, 2), (1, 3), (2, 3)], [0.5] * 4
    )
    assert Pipedream().layers(problem).n_groups == 2
    assert Pipedream(ignored="0").layers(problem).n_groups == 4


@pytest.mark.parametrize("placer", [Dpl(), Pipedream(), IdealDp()])
def test_a_table_for_too_many_kinds_of_devices_is_not_made(placer: Placer) -> None:
    """Sixty-four devices that differ have 2^64 sets of devices in use."""
    problem = pipeline_problem([[float(d) for d in range(1, 65)]] * 3, [(0, 1), (1, 2)], [1.0] * 3)
    solution = placer.place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.message == TOO_MANY_KINDS
    assert solution.status == "unknown"


def test_a_walk_that_the_budget_ends_keeps_the_best_split_by_then() -> None:
    """Eight kinds of devices: each look at the budget comes after some ten thousands of sets."""
    n_ops = 600
    problem = pipeline_problem(
        [[1.0 + 0.1 * d for d in range(8)]] * n_ops,
        [(op, op + 1) for op in range(n_ops - 1)],
        [1.0] * n_ops,
    )
    items = items_of(problem)
    model = load_model_of(problem, items.grouping)
    looks = iter([False, True])
    some = solved_in_order(model, items, is_spent=lambda: next(looks))
    whole = solved_in_order(model, items)
    assert some is not None
    assert whole is not None
    assert whole.value < some.value < n_ops + 1


def test_ideals_of_many_items_are_limited_by_their_bytes() -> None:
    """A set of 100,000 items has 12.5 kB, so that a gibibyte holds 85,871 sets."""
    assert most_in_memory(100_000) == 85_871
    assert most_in_memory(1000) > 1_000_000


def test_greedy_takes_as_long_for_the_last_blocks_as_for_the_first() -> None:
    """It counts the bytes that a block adds, not those of everything that devices keep."""
    n_ops = 20_000
    problem = pipeline_problem(
        [[1.0] * 3] * n_ops, [], [1.0] * n_ops, n_cpus=1, sizes=[1.0] * n_ops, memory=9000.0
    )
    evaluator = Evaluator(problem, Budget(evaluations=1))
    began = time.process_time()
    device_of = filled(problem)
    assert time.process_time() - began < 5.0
    assert device_of is not None
    assert np.bincount(device_of).tolist() == [9000, 9000, 2000]
    assert evaluator.evaluate(device_of) > 0.0
