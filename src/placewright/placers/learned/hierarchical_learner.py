"""Hierarchical: grouper, placer, joint REINFORCE, from top to bottom (see `Hierarchical`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from placewright.core.problem import Problem
from placewright.placers.learned.baselines import MovingAverage
from placewright.placers.learned.encoders import AttentionalDecoder, Logits, perceptron
from placewright.placers.learned.group_inputs import NodeRows
from placewright.placers.learned.grouping import ActionSpace
from placewright.placers.learned.monitoring import EarlyStop, scalars_to
from placewright.placers.learned.returns import (
    FAILING_TIMES,
    negative_root,
    reference_value,
    relative_times,
)
from placewright.placers.learned.sampling import as_array, chosen, sample, torch_scope
from placewright.simulation.evaluator import Evaluator

if TYPE_CHECKING:
    from placewright.placers.learned.hierarchical import Hierarchical


class HierarchicalPolicy(nn.Module):
    """Grouper: a perceptron per op. Placer: bidirectional LSTM, attentional decoder."""

    def __init__(self, rows: NodeRows, n_groups: int, n_devices: int, settings: Hierarchical):
        super().__init__()
        self.n_groups = n_groups
        grouper_inputs = rows.for_grouper().shape[1]
        placer_inputs = rows.for_placer(np.zeros(rows.kinds.shape[0], np.int64), n_groups).shape[1]
        self.grouper = perceptron(grouper_inputs, settings.grouper_hidden, n_groups)
        self.placer = AttentionalDecoder(
            placer_inputs, n_devices, settings.hidden, bidirectional=True
        )


def learn(
    settings: Hierarchical, problem: Problem, evaluator: Evaluator, rng: np.random.Generator
) -> HierarchicalPolicy:
    """Learn on one problem until the budget ends (`BudgetSpent`) or patience is lost."""
    nodes = problem.colocation
    space = ActionSpace(problem, nodes)
    rows = NodeRows.of(problem, nodes)
    n_groups = min(settings.groups, nodes.n_groups)
    k = settings.placements_per_update
    logits = Logits(settings.tanh_constant, settings.temperature)
    reference, stop = reference_value(problem), EarlyStop(settings.patience)
    baseline = MovingAverage(settings.baseline_decay)
    with torch_scope(rng) as generator, scalars_to(settings.tensorboard) as scalars:
        policy = HierarchicalPolicy(rows, n_groups, problem.n_devices, settings)
        node_rows = torch.tensor(rows.for_grouper()).float()  # (nodes, inputs)
        anywhere = torch.ones((n_groups, problem.n_devices), dtype=torch.bool)
        optimiser = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
        update = 0
        while not stop(evaluator.best_value, evaluator.evaluations):
            # 1. One grouping, k placements of its groups.
            log_groups = torch.log_softmax(policy.grouper(node_rows), dim=-1)  # (nodes, groups)
            groups = sample(log_groups.detach(), generator)  # (nodes,)
            group_of = as_array(groups)
            inputs = torch.tensor(rows.for_placer(group_of, n_groups)).float().unsqueeze(0)
            noise = None
            if update < settings.noise_updates:
                shape = (k, n_groups, problem.n_devices)
                noise = settings.noise * torch.randn(shape, generator=generator)
            actions = policy.placer.draw(inputs, anywhere, k, logits, generator, noise)
            placements = space.expand_with(group_of[nodes.group_of], as_array(actions))
            # 2. Time them.
            times = relative_times(evaluator.evaluate_many(placements), reference)
            kept = np.arange(len(times))
            if update >= settings.feasible_only_after:
                kept = np.flatnonzero(times < FAILING_TIMES)
            update += 1
            if len(kept) == 0:
                continue
            # 3. The same advantage teaches placer and grouper.
            rewards = negative_root(times[kept])
            advantage = torch.tensor(baseline.advantage(rewards), dtype=torch.float32)
            baseline.update(rewards)
            index = torch.tensor(kept)
            scored = policy.placer.score_actions(
                inputs, anywhere, actions[index], logits, None if noise is None else noise[index]
            )
            placer_loss = -(advantage * scored.log_probability).mean()
            grouper_loss = -advantage.mean() * chosen(log_groups, groups).sum()
            loss = placer_loss + grouper_loss
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
