"""The problems of the learned benchmark, and what one update of HSDAG costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from placewright.core.graph import ComputationGraph
from placewright.core.problem import Objective, Problem
from placewright.profiling.roofline import roofline_problem
from placewright.session.models import load_model
from placewright.suites.tarnawski import find_workloads

MODELS = ("inception_v3", "resnet50", "bert_base", "gnmt", "rnnlm")
CLUSTERS = ("2gpu", "4gpu", "8gpu", "cpu+gpu")


@dataclass(frozen=True)
class Case:
    """One problem of the benchmark, made when it is its turn.

    Attributes:
        name: such as ``"gnmt 2gpu"``.
        build: makes the problem.
    """

    name: str
    build: Callable[[], Problem]


def zoo_cases(
    models: Sequence[str] = MODELS,
    clusters: Sequence[str] = CLUSTERS,
    objective: Objective = "latency",
) -> list[Case]:
    """Every zoo model on every catalogue cluster, all models on the first cluster first.

    Args:
        models, clusters: names.
        objective: `training` places whole training steps, as PyTorch captures them.
    """
    what = " training" if objective == "training" else ""

    def case(model: str, cluster: str) -> Case:
        def build() -> Problem:
            return roofline_problem(zoo_graph(model, objective), cluster, objective)

        return Case(f"{model}{what} {cluster}", build)

    return [case(model, cluster) for cluster in clusters for model in models]


def workload_cases(data: Path | str) -> list[Case]:
    """The latency workloads of Tarnawski et al. 2020, found under `data`.

    Raises:
        InputError: there are none.
    """

    def case(name: str, path: Path) -> Case:
        def build() -> Problem:
            problem = load_model(str(path), objective="latency").problem
            assert problem is not None  # a workload carries its costs
            return problem

        return Case(name, build)

    return [case(name, path) for name, path in find_workloads(data, ["latency/"]).items()]


def zoo_graph(model: str, objective: Objective = "latency") -> ComputationGraph:
    """The graph of a zoo model as OpenVINO sees it, or of its training step as PyTorch does."""
    return load_model(f"zoo:{model}", objective=objective).graph
