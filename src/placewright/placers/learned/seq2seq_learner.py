"""Seq2seq: group features, network, REINFORCE, from top to bottom (see `Seq2Seq`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from placewright.core.problem import Problem
from placewright.placers.learned.baselines import MovingAverage
from placewright.placers.learned.encoders import AttentionalDecoder, Logits
from placewright.placers.learned.features import (
    group_adjacency,
    kind_counts,
    kind_vocabulary,
    output_shapes,
)
from placewright.placers.learned.grouping import (
    ActionSpace,
    colocation_grouping,
    neighbour_merge,
)
from placewright.placers.learned.monitoring import EarlyStop, scalars_to
from placewright.placers.learned.returns import (
    FAILING_TIMES,
    negative_root,
    reference_value,
    relative_times,
)
from placewright.placers.learned.sampling import as_array, torch_scope
from placewright.simulation.evaluator import Evaluator

if TYPE_CHECKING:
    from placewright.placers.learned.seq2seq import Seq2Seq

RNN_WARM_UP_EPISODES, RNN_WARM_UP_TEMPERATURE = 20, 5.0


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
                np.minimum(adjacency, 1.0),  # who reads this group
                np.minimum(adjacency.T, 1.0),  # whom this group reads
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
        is_rnn = settings.variant == "hsdag-rnn"
        self.decoder = AttentionalDecoder(
            width,
            problem.n_devices,
            5 * width if is_rnn else settings.hidden,
            cell="gru" if is_rnn else "lstm",
        )

    def groups(self) -> Tensor:
        """Inputs of the encoder, shape (1, groups, inputs)."""
        return torch.cat([self.kinds(self.counts), self.rows], dim=-1).unsqueeze(0)


def learn(
    settings: Seq2Seq, problem: Problem, evaluator: Evaluator, rng: np.random.Generator
) -> Seq2SeqPolicy:
    """Learn on one problem until the budget ends (`BudgetSpent`) or patience is lost."""
    is_rnn = settings.variant == "hsdag-rnn"
    if is_rnn:
        settings = replace(settings, embedding=64, samples_per_update=1, tanh_constant=0.0)
    groups = neighbour_merge(problem, colocation_grouping(problem), settings.groups)
    space = ActionSpace(problem, groups)
    reference = reference_value(problem)
    stop = EarlyStop(settings.patience)
    baseline = MovingAverage(settings.baseline_decay)
    with torch_scope(rng) as generator, scalars_to(settings.tensorboard) as scalars:
        policy = Seq2SeqPolicy(space, settings)
        allowed = torch.tensor(space.allowed)
        optimiser = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
        update = 0
        while not stop(evaluator.best_value, evaluator.evaluations):
            # 1. Sample placements and time them.
            logits = Logits(settings.tanh_constant, settings.temperature)
            if is_rnn:
                warm = update < RNN_WARM_UP_EPISODES
                logits = Logits(0.0, RNN_WARM_UP_TEMPERATURE if warm else 1.0)
            actions = policy.decoder.draw(
                policy.groups(), allowed, settings.samples_per_update, logits, generator
            )
            values = evaluator.evaluate_many(space.expand(as_array(actions)))
            times = relative_times(values, reference)
            kept = np.arange(len(values))
            if update >= settings.feasible_only_after:
                kept = np.flatnonzero(times < FAILING_TIMES)
            update += 1
            if len(kept) == 0:
                continue
            # 2. REINFORCE: raise the log-probability of what beat the baseline.
            rewards = negative_root(times[kept])
            advantage = rewards if is_rnn else baseline.advantage(rewards)
            baseline.update(rewards)
            scored = policy.decoder.score_actions(
                policy.groups(), allowed, actions[torch.tensor(kept)], logits
            )
            weights = torch.tensor(advantage, dtype=torch.float32)
            loss = -(weights * scored.log_probability).mean()
            loss = loss - settings.entropy_weight * scored.entropy.mean()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(policy.parameters(), settings.clip_norm)
            optimiser.step()
            scalars(
                evaluator.evaluations,
                best=evaluator.best_value,
                mean_time=float(times.mean()) * reference,
                loss=loss.item(),
                entropy=scored.entropy.mean().item(),
            )
    return policy
