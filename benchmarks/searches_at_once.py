"""Does one search stop another one beside it? Evaluations per second beside `ideal-dp`, and alone.

`python -m benchmarks.searches_at_once`: one thread runs `ideal-dp` on chains whose ideals take it
seconds, another one asks for values. Near 1 where kernels release the lock of the interpreter.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator

ROUNDS, WIDTH, LENGTH = 9, 4, 7


def chains() -> Problem:
    """Chains of ops of random seconds on three devices."""
    builder, last = GraphBuilder(), list[int]()
    for at in range(WIDTH * LENGTH):
        op = builder.add_op(f"op{at}", "Op", inputs=last if at % LENGTH else [])
        last = [builder.add_tensor(op, 1.0)]
    links = tuple(Link(x, y, 0.1, 100.0) for x in "abc" for y in "abc" if x != y)
    seconds = np.random.default_rng(0).integers(1, 100, (WIDTH * LENGTH, 3)).astype(float)
    cluster = Cluster(tuple(map(Device, "abc")), links)
    problem = Problem.of_ops(builder.build(), cluster, CostTable(frozen_floats(seconds)))
    return replace(problem, objective="throughput", execution_model=MaxLoad())


def ratio(problem: Problem) -> float:
    """Evaluations per second until a run of `ideal-dp` ends, over those of a second alone."""
    simulator, placement = Simulator(problem), Placement.on_one_device(problem.n_units, 0)

    def rate(goes_on: Callable[[], bool]) -> float:
        count, began = 0, time.perf_counter()
        while goes_on():
            simulator.value(placement)
            count += 1
        return count / (time.perf_counter() - began)

    asks = (problem, Evaluator(problem), np.random.default_rng(0))
    beside = threading.Thread(target=make_placer("ideal-dp").place, args=asks)
    beside.start()
    slowed, until = rate(beside.is_alive), time.perf_counter() + 1.0
    return slowed / rate(lambda: time.perf_counter() < until)


if __name__ == "__main__":
    found = [ratio(chains()) for _ in range(ROUNDS + 1)][1:]  # the first one compiles
    sys.stdout.write(f"{statistics.median(found):.3f} ({min(found):.3f} to {max(found):.3f})\n")
