"""The policy that ships with `zero-shot`: its training, and its results on unseen models."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks import tables
from benchmarks.command import ResultsIfAny, run, write_results
from placewright.cli import options as opt
from placewright.cli.output import print_json, print_shown, progress
from placewright.cli.overwriting import Writes
from placewright.core.builder import GraphBuilder
from placewright.core.graph import ComputationGraph
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.placers.bases import pass_interrupt_on
from placewright.placers.learned.training import train
from placewright.placers.registry import make_placer
from placewright.profiling.roofline import roofline_problem
from placewright.simulation.evaluator import Evaluator
from placewright.suites.learned import zoo_graph
from placewright.suites.papers.generalisation import FAMILIES, family_graph

TRAINING_MODELS = ("inception_v3", "resnet50", "nasnet_a", "moe")
TRAINING_CLUSTERS = ("cpu+gpu", "2gpu", "4gpu")
RANDOM_CLUSTERS = (*TRAINING_CLUSTERS, "4a100")
RANDOM_GRAPHS = 24
EPISODES = 216  # six rounds over the family's 36 problems
# Whole families of the zoo, recurrent models and plain transformers; then graphs of families that
# were made after all settings had been chosen.
HELD_OUT = ("gnmt", "rnnlm", "bert_base", "gpt2")
GENERATED = tuple(f"{family}-{index}" for family in FAMILIES for index in range(3))
HELD_OUT_CLUSTERS = ("cpu+gpu", "2gpu", "4gpu", "4a100")

Report = Callable[[float, str], None]


def random_layered_graph(rng: np.random.Generator) -> ComputationGraph:
    """A random layered graph of 20 to 120 ops with branches, joins and a few long skips."""
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


def training_family(n_random: int = RANDOM_GRAPHS, seed: int = 0) -> list[Problem]:
    """The training graphs of the shipped policy: zoo models and random layered graphs.

    Recurrent models and plain transformers are held out for testing (`HELD_OUT`).
    """
    graphs = [zoo_graph(model) for model in TRAINING_MODELS]
    problems = [roofline_problem(g, cluster) for g in graphs for cluster in TRAINING_CLUSTERS]
    rng = np.random.default_rng(seed)
    for index in range(n_random):
        cluster = RANDOM_CLUSTERS[index % len(RANDOM_CLUSTERS)]
        problems.append(roofline_problem(random_layered_graph(rng), cluster))
    return problems


def train_shipped_policy(
    output: Path | str, episodes: int = EPISODES, progress: Report | None = None
) -> Path:
    """Train the policy that ships with `zero-shot`; an interrupted training resumes."""
    return train("zero-shot", training_family(), output, episodes=episodes, progress=progress)


@dataclass(frozen=True)
class ZeroShotRow:
    """A policy on an unseen problem; values in the problem's time unit.

    Attributes:
        problem: such as ``"gnmt 2gpu"``.
        value: of the best candidate.
        evaluations: number of candidates.
        greedy: value of the trained policy's greedy placement.
        earliest: value of the schedule by earliest finish, without training.
        local_search: median over the seeds of `local-search` with as many evaluations.
        seconds: processor seconds of making and evaluating the candidates.
    """

    problem: str
    value: float
    evaluations: int
    greedy: float
    earliest: float
    local_search: float
    seconds: float

    @property
    def ratio(self) -> float:
        """Value relative to `local-search`; below 1 is faster."""
        return self.value / self.local_search


def run_zero_shot_benchmark(
    policy: str = "",
    models: Sequence[str] = (*HELD_OUT, *GENERATED),
    clusters: Sequence[str] = HELD_OUT_CLUSTERS,
    seeds: int = 5,
) -> Iterator[ZeroShotRow]:
    """Evaluate a policy's candidates on unseen models beside `local-search`.

    Args:
        policy: policy file; "" is the shipped policy.
        models: zoo names or generated graphs such as ``"ptb-0"``.
        clusters: of the catalogue.
        seeds: runs of `local-search`.
    """
    for model in models:
        graph = _unseen_graph(model)
        for cluster in clusters:
            yield _row(f"{model} {cluster}", roofline_problem(graph, cluster), policy, seeds)


def zero_shot_document(rows: Sequence[ZeroShotRow]) -> str:
    """Rows as a JSON document."""
    entries = [{**asdict(row), "ratio": row.ratio} for row in rows]
    return json.dumps({"format": "placewright.zero-shot/1", "rows": entries}, indent=1) + "\n"


def _unseen_graph(name: str) -> ComputationGraph:
    family, _, index = name.partition("-")
    return family_graph(family, int(index)) if family in FAMILIES else zoo_graph(name)


def _row(name: str, problem: Problem, policy: str, seeds: int) -> ZeroShotRow:
    from placewright.placers.learned.zero_shot.placer import ZeroShot
    from placewright.placers.learned.zero_shot.policy import (
        candidate_placements,
        one_device_placements,
    )

    settings, evaluator = ZeroShot(policy=policy), Evaluator(problem)
    start = time.process_time()
    # As `ZeroShot.place` evaluates them: single devices first, then earliest finish, then greedy.
    candidates = candidate_placements(
        problem, policy, settings.candidates, settings.temperature, np.random.default_rng(0)
    )
    values = [evaluator.evaluate(device_of) for device_of in candidates]
    seconds = time.process_time() - start
    single = len(one_device_placements(problem)[: settings.candidates - 2])
    return ZeroShotRow(
        name,
        min(values),
        len(values),
        values[single + 1],
        values[single],
        local_search(problem, len(values), seeds),
        seconds,
    )


def local_search(problem: Problem, evaluations: int, seeds: int) -> float:
    """Median over seeds of the best value of `local-search`."""
    found = []
    for seed in range(seeds):
        evaluator = Evaluator(problem, Budget(evaluations=evaluations))
        search = make_placer("local-search").place(problem, evaluator, np.random.default_rng(seed))
        found.append(pass_interrupt_on(search).value)
    return statistics.median(found)


def zero_shot(
    policy: Annotated[
        str, typer.Option("--policy", help="Policy file; the shipped policy without.")
    ] = "",
    retrain: Annotated[
        Path | None,
        typer.Option(
            "--retrain", help="First train the shipped policy again and write it to this file."
        ),
        Writes(),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of local-search.")] = 5,
    results: ResultsIfAny = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Ten evaluations of the shipped policy on unseen models, beside as many of local search."""

    with progress("zero-shot", hidden=quiet or as_json) as report:
        if retrain is not None:
            policy = str(train_shipped_policy(retrain, progress=report))
    rows = list(run_zero_shot_benchmark(policy, seeds=seeds))
    write_results(results, zero_shot_document(rows))
    if as_json:
        print_json([{**asdict(row), "ratio": row.ratio} for row in rows])
        return
    print_shown(tables.zero_shot_table(rows))


if __name__ == "__main__":
    run(zero_shot)
