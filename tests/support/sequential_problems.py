"""Small problems under `sequential` that are drawn by a number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewright.core.arrays import frozen_floats
from placewright.core.execution_models import Sequential
from placewright.core.problem import Problem
from placewright.testing.problems import random_problem, with_pool


def drawn(seed: int) -> Problem:
    """Pins, classes, support, shared weights, limits, pools, cuts, own transfers, missing links."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, n_ops=5, n_devices=2 + seed % 2)
    if seed % 3 == 0:
        problem = with_pool(problem)
    if seed % 4 == 1:
        own = frozen_floats(rng.integers(0, 5, problem.graph.n_tensors))
        problem = replace(problem, transfer_seconds=own)
    if seed % 5 == 2:  # from d0 to d1 through the host
        links = [x for x in problem.cluster.links if (x.source, x.destination) != ("d0", "d1")]
        problem = replace(problem, cluster=replace(problem.cluster, links=tuple(links)))
    if seed % 2:
        devices = tuple(replace(each, cut_seconds_per_byte=0.5) for each in problem.cluster.devices)
        problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    return replace(problem, execution_model=Sequential(1 + seed % 3))
