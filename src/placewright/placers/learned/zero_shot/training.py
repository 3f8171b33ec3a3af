"""Zero-shot over a family of graphs: samples per graph, advantage against their own mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from placewright.core.problem import Problem
from placewright.placers.learned.shared.returns import reference_value, relative_times
from placewright.placers.learned.shared.sampling import chosen, masked_log_softmax
from placewright.placers.learned.shared.training_episodes import EpisodeResult
from placewright.placers.learned.zero_shot.list_state import ListProblem
from placewright.placers.learned.zero_shot.placer import ZeroShot
from placewright.placers.learned.zero_shot.policy import ZeroShotPolicy, decode, policy_inputs
from placewright.simulation.evaluator import Evaluator


class ZeroShotTrainee:
    """A trainee of `training_episodes`."""

    def __init__(self, settings: ZeroShot, problems: Sequence[Problem]) -> None:
        self.settings = settings
        self.policy = ZeroShotPolicy(settings.hidden)
        self.clip_norm = 1.0
        self.metadata: Mapping[str, Any] = {"hidden": settings.hidden}
        self._problems = [ListProblem(problem) for problem in problems]
        self._evaluators = [Evaluator(problem) for problem in problems]

    def learning_rate(self, progress: float) -> float:
        """The constant learning rate."""
        del progress
        return self.settings.learning_rate

    def state(self) -> dict[str, torch.Tensor]:
        """Empty: advantages are relative to the episode's own mean."""
        return {}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Do nothing, since `state` is empty."""

    def baseline(self, graph: int) -> None:
        """None: there are no baselines."""

    def episode(self, graph: int, progress: float, generator: torch.Generator) -> EpisodeResult:
        """Samples of one graph; those faster than their mean become likelier."""
        del progress
        problem, evaluator = self._problems[graph], self._evaluators[graph]
        rng = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
        temperatures = np.full(self.settings.samples, 1.0)
        decoded = decode(self.policy, problem, temperatures, rng)
        values = evaluator.evaluate_many(decoded.placements)
        times = relative_times(values, reference_value(problem.problem))
        advantage = (times.mean() - times) / (times.std() + 1e-3 * times.mean())
        embedding = self.policy.embed(*policy_inputs(problem))[torch.tensor(decoded.order)]
        pairs = torch.tensor(decoded.pairs).float()  # (steps, k, D, features)
        wide = embedding.unsqueeze(1).expand(-1, pairs.shape[1], -1)  # (steps, k, hidden)
        scores = self.policy.scores(wide, pairs)
        log_p = masked_log_softmax(scores, torch.tensor(decoded.allowed))
        actions = torch.tensor(decoded.placements[:, decoded.order].T.copy())  # (steps, k)
        total = chosen(log_p, actions).sum(dim=0)  # (k,)
        loss = -(torch.tensor(advantage, dtype=torch.float32) * total).mean() / len(actions)
        return EpisodeResult(loss, float(times.mean()), len(values))


def trainee(settings: ZeroShot, problems: Sequence[Problem]) -> ZeroShotTrainee:
    """A policy for any graphs and devices."""
    return ZeroShotTrainee(settings, problems)
