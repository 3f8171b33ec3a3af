"""The check of timelines takes what is right, and notices what is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from testing.proof_problems import proof_problem

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.testing.checker import check_timeline


def two_hops() -> Problem:
    """A tensor goes from p through the host to q, in no time: both hops are at one instant."""
    builder = GraphBuilder()
    made = builder.add_tensor(builder.add_op("a", "Op"), 1.0)
    builder.add_op("b", "Op", inputs=[made])
    links = tuple(Link(a, b) for one in "pq" for a, b in ((one, "host"), ("host", one)))
    cluster = Cluster((Device("p"), Device("q")), links, "host")
    return Problem.of_ops(builder.build(), cluster, CostTable(frozen_floats(np.ones((2, 2)))))


def test_two_hops_at_one_instant_are_taken() -> None:
    problem, placement = two_hops(), Placement.of([0, 1])
    timeline = Simulator(problem).timeline(placement)
    check_timeline(problem, placement, timeline)
    late = replace(timeline, start=timeline.start - 0.5)
    with pytest.raises(AssertionError, match="unit 1 begins before tensor 0"):
        check_timeline(problem, placement, late)


@pytest.mark.parametrize("seed", [*range(12), 51, 78, 166, 201, 308, 348])
def test_timelines_of_problems_with_all_features_are_taken(seed: int) -> None:
    """Links that do not queue may overlap, and an output may reach the host a second time."""
    problem = proof_problem(seed, "event")
    evaluator = Evaluator(problem, Budget(evaluations=50))
    found = make_placer("local-search").place(problem, evaluator, np.random.default_rng(0))
    if found.placement is not None:
        timeline = Simulator(problem).timeline(found.placement)
        check_timeline(problem, found.placement, timeline)
