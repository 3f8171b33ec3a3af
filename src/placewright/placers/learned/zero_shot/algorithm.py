"""Zero-shot over a family of graphs: samples per graph, advantage against their own mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from placewright.core.arrays import BoolArray, FloatArray
from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.placers.learned.shared.learning_scope import chosen, masked_log_softmax
from placewright.placers.learned.shared.returns import reference_value, relative_times
from placewright.placers.learned.shared.training_episodes import EpisodeResult, Trainee
from placewright.placers.learned.zero_shot.placer import ZeroShot
from placewright.placers.learned.zero_shot.policy import (
    ListProblem,
    ZeroShotPolicy,
    decode,
    policy_inputs,
)
from placewright.placers.shared_weights import with_shared_weights_tied
from placewright.simulation.evaluator import Evaluator


def trainee(settings: ZeroShot, problems: Sequence[Problem]) -> Trainee:
    """A policy for any graphs and devices. Samples faster than their mean become likelier.

    Raises:
        InputError: a problem has another objective than those of `zero-shot`.
    """
    for problem in problems:
        if reason := settings.why_not(problem):
            raise InputError(f"zero-shot cannot train on this problem: {reason}")
    policy = ZeroShotPolicy(settings.hidden)
    # as while placing, units that share a weight are decided together if memory is short
    graphs = [(ListProblem(with_shared_weights_tied(one)), Evaluator(one)) for one in problems]

    def one(graph: int, progress: float, generator: torch.Generator) -> EpisodeResult:
        """Samples of one graph."""
        del progress
        problem, evaluator = graphs[graph]
        rng = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
        steps: list[tuple[FloatArray, BoolArray]] = []
        placements = decode(
            policy,
            problem,
            np.full(settings.samples, 1.0),
            rng,
            seen=lambda pairs, allowed: steps.append((pairs, allowed)),
        )
        values = evaluator.evaluate_many(placements)
        times = relative_times(values, reference_value(problem.problem))
        advantage = (times.mean() - times) / (times.std() + 1e-3 * times.mean())
        embedding = policy.embed(*policy_inputs(problem))[torch.tensor(problem.order)]
        # (steps, k, D, features)
        pairs = torch.tensor(np.stack([of_step for of_step, _ in steps])).float()
        allowed = torch.tensor(np.stack([of_step for _, of_step in steps]))  # (steps, k, D)
        wide = embedding.unsqueeze(1).expand(-1, pairs.shape[1], -1)  # (steps, k, hidden)
        log_p = masked_log_softmax(policy.scores(wide, pairs), allowed)
        actions = torch.tensor(placements[:, problem.order].T.copy())  # (steps, k)
        total = chosen(log_p, actions).sum(dim=0)  # (k,)
        loss = -(torch.tensor(advantage, dtype=torch.float32) * total).mean() / len(actions)
        return EpisodeResult(loss, float(times.mean()))

    return Trainee(
        policy,
        {"hidden": settings.hidden},
        one,
        learning_rate=lambda progress: settings.learning_rate,
        clip_norm=1.0,
    )
