"""Compile kernels, so that the demo, tests and first commands find them.

python -m benchmarks.compile_kernels
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import numpy as np

from placewright.core.execution_models import Event, ExecutionModel, MaxLoad, Sequential, Subgraph
from placewright.core.problem import Objective
from placewright.core.solution import Budget
from placewright.placers.portfolio.kernels import make_ready
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator
from placewright.testing.problems import random_problem

# What `auto` runs. The first has more kernels than the others together.
PORTFOLIOS: tuple[tuple[Objective, ExecutionModel], ...] = (
    ("latency", Event()), ("throughput", MaxLoad()), ("latency", Sequential()),
)  # fmt: skip
# Methods with kernels of their own.
OTHERS: tuple[tuple[str, Objective, ExecutionModel], ...] = (
    ("ideal-dp", "throughput", MaxLoad(0)),
    ("pipedream", "throughput", MaxLoad(0)),
    ("maxload-ip", "throughput", MaxLoad(0)),
    ("latency-ip", "latency", Subgraph()),
)


def main() -> None:
    """Run placers on small problems; the compiled code stays in the cache."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        tasks = [pool.submit(make_ready, *portfolio) for portfolio in PORTFOLIOS]
        tasks += [pool.submit(run_small, *other) for other in OTHERS]
        for task in tasks:
            task.result()


def run_small(name: str, objective: Objective, model: ExecutionModel) -> None:
    """Place a small problem; under throughput, play the stream of its placement."""
    random = np.random.default_rng(0)
    made = random_problem(random, n_ops=6, objective=objective, constrained=False)
    problem = replace(made, execution_model=model)
    evaluator = Evaluator(problem, Budget(evaluations=100))
    solution = make_placer(name).place(problem, evaluator, random)
    assert solution.placement is not None
    if objective == "throughput":
        evaluator.simulator.stream(solution.placement, samples=10)


if __name__ == "__main__":
    main()
