"""Hierarchical: grouper, placer and joint REINFORCE (see `placer.Hierarchical`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from placewright.core.arrays import IntArray
from placewright.placers.baselines.simple import evaluate_homogeneous
from placewright.placers.learned.hierarchical.placer import Hierarchical
from placewright.placers.learned.shared.encoders import (
    AttentionalDecoder,
    Encoded,
    Logits,
    perceptron,
)
from placewright.placers.learned.shared.group_inputs import JointSpace
from placewright.placers.learned.shared.learning_scope import (
    as_array,
    chosen,
    descend,
    joint_bonus,
    learning_scope,
    sample,
)
from placewright.placers.learned.shared.returns import (
    FAILING_TIMES,
    MovingAverage,
    negative_root,
    over_root_mean_square,
    reference_value,
    relative_times,
)
from placewright.placers.learned.shared.searching import EarlyStop
from placewright.simulation.evaluator import Evaluator


class HierarchicalPolicy(nn.Module):
    """Grouper: a perceptron per op. Placer: bidirectional LSTM, attentional decoder."""

    def __init__(self, joint: JointSpace, settings: Hierarchical) -> None:
        super().__init__()
        rows = torch.tensor(joint.rows.for_grouper()).float()  # (nodes, inputs)
        self.grouper = perceptron(
            rows.shape[1],
            settings.grouper_hidden,
            joint.n_groups,
            last_scale=settings.grouper_scale,
        )
        self.placer = AttentionalDecoder(
            joint.placer_inputs,
            joint.space.problem.n_devices,
            settings.hidden,
            bidirectional=True,
            aligned=settings.aligned,
        )
        self.node_rows = rows

    def log_groups(self) -> Tensor:
        """Log-probabilities of each node's group, shape (nodes, groups)."""
        return torch.log_softmax(self.grouper(self.node_rows), dim=-1)


@dataclass(frozen=True, eq=False)
class Batch:
    """One sampled grouping with k placements of its groups."""

    log_groups: Tensor  # that the grouping was drawn from, with gradient, shape (nodes, groups)
    groups: Tensor  # shape (nodes,)
    # inputs of the placer, as its encoder reads them, with gradient; the same for all k
    encoded: Encoded
    noise: Tensor | None  # on the placer's logits, shape (k, groups, devices), or None
    actions: Tensor  # shape (k, groups)
    placements: IntArray  # shape (k, n_units)


def learn(
    settings: Hierarchical,
    joint: JointSpace,
    evaluator: Evaluator,
    rng: np.random.Generator,
) -> HierarchicalPolicy:
    """Learn on one problem until the budget is spent (`BudgetSpent`) or `patience` runs out."""
    problem, reference = joint.space.problem, reference_value(joint.space.problem)
    baseline, square = (MovingAverage(settings.baseline_decay) for _ in range(2))
    stop, update = EarlyStop(settings.patience), 0
    if settings.homogeneous_starts:
        evaluate_homogeneous(problem, evaluator)
    with learning_scope(settings.tensorboard, evaluator, rng) as (generator, report):
        policy = HierarchicalPolicy(joint, settings)
        optimiser = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
        while not stop(evaluator.best_value, evaluator.evaluations):
            # 1. Draw a grouping and k placements of it, and time them.
            is_noisy = update < settings.noise_updates
            batch = draw(policy, joint, settings, generator, is_noisy=is_noisy)
            times = relative_times(evaluator.sample_many(batch.placements), reference)
            # 2. Compare those that teach with the moving baseline.
            update += 1
            teaching = np.arange(len(times))
            if update > settings.feasible_only_after:
                teaching = np.flatnonzero(times < FAILING_TIMES)
            if len(teaching) == 0:
                continue
            rewards = negative_root(times[teaching])
            advantage = baseline.advantage(rewards)
            baseline.update(rewards)
            if settings.normalised:
                advantage = over_root_mean_square(advantage, square)
            # 3. REINFORCE for both networks, with an entropy bonus.
            weights = torch.tensor(advantage, dtype=torch.float32)
            loss, spread = batch_loss(policy, batch, teaching, weights, settings)
            loss = loss - joint_bonus(settings, spread, batch.log_groups)
            if settings.updates:
                descend(policy, optimiser, loss, settings.clip_norm)
            report(
                mean_time=float(times.mean()) * reference, loss=loss.item(), entropy=spread.item()
            )
    return policy


def draw(
    policy: HierarchicalPolicy,
    joint: JointSpace,
    settings: Hierarchical,
    generator: torch.Generator,
    *,
    is_noisy: bool,
) -> Batch:
    """Sample one grouping and k placements of its groups."""
    k, n_devices = settings.placements_per_update, joint.space.problem.n_devices
    log_groups = policy.log_groups()
    groups = sample(log_groups.detach(), generator)
    group_of = as_array(groups)
    inputs = torch.tensor(joint.rows.for_placer(group_of, joint.n_groups)).float().unsqueeze(0)
    noise = None
    if is_noisy:
        shape = (k, joint.n_groups, n_devices)
        noise = settings.noise * torch.randn(shape, generator=generator)
    encoded = policy.placer.encode(inputs)
    allowed = policy.placer.anywhere(joint.n_groups)
    actions = policy.placer.draw(encoded, allowed, k, logits_of(settings), generator, noise)
    placements = joint.expand(group_of, as_array(actions))
    return Batch(log_groups, groups, encoded, noise, actions, placements)


def batch_loss(
    policy: HierarchicalPolicy,
    batch: Batch,
    teaching: IntArray,
    advantage: Tensor,
    settings: Hierarchical,
) -> tuple[Tensor, Tensor]:
    """REINFORCE loss of placer and grouper, and the mean entropy of the placer."""
    index = torch.tensor(teaching)
    scored = policy.placer.score_actions(
        batch.encoded,
        policy.placer.anywhere(batch.actions.shape[1]),
        batch.actions[index],
        logits_of(settings),
        None if batch.noise is None else batch.noise[index],
    )
    log_grouping = chosen(batch.log_groups, batch.groups).sum()
    return joint_loss(advantage, scored.log_probability, log_grouping), scored.entropy.mean()


def joint_loss(advantage: Tensor, log_placements: Tensor, log_grouping: Tensor) -> Tensor:
    """Mean over placements of -advantage x the log-probability of grouping and placement."""
    return -(advantage * log_placements).mean() + -advantage.mean() * log_grouping


def logits_of(settings: Hierarchical) -> Logits:
    """The map from the placer's scores to logits."""
    return Logits(settings.tanh_constant, settings.temperature)
