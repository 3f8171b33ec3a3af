"""HSDAG over a family of graphs: one network and vocabulary of kinds, a baseline for each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.placers.learned.hsdag.algorithm import (
    NETWORK_CHOICES,
    HsdagGraph,
    Judge,
    clip_norm_of,
    episode_loss,
    make_policy,
    run_episode,
)
from placewright.placers.learned.hsdag.graph import vocabulary_of
from placewright.placers.learned.hsdag.placer import Hsdag
from placewright.placers.learned.hsdag.settings import HsdagSettings
from placewright.placers.learned.shared.returns import MovingAverage, reference_value
from placewright.placers.learned.shared.training_episodes import EpisodeResult
from placewright.simulation.evaluator import Evaluator


class HsdagTrainee:
    """A trainee of `training_episodes`."""

    def __init__(self, settings: HsdagSettings, problems: Sequence[Problem]) -> None:
        vocabulary = vocabulary_of(*problems)
        self.settings = settings
        self._graphs = [HsdagGraph.of(problem, settings, vocabulary) for problem in problems]
        self._judges = [
            Judge(settings, Evaluator(problem), MovingAverage(settings.baseline_decay))
            for problem in problems
        ]
        n_features = int(self._graphs[0].features.shape[1])
        self.policy = make_policy(settings, n_features, problems[0].n_devices)
        self.clip_norm = clip_norm_of(settings)
        self.metadata: Mapping[str, Any] = {
            "n_devices": problems[0].n_devices,
            "vocabulary": list(vocabulary),
            **{name: getattr(settings, name) for name in NETWORK_CHOICES},
        }

    def learning_rate(self, progress: float) -> float:
        """The constant learning rate."""
        del progress
        return self.settings.learning_rate

    def state(self) -> dict[str, torch.Tensor]:
        """The baseline of each graph, NaN before its first episode, shape (n_graphs,)."""
        values = [judge.baseline.value for judge in self._judges]
        return {
            "baselines": torch.tensor(
                [math.nan if value is None else value for value in values], dtype=torch.float64
            )
        }

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load the tensors of `state`."""
        for judge, value in zip(self._judges, state["baselines"].tolist(), strict=True):
            judge.baseline.value = None if math.isnan(value) else value

    def baseline(self, graph: int) -> MovingAverage:
        """The baseline of a graph."""
        return self._judges[graph].baseline

    def episode(self, graph: int, progress: float, generator: torch.Generator) -> EpisodeResult:
        """One episode of `steps` placements on one graph."""
        del progress
        judge = self._judges[graph]
        steps = run_episode(self.policy, self._graphs[graph], self.settings, generator)
        rewards = judge.rewards(steps.placements)
        loss = episode_loss(self.settings, steps, judge.weights(rewards))
        reference = reference_value(judge.evaluator.problem)
        return EpisodeResult(loss, judge.mean_time(len(rewards)) / reference, len(rewards))


def trainee(settings: Hsdag, problems: Sequence[Problem]) -> HsdagTrainee:
    """A policy for graphs on the same number of devices.

    Raises:
        InputError: the problems differ in their number of devices.
    """
    counts = sorted({problem.n_devices for problem in problems})
    if len(counts) > 1:
        raise InputError(f"hsdag trains for one number of devices, got graphs with {counts}")
    return HsdagTrainee(settings, problems)
