"""Processor time of one update of HSDAG."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import typer

from benchmarks import tables
from benchmarks.command import run
from placewright.cli import options as opt
from placewright.cli.output import print_json, print_shown
from placewright.core.problem import Problem
from placewright.profiling.roofline import roofline_problem
from placewright.session.models import load_model


@dataclass(frozen=True)
class UpdateTime:
    """Processor time of one update of HSDAG on one graph.

    Attributes:
        graph: name.
        units: number of units.
        nodes: number of nodes after coarsening, the input of the network.
        seconds: median of one episode of sampling with its gradient step and simulations.
    """

    graph: str
    units: int
    nodes: int
    seconds: float


def update_problems(models: Sequence[str], cluster: str) -> dict[str, Problem]:
    """Problems of models with roofline costs on a catalogue cluster, and of problem files."""
    problems = {}
    for name in models:
        model = load_model(name)
        problems[name] = model.problem or roofline_problem(model.graph, cluster)
    return problems


def hsdag_update_times(problems: Mapping[str, Problem], updates: int = 10) -> Iterator[UpdateTime]:
    """Time single updates of HSDAG `corrected` with its defaults, on one core."""
    import torch

    from placewright.placers.learned.hsdag.algorithm import trainee
    from placewright.placers.learned.hsdag.graph import coarsened
    from placewright.placers.learned.hsdag.placer import HsdagCorrected
    from placewright.placers.learned.shared.learning_scope import torch_scope

    for name, problem in problems.items():
        with torch_scope(np.random.default_rng(0)) as generator:
            learner = trainee(HsdagCorrected(), [problem])
            optimiser = torch.optim.Adam(learner.policy.parameters(), lr=learner.learning_rate(0.0))
            seconds = []
            for _ in range(updates + 1):  # the first one warms up
                start = time.process_time()
                loss = learner.episode(0, 0.0, generator).loss
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                seconds.append(time.process_time() - start)
        settings = HsdagCorrected()
        coarse = coarsened(problem, settings.max_nodes, weights_as_nodes=settings.weights_as_nodes)
        yield UpdateTime(name, problem.n_units, coarse.n_nodes, float(np.median(seconds[1:])))


def hsdag_update(
    models: Annotated[
        str, typer.Option(help="Comma-separated models or problem files.")
    ] = "zoo:inception_v3,zoo:bert_base,zoo:rnnlm,zoo:gnmt",
    cluster: Annotated[str, typer.Option(help="Cluster of the catalogue.")] = "2gpu",
    updates: Annotated[int, typer.Option(help="Updates that are timed.")] = 10,
    as_json: opt.Json = False,
) -> None:
    """Time an update of HSDAG (20 placements and a gradient step) on one core."""
    from placewright.session.parsing import parse_names

    rows = list(hsdag_update_times(update_problems(parse_names(models), cluster), updates))
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_shown(tables.update_table(rows))


if __name__ == "__main__":
    run(hsdag_update)
