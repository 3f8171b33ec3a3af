"""Entropy of Placeto's policy before it learns, with sums and with means of messages.

``python -m benchmarks.untrained_placeto docs/results/placeto-untrained.json`` takes the graphs of
`bench learned` on `2gpu` with ten seeds each. It writes the mean entropy of the first policy over
the nodes of an episode, relative to the largest possible, and the largest logit. A policy with low
entropy explores nothing.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from placewright.core.problem import Problem
from placewright.files.results import write_rows
from placewright.placers.learned.placeto.algorithm import PlacetoGraph, PlacetoPolicy
from placewright.placers.learned.placeto.placer import PlacetoPlacer
from placewright.placers.learned.shared.learning_scope import entropy, masked_log_softmax
from placewright.simulation.evaluator import Evaluator
from placewright.suites.learned import zoo_cases

MODELS = ("inception_v3", "resnet50", "bert_base", "gnmt", "rnnlm")
EVERY = 4  # nodes, of which one is looked at


@dataclass(frozen=True)
class Untrained:
    """First policies on one problem.

    Attributes:
        problem: its name.
        aggregation: sum or mean.
        groups: number of placed groups.
        entropies: of each seed, ascending: mean over nodes, divided by ln(devices).
        largest_logit: largest logit of a node, median over nodes and seeds.
    """

    problem: str
    aggregation: str
    groups: int
    entropies: list[float]
    largest_logit: float


def main() -> None:
    """Write a row for each problem and aggregation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--seeds", type=int, default=10)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for objective in ("latency", "training"):
        for case in zoo_cases(asked.models, ["2gpu"], objective):
            problem = case.build()
            for aggregation in ("sum", "mean"):
                rows.append(row_of(case.name, problem, aggregation, asked.seeds))
                sys.stdout.write(f"{rows[-1]}\n")
                sys.stdout.flush()
            write_rows(asked.results, "placewright.untrained-placeto/1", rows)


def row_of(name: str, problem: Problem, aggregation: str, seeds: int) -> Untrained:
    """Entropies by seed, divided by ln(devices), and the median of the largest logits."""
    placer = PlacetoPlacer(aggregation=aggregation)
    graph = PlacetoGraph.of(placer.actions(problem), Evaluator(problem))
    found = [_of_seed(placer, graph, seed) for seed in range(seeds)]
    entropies = sorted(round(spread, 4) for spread, _ in found)
    largest = round(float(np.median([largest for _, largest in found])), 4)
    return Untrained(name, aggregation, graph.space.n_groups, entropies, largest)


@torch.no_grad()
def _of_seed(placer: PlacetoPlacer, graph: PlacetoGraph, seed: int) -> tuple[float, float]:
    torch.manual_seed(seed)
    n, n_devices = graph.space.allowed.shape
    policy = PlacetoPolicy(n_devices, **placer.network)
    devices = graph.space.draw(1, np.random.default_rng(seed))[0]
    spreads, largest = [], []
    for node in range(0, n, EVERY):
        state = torch.tensor(graph.features(devices, node))
        logits = policy(graph, state[None], torch.tensor(graph.decided[[node]]))
        log_p = masked_log_softmax(logits, torch.tensor(graph.space.allowed[node]))
        spreads.append(entropy(log_p).item() / np.log(n_devices))
        largest.append(float(logits.abs().max()))
    return float(np.mean(spreads)), float(np.median(largest))


if __name__ == "__main__":
    main()
