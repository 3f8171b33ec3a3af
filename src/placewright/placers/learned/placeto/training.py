"""Placeto over a family of graphs: one policy, a per-step baseline for each graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.placers.learned.placeto.algorithm import (
    AGGREGATORS,
    PlacetoGraph,
    PlacetoPolicy,
    first_placements,
    run_episode,
    update,
)
from placewright.placers.learned.placeto.placer import PlacetoPlacer
from placewright.placers.learned.shared.returns import PerStepAverage
from placewright.placers.learned.shared.training_episodes import EpisodeResult
from placewright.simulation.evaluator import Evaluator


class PlacetoTrainee:
    """A trainee of `training_episodes`."""

    def __init__(self, settings: PlacetoPlacer, problems: Sequence[Problem]) -> None:
        self.settings = settings
        n_devices = problems[0].n_devices
        self.policy = PlacetoPolicy(
            n_devices, settings.rounds, settings.embedding, settings.aggregation
        )
        self.clip_norm = settings.clip_norm
        self.metadata: Mapping[str, Any] = {
            "n_devices": n_devices,
            "embedding": settings.embedding,
            "aggregation": settings.aggregation,
            "rounds": settings.rounds,
            "aggregators": AGGREGATORS,
        }
        spaces = [settings.actions(problem) for problem in problems]
        self._evaluators = [Evaluator(space.problem) for space in spaces]
        self._graphs = [
            PlacetoGraph.of(space, evaluator)
            for space, evaluator in zip(spaces, self._evaluators, strict=True)
        ]
        self._baselines = [PerStepAverage(settings.baseline_window) for _ in problems]

    def learning_rate(self, progress: float) -> float:
        """The learning rate, which falls linearly, as on one problem."""
        return self.settings.learning_rate_at(progress)

    def state(self) -> dict[str, torch.Tensor]:
        """Returns in each graph's baseline, (episodes, steps) each."""
        return {
            f"baseline.{graph}": torch.tensor(baseline.episodes)
            for graph, baseline in enumerate(self._baselines)
        }

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load the tensors of `state`."""
        self._baselines = [PerStepAverage(self.settings.baseline_window) for _ in self._graphs]
        for graph, baseline in enumerate(self._baselines):
            for returns in state[f"baseline.{graph}"].numpy():
                baseline.update(returns)

    def baseline(self, graph: int) -> PerStepAverage:
        """The baseline of a graph."""
        return self._baselines[graph]

    def episode(self, graph: int, progress: float, generator: torch.Generator) -> EpisodeResult:
        """Visit every node of one graph once."""
        evaluator, state = self._evaluators[graph], self._graphs[graph]
        before = evaluator.evaluations
        drawn = int(torch.randint(2**31, (1,), generator=generator))
        rng = np.random.default_rng(drawn if self.settings.initial == "varied" else graph)
        first = first_placements(self.settings, state, rng)
        episode = run_episode(self.policy, state, evaluator, first, generator)
        baseline = self._baselines[graph]
        loss, _ = update(self.settings, self.policy, state, episode, baseline, progress)
        gain = float(episode.rewards.sum(axis=0).mean())
        return EpisodeResult(loss, -gain, evaluator.evaluations - before)


def trainee(settings: PlacetoPlacer, problems: Sequence[Problem]) -> PlacetoTrainee:
    """A policy for graphs on the same number of devices.

    Raises:
        InputError: the problems differ in their number of devices.
    """
    counts = sorted({problem.n_devices for problem in problems})
    if len(counts) > 1:
        raise InputError(f"placeto trains for one number of devices, got graphs with {counts}")
    return PlacetoTrainee(settings, problems)
