"""The problems of the suite, in a fixed order; rows of results refer to their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from placewright.core.problem import Objective, Problem
from placewright.errors import UnknownNameError
from placewright.files.tarnawski import read_workload
from placewright.suites.learned import zoo_cases
from placewright.suites.random_graphs import (
    random_layered_problem,
    random_series_parallel_problem,
)
from placewright.suites.tarnawski import find_workloads

SUITE_VERSION = 1  # increases if a problem changes: rows of other versions are repeated
MODELS = ("inception_v3", "resnet50", "bert_base", "gpt2", "moe", "nasnet_a", "rnnlm", "gnmt")
CLUSTERS = ("2gpu", "4gpu", "8gpu", "cpu+gpu")
SIZES = ((1_000, 4), (10_000, 8), (100_000, 16), (1_000_000, 64))  # ops, devices

# Of `bench auto`: all kinds and sizes that have an answer within 20 s from every method.
OF_AUTO = (
    "inception_v3 2gpu",
    "inception_v3 cpu+gpu",
    "resnet50 2gpu",
    "resnet50 4gpu",
    "bert_base 2gpu",
    "bert_base cpu+gpu",
    "gpt2 2gpu",
    "gpt2 8gpu",
    "moe 2gpu",
    "moe cpu+gpu",
    "nasnet_a 2gpu",
    "nasnet_a 4gpu",
    "rnnlm 2gpu",
    "rnnlm 4gpu",
    "gnmt 2gpu",
    "gnmt 8gpu",
    "resnet50 training 2gpu",
    "rnnlm training 4gpu",
    "gnmt training 8gpu",
    "layered 1000 x 4",
    "layered 10000 x 8",
    "layered 100000 x 16",
    "series-parallel 1000 x 4",
    "series-parallel 10000 x 8",
)


@dataclass(frozen=True)
class SuiteProblem:
    """One problem, built on demand."""

    name: str  # such as ``"gnmt training 8gpu"``
    kind: str  # ``"zoo"``, ``"training"``, ``"layered"``, ``"series-parallel"`` or ``"tarnawski"``
    build: Callable[[], Problem]  # makes the problem, the same one every time


def suite_problems(data: Path | str | None = None) -> list[SuiteProblem]:
    """All problems, in the order in which they are run.

    Args:
        data: folder with the workloads of Tarnawski et al. 2020; None leaves them out.

    Raises:
        InputError: the folder holds no workloads.
    """
    problems = [
        SuiteProblem(case.name, kind, case.build)
        for objective, kind in (("latency", "zoo"), ("training", "training"))
        for case in zoo_cases(MODELS, CLUSTERS, _objective(objective))
    ]
    for kind, make in (
        ("layered", random_layered_problem),
        ("series-parallel", random_series_parallel_problem),
    ):
        problems += [_random(kind, make, n_ops, n_devices) for n_ops, n_devices in SIZES]
    if data is not None:
        problems += [_workload(name, path) for name, path in find_workloads(data).items()]
    return problems


def chosen_problems(problems: Sequence[SuiteProblem], parts: Sequence[str]) -> list[SuiteProblem]:
    """Problems named by one of `parts`, or with a part in their name if no name is equal.

    Raises:
        UnknownNameError: a part is in no name.
    """
    wanted: dict[str, SuiteProblem] = {}
    for part in parts:
        matches = [problem for problem in problems if problem.name == part]
        matches = matches or [problem for problem in problems if part in problem.name]
        if not matches:
            raise UnknownNameError("problem", part, [problem.name for problem in problems])
        wanted |= {problem.name: problem for problem in matches}
    return [p for p in problems if p.name in wanted] if parts else list(problems)


def _random(
    kind: str, make: Callable[[np.random.Generator, int, int], Problem], n_ops: int, n_devices: int
) -> SuiteProblem:
    def build() -> Problem:
        return make(np.random.default_rng(0), n_ops, n_devices)

    return SuiteProblem(f"{kind} {n_ops} x {n_devices}", kind, build)


def _workload(name: str, path: Path) -> SuiteProblem:
    def build() -> Problem:
        is_throughput = name.startswith("throughput")
        return read_workload(path, objective="throughput" if is_throughput else "latency")

    return SuiteProblem(f"tarnawski {name}", "tarnawski", build)


def _objective(name: str) -> Objective:
    return "training" if name == "training" else "latency"
