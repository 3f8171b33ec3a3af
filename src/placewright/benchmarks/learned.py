"""The problems of the learned benchmark, and what one update of HSDAG costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from placewright.benchmarks.tarnawski import find_workloads
from placewright.core.graph import ComputationGraph
from placewright.core.problem import Objective, Problem
from placewright.profiling.roofline import roofline_problem
from placewright.session.models import load_model

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


@dataclass(frozen=True)
class UpdateTime:
    """Processor time of one update of HSDAG on one graph.

    Attributes:
        graph: name.
        units: of the graph.
        nodes: that its coarsening leaves, which is what the network sees.
        seconds: median of one episode of sampling and its gradient step, simulation included.
    """

    graph: str
    units: int
    nodes: int
    seconds: float


def update_problems(models: Sequence[str], cluster: str) -> dict[str, Problem]:
    """Models with roofline costs on a catalogue cluster; problem files as they are."""
    problems = {}
    for name in models:
        model = load_model(name)
        problems[name] = model.problem or roofline_problem(model.graph, cluster)
    return problems


def hsdag_update_times(problems: Mapping[str, Problem], updates: int = 10) -> Iterator[UpdateTime]:
    """Time single updates of HSDAG `corrected` with its defaults, on one core."""
    import torch

    from placewright.placers.learned.hsdag.coarsening import coarsened
    from placewright.placers.learned.hsdag.placer import Hsdag
    from placewright.placers.learned.hsdag.training import trainee
    from placewright.placers.learned.sampling import torch_scope

    for name, problem in problems.items():
        with torch_scope(np.random.default_rng(0)) as generator:
            learner = trainee(Hsdag(), [problem])
            optimiser = torch.optim.Adam(learner.policy.parameters(), lr=learner.learning_rate(0.0))
            seconds = []
            for _ in range(updates + 1):  # the first one warms up
                start = time.process_time()
                loss = learner.episode(0, 0.0, generator).loss
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                seconds.append(time.process_time() - start)
        choices = Hsdag().choices
        coarse = coarsened(problem, choices.max_nodes, weights_as_nodes=choices.weights_as_nodes)
        yield UpdateTime(name, problem.n_units, coarse.n_nodes, float(np.median(seconds[1:])))
