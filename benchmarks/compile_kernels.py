"""Compile kernels, so that the demo, tests and first commands find them.

python -m benchmarks.compile_kernels
"""

from __future__ import annotations

import itertools
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import numpy as np

from placewright.core.execution_models import Event, ExecutionModel, MaxLoad, Sequential, Subgraph
from placewright.core.problem import Objective, Problem
from placewright.core.solution import Budget
from placewright.placers.portfolio.kernels import make_ready
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator
from placewright.testing.problems import random_problem, under_subgraphs

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
    """Place the first small problem that a method takes; under throughput, play its stream."""
    placer = make_placer(name)
    problems = (_small_problem(seed, objective, model) for seed in itertools.count())
    problem = next(problem for problem in problems if placer.why_not(problem) is None)
    evaluator = Evaluator(problem, Budget(evaluations=100))
    solution = placer.place(problem, evaluator, np.random.default_rng(0))
    assert solution.placement is not None
    if objective == "throughput":
        evaluator.simulator.stream(solution.placement, samples=10)


def _small_problem(seed: int, objective: Objective, model: ExecutionModel) -> Problem:
    random = np.random.default_rng(seed)
    problem = random_problem(random, n_ops=6, objective=objective, constrained=False)
    if isinstance(model, Subgraph):
        return under_subgraphs(problem, model)
    return replace(problem, execution_model=model)


if __name__ == "__main__":
    main()
