"""HSDAG over a family of graphs: one network and vocabulary of kinds, a baseline for each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.placers.learned.baselines import MovingAverage
from placewright.placers.learned.features import kind_vocabulary
from placewright.placers.learned.hsdag_learner import (
    NETWORK_SETTINGS,
    HsdagGraph,
    episode_loss,
    latencies,
    make_policy,
    run_episode,
    step_weights,
)
from placewright.placers.learned.returns import reference_value
from placewright.placers.learned.training import EpisodeResult
from placewright.simulation.evaluator import Evaluator

if TYPE_CHECKING:
    from placewright.placers.learned.hsdag import Hsdag


class HsdagTrainee:
    """See `training.Trainee`."""

    def __init__(self, settings: Hsdag, problems: Sequence[Problem]) -> None:
        vocabulary = kind_vocabulary(*problems)
        self.settings = settings
        self._evaluators = [Evaluator(problem) for problem in problems]
        self._graphs = [HsdagGraph.of(problem, settings, vocabulary) for problem in problems]
        self._baselines = [MovingAverage(settings.baseline_decay) for _ in problems]
        self.policy = make_policy(
            settings, int(self._graphs[0].data.x.shape[1]), problems[0].n_devices
        )
        self.clip_norm = math.inf
        self.metadata: Mapping[str, Any] = {
            "n_devices": problems[0].n_devices,
            "vocabulary": list(vocabulary),
            **{name: getattr(settings, name) for name in NETWORK_SETTINGS},
        }

    def learning_rate(self, progress: float) -> float:
        """Constant."""
        del progress
        return self.settings.learning_rate

    def state(self) -> dict[str, torch.Tensor]:
        """The baseline of each graph, NaN before its first episode, shape (n_graphs,)."""
        values = [math.nan if b.value is None else b.value for b in self._baselines]
        return {"baselines": torch.tensor(values, dtype=torch.float64)}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take what `state` gave."""
        for baseline, value in zip(self._baselines, state["baselines"].tolist(), strict=True):
            baseline.value = None if math.isnan(value) else value

    def episode(self, graph: int, progress: float, generator: torch.Generator) -> EpisodeResult:
        """One episode of `steps` placements on one graph."""
        del progress
        evaluator, state = self._evaluators[graph], self._graphs[graph]
        episode = run_episode(self.policy, state, self.settings, generator)
        values = evaluator.evaluate_many(episode.placements)
        reference = reference_value(evaluator.problem)
        latency = latencies(self.settings, values, episode.placements)
        weights = step_weights(self.settings, reference / latency, self._baselines[graph])
        loss = episode_loss(self.settings, episode, weights)
        times = np.minimum(latency / reference, 10.0)
        return EpisodeResult(loss, float(times.mean()), len(values))


def trainee(settings: Hsdag, problems: Sequence[Problem]) -> HsdagTrainee:
    """A policy for graphs on the same number of devices.

    Raises:
        InputError: the problems differ in their number of devices.
    """
    counts = sorted({problem.n_devices for problem in problems})
    if len(counts) > 1:
        raise InputError(f"hsdag trains for one number of devices, got graphs with {counts}")
    return HsdagTrainee(settings, problems)
