"""Seq2seq: group features, network and REINFORCE (see `placer.Seq2Seq`)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from placewright.placers.baselines.simple import evaluate_homogeneous
from placewright.placers.learned.seq2seq.placer import Seq2Seq
from placewright.placers.learned.shared.encoders import AttentionalDecoder, Logits
from placewright.placers.learned.shared.group_inputs import (
    group_adjacency,
    kind_counts,
    kind_vocabulary,
    output_shapes,
)
from placewright.placers.learned.shared.learning_scope import (
    as_array,
    descend,
    learning_scope,
)
from placewright.placers.learned.shared.returns import (
    FAILING_TIMES,
    MovingAverage,
    negative_root,
    reference_value,
    relative_times,
)
from placewright.placers.learned.shared.searching import EarlyStop
from placewright.placers.legal import ActionSpace
from placewright.simulation.evaluator import Evaluator

WARM_UP_FACTOR = 5.0  # on the temperature, in the first updates


class Seq2SeqPolicy(nn.Module):
    """Kind embedding ++ output shapes ++ adjacency -> attentional decoder."""

    def __init__(self, space: ActionSpace, settings: Seq2Seq) -> None:
        super().__init__()
        problem, grouping = space.problem, space.grouping
        vocabulary = kind_vocabulary(problem)
        adjacency = group_adjacency(problem, grouping)
        rows = np.concatenate(
            [
                output_shapes(problem, grouping),
                np.minimum(adjacency, 1.0),  # groups that read this one
                np.minimum(adjacency.T, 1.0),  # groups that this one reads
            ],
            axis=1,
        )
        self.counts: Tensor
        self.rows: Tensor
        self.register_buffer(
            "counts", torch.tensor(kind_counts(problem, grouping, vocabulary)).float()
        )
        self.register_buffer("rows", torch.tensor(rows).float())
        self.kinds = nn.Linear(len(vocabulary), settings.embedding, bias=False)
        width = settings.embedding + rows.shape[1]
        hidden = settings.hidden or 5 * width
        self.decoder = AttentionalDecoder(width, problem.n_devices, hidden, cell=settings.cell)

    def groups(self) -> Tensor:
        """Encoder inputs of all groups, shape (1, groups, inputs)."""
        return torch.cat([self.kinds(self.counts), self.rows], dim=-1).unsqueeze(0)


def learn(
    settings: Seq2Seq, space: ActionSpace, evaluator: Evaluator, rng: np.random.Generator
) -> Seq2SeqPolicy:
    """Learn on one problem until the budget is spent (`BudgetSpent`) or `patience` runs out."""
    reference, allowed = reference_value(space.problem), torch.tensor(space.allowed)
    baseline, stop = MovingAverage(settings.baseline_decay), EarlyStop(settings.patience)
    if settings.homogeneous_starts:
        evaluate_homogeneous(space.problem, evaluator)
    with learning_scope(settings.tensorboard, evaluator, rng) as (generator, report):
        policy = Seq2SeqPolicy(space, settings)
        optimiser = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
        update = 0
        while not stop(evaluator.best_value, evaluator.evaluations):
            # 1. Draw placements and time them.
            logits = logits_of(settings, update)
            encoded = policy.decoder.encode(policy.groups())
            n = settings.samples_per_update
            actions = policy.decoder.draw(encoded, allowed, n, logits, generator)
            values = evaluator.sample_many(space.expand(as_array(actions)))
            times = relative_times(values, reference)
            # 2. Compare the samples to learn from with the moving baseline.
            teaching = np.arange(len(times))
            update += 1
            if update > settings.feasible_only_after:
                teaching = np.flatnonzero(times < FAILING_TIMES)
            if len(teaching) == 0:
                continue
            rewards = negative_root(times[teaching])
            advantage = baseline.advantage(rewards) if settings.baseline else rewards
            baseline.update(rewards)
            # 3. REINFORCE with an entropy bonus.
            kept = actions[torch.tensor(teaching)]
            scored = policy.decoder.score_actions(encoded, allowed, kept, logits)
            spread = scored.entropy.mean()
            weights = torch.tensor(advantage, dtype=torch.float32)
            loss = -(weights * scored.log_probability).mean() - settings.entropy_weight * spread
            if settings.updates:
                descend(policy, optimiser, loss, settings.clip_norm)
            report(
                mean_time=float(times.mean()) * reference, loss=loss.item(), entropy=spread.item()
            )
    return policy


def logits_of(settings: Seq2Seq, update: int) -> Logits:
    """Map from scores to logits; a higher temperature flattens it during the warm-up."""
    factor = WARM_UP_FACTOR if update < settings.warm_up else 1.0
    return Logits(settings.tanh_constant, factor * settings.temperature)
