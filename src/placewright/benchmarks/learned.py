"""The learned placers side by side: every model, every number of devices, one budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from placewright.benchmarks.comparison import compare
from placewright.benchmarks.learned_report import ProblemTable, result_name, write_report
from placewright.benchmarks.tarnawski import find_workloads
from placewright.core.graph import ComputationGraph
from placewright.core.problem import Objective, Problem
from placewright.core.solution import Budget
from placewright.profiling.roofline import roofline_problem
from placewright.workflow.models import load_model

LEARNED_PLACERS = (
    "seq2seq",
    "grouper-placer",
    "hierarchical",
    "placeto",
    "post",
    "hsdag",
    "cem",
    "local-search",
    "random",
)
MODELS = ("inception_v3", "resnet50", "bert_base", "gnmt", "rnnlm")
CLUSTERS = ("2gpu", "4gpu", "8gpu", "cpu+gpu")

Report = Callable[[float, str], None]


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
            return roofline_problem(graph_of(model, objective), cluster, objective)

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


def graph_of(model: str, objective: Objective = "latency") -> ComputationGraph:
    """The graph of a zoo model as OpenVINO sees it, or of its training step as PyTorch does."""
    return load_model(f"zoo:{model}", objective=objective).graph


def run_learned_benchmark(
    cases: Sequence[Case],
    placers: Sequence[str] = LEARNED_PLACERS,
    evaluations: int = 500,
    seeds: int = 5,
    results: str | Path | None = None,
    progress: Report | None = None,
) -> list[ProblemTable]:
    """All placers on all problems under one evaluator and one number of evaluations.

    Args:
        cases: the problems.
        placers: registry names.
        evaluations: of every run; all queries count.
        seeds: runs per placer.
        results: folder with one results file per problem, and with the report
            ``learned-EVALUATIONS.md`` over all of them, written anew after every problem. Runs
            that the files hold are not repeated, so an interrupted benchmark goes on.
        progress: told the fraction done and what is running.

    Returns:
        One table per problem, in the order of `cases`.

    Raises:
        InputError: a placer does not support a problem, or a results file belongs to another one.
    """
    folder = None if results is None else Path(results)
    tables = []
    for index, case in enumerate(cases):

        def within(fraction: float, what: str, index: int = index, case: Case = case) -> None:
            if progress is not None:
                progress((index + fraction) / len(cases), f"{case.name}: {what}")

        path = None if folder is None else folder / result_name(case.name, evaluations)
        budget = Budget(evaluations=evaluations)
        problem = case.build()
        table = compare(problem, placers, seeds, budget, progress=within, results_path=path)
        tables.append(ProblemTable(case.name, table))
        if folder is not None:
            write_report(folder, evaluations)
    return tables


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

    from placewright.placers.learned.hsdag import Hsdag
    from placewright.placers.learned.hsdag_learner import coarsened
    from placewright.placers.learned.hsdag_training import trainee
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
        nodes = coarsened(problem, Hsdag().max_nodes).n_groups
        yield UpdateTime(name, problem.n_units, nodes, float(np.median(seconds[1:])))
