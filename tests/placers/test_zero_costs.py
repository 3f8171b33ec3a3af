"""Problems in which nothing takes time: every placement that fits is worth 0."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright.core.arrays import frozen_floats
from placewright.core.cluster import Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import Subgraph, SubgraphIP
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.placers.learned.hsdag.algorithm import returns_of, rewards_of
from placewright.placers.learned.hsdag.placer import Hsdag
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator
from placewright.testing.problems import random_problem, under_subgraphs

MODELS = ("event", "max-load", "subgraph", "subgraph-ip")
PROVE = ("auto", "cp-sat", "latency-ip", "maxload-ip")
OTHERS = ("greedy", "heft", "m-etf", "local-search", "multilevel", "problem-space", "ideal-dp")


def free_problem(model: str) -> Problem:
    problem = random_problem(
        np.random.default_rng(1),
        n_ops=14,  # more than are enumerated
        objective="throughput" if model == "max-load" else "latency",
        constrained=False,
    )
    if model.startswith("subgraph"):
        problem = under_subgraphs(problem, SubgraphIP() if model == "subgraph-ip" else Subgraph())
    devices = tuple(
        replace(device, dispatch_seconds=0.0, cut_seconds=0.0) for device in problem.cluster.devices
    )
    links = tuple(Link(link.source, link.destination) for link in problem.cluster.links)
    transfers = problem.transfer_seconds
    return replace(
        problem,
        cluster=replace(problem.cluster, devices=devices, links=links),
        costs=CostTable(frozen_floats(np.zeros((problem.graph.n_ops, problem.n_devices)))),
        transfer_seconds=None if transfers is None else frozen_floats(np.zeros(len(transfers))),
    )


@pytest.mark.parametrize("model", MODELS)
def test_every_method_answers(model: str) -> None:
    problem = free_problem(model)
    for name in (*PROVE, *OTHERS):
        placer = make_placer(name)
        if placer.why_not(problem) is not None:
            continue
        evaluator = Evaluator(problem, Budget(evaluations=200))
        found = placer.place(problem, evaluator, np.random.default_rng(0))
        assert found.value == 0.0, name
        if name in PROVE:
            assert (found.status, found.lower_bound) == ("optimal", 0.0), name


def test_rewards_of_hsdag_are_finite_and_equal() -> None:
    problem = free_problem("event")
    placements = np.stack([np.arange(problem.n_units) % 2, np.arange(problem.n_units) // 7])
    rewards = rewards_of(Hsdag(), Evaluator(problem), placements)
    assert np.isfinite(rewards).all()
    assert rewards[0] == rewards[1]
    assert np.isfinite(returns_of(Hsdag(), rewards)).all()
