"""Searches on workers, and a problem for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from placewright.core.problem import Objective, Problem
from placewright.core.solution import Budget
from placewright.placers.portfolio.auto import Auto
from placewright.placers.portfolio.schedule import PortfolioMembers
from placewright.session.hosts import SpreadAuto
from placewright.session.search import search
from placewright.testing.problems import random_problem
from placewright.workers.interface import Workers


def problem_of(n_ops: int = 14, objective: Objective = "latency") -> Problem:
    rng = np.random.default_rng(5)
    return random_problem(rng, n_ops=n_ops, n_devices=3, objective=objective)


class Searches(Auto):
    """No proof closes the gap, so that all rounds take place."""

    def members(self, problem: Problem) -> PortfolioMembers:
        quick = (("single", 0.1), ("heft", 0.1), ("m-topo", 0.1))
        return replace(super().members(problem), quick=quick, steps=())


def found_by(
    workers: Workers | None,
    problem: Problem,
    evaluations: int,
    auto: Auto | None = None,
    seed: int = 3,
) -> list[Any]:
    """All of an answer but its seconds."""
    by = auto or Searches(gap=0.0)
    placer = by if workers is None else SpreadAuto(by, workers)
    found = search(problem, placer, Budget(evaluations=evaluations), seed=seed)
    assert found.evaluations <= evaluations
    placement = found.placement
    return [
        found.value.hex(),
        found.lower_bound.hex(),
        found.status,
        found.stop,
        found.message,
        found.bound_method,
        found.evaluations,
        None if placement is None else placement.device_of.tolist(),
        None if placement is None or placement.order is None else placement.order.tolist(),
        [(point.evaluations, point.value, point.lower_bound) for point in found.history],
    ]
