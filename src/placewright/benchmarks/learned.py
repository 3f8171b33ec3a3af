"""The learned placers side by side, and the family of graphs that the shipped policy learned on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from placewright.benchmarks.comparison import compare
from placewright.core.builder import GraphBuilder
from placewright.core.graph import ComputationGraph
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.placers.learned.training import train
from placewright.profiling.roofline import roofline_problem

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
CLUSTERS = ("cpu+gpu", "2gpu", "4gpu", "8gpu")
TRAINING_MODELS = ("inception_v3", "resnet50", "rnnlm", "gpt2", "moe")
TRAINING_CLUSTERS = ("cpu+gpu", "2gpu", "4gpu")

Report = Callable[[float, str], None]


def run_learned_benchmark(
    problems: Mapping[str, Problem],
    placers: Sequence[str] = LEARNED_PLACERS,
    evaluations: int = 500,
    seeds: int = 5,
    results_path: str | Path | None = None,
    progress: Report | None = None,
) -> list[dict[str, Any]]:
    """All placers on all problems under one evaluator and one number of evaluations.

    Args:
        problems: name -> problem.
        placers: registry names.
        evaluations: of every run; all queries count.
        seeds: runs per placer.
        results_path: folder for one results file per problem; an interrupted benchmark goes on
            from there.
        progress: told the fraction done and what is running.

    Returns:
        One row per problem and placer: median, range, distance to the best known, evaluations to
        within 2 % of it, processor seconds.
    """
    rows: list[dict[str, Any]] = []
    for index, (name, problem) in enumerate(problems.items()):
        path = None if results_path is None else Path(results_path) / result_name(name, evaluations)

        def within(fraction: float, what: str, index: int = index, name: str = name) -> None:
            if progress is not None:
                progress((index + fraction) / len(problems), f"{name}: {what}")

        table = compare(
            problem,
            placers,
            seeds,
            Budget(evaluations=evaluations),
            progress=within,
            results_path=path,
        )
        rows += [{"problem": name, **asdict(row)} for row in table.rows]
    return rows


def result_name(problem: str, evaluations: int) -> str:
    """File name of one problem's results."""
    return f"learned-{problem.replace(' ', '-')}-{evaluations}.json"


def catalogue_problems(
    graphs: Mapping[str, ComputationGraph], clusters: Sequence[str] = CLUSTERS
) -> dict[str, Problem]:
    """Every graph on every catalogue cluster, with roofline costs; names are "MODEL CLUSTER"."""
    return {
        f"{name} {cluster}": roofline_problem(graph, cluster)
        for name, graph in graphs.items()
        for cluster in clusters
    }


def random_layered_graph(rng: np.random.Generator) -> ComputationGraph:
    """A random graph of 20 to 120 ops in layers: branches, joins and a few long skips."""
    builder = GraphBuilder()
    width, depth = int(rng.integers(1, 9)), int(rng.integers(10, 21))
    heavy = 10.0 ** rng.uniform(7, 10)
    size = float(10.0 ** rng.uniform(4, 7))
    before = [builder.add_input(size)]
    older = list(before)
    for layer in range(depth):
        now = []
        for branch in range(int(rng.integers(1, width + 1))):
            count = min(len(before), int(rng.integers(1, 4)))
            inputs = [before[i] for i in rng.choice(len(before), count, replace=False)]
            if rng.random() < 0.1:
                inputs.append(older[int(rng.integers(len(older)))])
            kind = "MatMul" if rng.random() < 0.6 else "Add"
            flops = heavy * rng.lognormal(0.0, 1.0) * (1.0 if kind == "MatMul" else 0.01)
            weights = [builder.add_weight(size)] if kind == "MatMul" else []
            op = builder.add_op(
                f"{kind}{layer}_{branch}", kind, inputs=inputs, flops=flops, weights=weights
            )
            last = layer == depth - 1
            now.append(
                builder.add_tensor(op, size * rng.lognormal(0.0, 0.5), dtype="f32", is_output=last)
            )
        older += now
        before = now
    return builder.build()


def training_family(
    graphs: Mapping[str, ComputationGraph], n_random: int = 24, seed: int = 0
) -> list[Problem]:
    """Zoo graphs on catalogue clusters and random layered graphs, as the shipped policy saw them.

    Never `gnmt`, `nasnet_a` or `bert_base`, which are kept to test it.
    """
    rng = np.random.default_rng(seed)
    known = {name: graph for name, graph in graphs.items() if name in TRAINING_MODELS}
    problems = list(catalogue_problems(known, TRAINING_CLUSTERS).values())
    for index in range(n_random):
        cluster = (*TRAINING_CLUSTERS, "4a100")[index % 4]
        problems.append(roofline_problem(random_layered_graph(rng), cluster))
    return problems


def train_shipped_policy(
    graphs: Mapping[str, ComputationGraph],
    output: str | Path,
    episodes: int = 600,
    progress: Report | None = None,
) -> Path:
    """Make the policy that is shipped with `zero-shot`, from the graphs of the zoo."""
    return train("zero-shot", training_family(graphs), output, episodes=episodes, progress=progress)
