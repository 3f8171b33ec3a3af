"""Search over what list schedulers are told."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import InputError
from placewright.placers.registry import make_placer
from placewright.placers.search import problem_space
from placewright.placers.search.problem_space import ProblemSpace
from placewright.simulation.evaluator import Evaluator
from placewright.suites.suite.runs import random_layered_problem


def fan(branches: int) -> Problem:
    """A (1 s) makes one tensor for each of several ops of 2 s, all on one slow link (1.5 s each).

    Two equal devices. List schedulers believe that transfers do not wait for each other: each op
    on the other device seems to start at 1 + 1.5 = 2.5 s.
    """
    builder = GraphBuilder()
    a = builder.add_op("A", "Op")
    tensors = [builder.add_tensor(a, 1.0) for _ in range(branches)]
    for index, tensor in enumerate(tensors):
        builder.add_op(f"B{index}", "Op", inputs=[tensor])
    links = tuple(Link(x, y, latency_seconds=1.5) for x, y in (("p", "q"), ("q", "p")))
    seconds = np.full((branches + 1, 2), 2.0)
    seconds[0] = 1.0
    cluster = Cluster((Device("p"), Device("q")), links, host="p")
    return Problem.of_ops(builder.build(), cluster, CostTable(frozen_floats(seconds)))


def test_dearer_transfers_stand_for_the_wait_on_a_link() -> None:
    """Eight ops: four at home end at 1 + 8 = 9; elsewhere the last of four has its input at 7.

    Transfers of 1.5 s keep up with ops of 2 s: 2.5 + 4 x 2 = 10.5 with four elsewhere, 1 + 5 x 2 =
    11 with five at home and 2.5 + 3 x 2 = 8.5 elsewhere. No placement is better than 10.5, and the
    search finds one; links that queue make what HEFT planned for q no earlier than it believed.
    """
    problem = fan(8)
    evaluator = Evaluator(problem, Budget(evaluations=60))
    found = ProblemSpace().place(problem, evaluator, np.random.default_rng(0))
    assert found.value == 10.5


def test_it_beats_the_list_schedulers_that_it_tells_the_truth_to() -> None:
    """Its first plans are theirs, so it is never worse, and on a random graph it is better."""
    problem = random_layered_problem(np.random.default_rng(1), 400, 4)
    links = tuple(replace(link, bandwidth=1e8) for link in problem.cluster.links)
    problem = replace(problem, cluster=replace(problem.cluster, links=links))
    lists = Evaluator(problem, Budget(evaluations=10))
    for name in ("m-etf", "heft"):
        make_placer(name).place(problem, lists, np.random.default_rng(0))
    evaluator = Evaluator(problem, Budget(evaluations=300))
    found = ProblemSpace().place(problem, evaluator, np.random.default_rng(0))
    assert found.value < 0.97 * lists.best_value


def test_a_second_call_with_the_same_evaluator_goes_on() -> None:
    """Two halves of a budget ask what the whole asks, but for the children at the break."""
    problem = random_layered_problem(np.random.default_rng(2), 100, 3)
    placer, rng = ProblemSpace(children=2), np.random.default_rng(4)
    halves = Evaluator(problem, Budget(evaluations=80))
    placer.place(problem, halves, rng)
    halves.budget = Budget(evaluations=160)
    placer.place(problem, halves, rng)
    whole = Evaluator(problem, Budget(evaluations=160))
    placer.place(problem, whole, np.random.default_rng(4))
    assert halves.best_value == whole.best_value
    assert [p.value for p in halves.history] == [p.value for p in whole.history]


def test_the_number_of_cores_changes_nothing() -> None:
    problem = random_layered_problem(np.random.default_rng(3), 200, 3)
    values = []
    for cores in (1, 7):
        with mock.patch.object(os, "cpu_count", return_value=cores):
            evaluator = Evaluator(problem, Budget(evaluations=100))
            ProblemSpace().place(problem, evaluator, np.random.default_rng(4))
            values.append([(p.evaluations, p.value) for p in evaluator.history])
    assert values[0] == values[1]


def test_an_excess_lowers_a_limit_once_in_a_round() -> None:
    """Weights of 60 and 20 bytes, outputs of 20 and 21: both on the device of 100 are 21 too many.

    All children of the first round plan that. With 79 bytes the first op stays there, which takes
    1 s instead of 10; with 21 less for each child it would not.
    """
    builder = GraphBuilder()
    first = builder.add_op("first", "Op", weights=[builder.add_weight(60.0)])
    read = [builder.add_tensor(first, 20.0)]
    second = builder.add_op("second", "Op", inputs=read, weights=[builder.add_weight(20.0)])
    builder.add_tensor(second, 21.0, is_output=True)
    devices = (Device("fast", "gpu", memory_bytes=100.0), Device("slow"))
    links = tuple(Link(x, y, latency_seconds=0.1) for x, y in (("fast", "slow"), ("slow", "fast")))
    problem = Problem.of_ops(
        builder.build(),
        Cluster(devices, links, host="slow"),
        CostTable(frozen_floats([[1.0, 10.0], [1.0, 3.0]])),
    )
    evaluator = Evaluator(problem, Budget(evaluations=40))
    found = ProblemSpace().place(problem, evaluator, np.random.default_rng(0))
    assert found.value == pytest.approx(1.0 + 0.1 + 3.0)


def test_settings_are_checked() -> None:
    with pytest.raises(InputError, match="problem-space"):
        ProblemSpace(step=0.0)
    with pytest.raises(InputError, match="problem-space"):
        ProblemSpace(children=0)


def test_a_step_above_its_longest_is_refused_and_many_children_share_threads() -> None:
    with pytest.raises(InputError, match=r"step must be in \(0, 1\], got 1000.0"):
        ProblemSpace(step=1000.0)
    problem, made = fan(2), []

    def noted(n_threads: int) -> ThreadPoolExecutor:
        made.append(n_threads)
        return ThreadPoolExecutor(n_threads)

    with mock.patch.object(problem_space, "ThreadPoolExecutor", noted):
        evaluator = Evaluator(problem, Budget(evaluations=8))
        ProblemSpace(children=1000).place(problem, evaluator, np.random.default_rng(0))
    assert made == [64]
