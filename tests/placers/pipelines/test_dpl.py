"""The linearised program and PipeDream's partitioner."""

from __future__ import annotations

import numpy as np
import pytest
from support.pipelines import best_by_brute_force, max_load, pipeline_problem, random_pipeline

from placewright.core.arrays import Csr
from placewright.placers.pipelines.dpl import Dpl
from placewright.placers.pipelines.ideals.items import depth_first_order
from placewright.placers.pipelines.pipedream import Pipedream, biconnected_tails
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
