"""Grouper-placer: networks and joint REINFORCE (see `placer.GrouperPlacer`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from placewright.core.arrays import IntArray
from placewright.placers.baselines.simple import evaluate_homogeneous
from placewright.placers.learned.grouper_placer.placer import GrouperPlacer
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
    MovingAverage,
    negative_root,
    over_root_mean_square,
    reference_value,
    relative_times,
)
from placewright.placers.learned.shared.searching import EarlyStop
from placewright.simulation.evaluator import Evaluator

PLAIN = Logits(constant=0.0, temperature=1.0)  # scores are the logits


class GrouperPlacerPolicy(nn.Module):
    """Kind embedding ++ shapes ++ neighbours -> FC(ReLU) -> groups; LSTM placer over groups."""

    def __init__(self, joint: JointSpace, settings: GrouperPlacer) -> None:
        super().__init__()
        rows = joint.rows
        self.kinds = nn.Linear(rows.kinds.shape[1], settings.embedding, bias=False)
        fixed = rows.shapes.shape[1] + rows.neighbours.shape[1]
        self.grouper = perceptron(
            settings.embedding + fixed,
            settings.grouper_hidden,
            joint.n_groups,
            last_scale=settings.grouper_scale,
        )
        n_devices = joint.space.problem.n_devices
        self.placer = AttentionalDecoder(
            joint.placer_inputs, n_devices, settings.hidden, aligned=settings.aligned
        )
        self.node_kinds = torch.tensor(rows.kinds).float()
        self.node_rest = torch.tensor(np.concatenate([rows.shapes, rows.neighbours], 1)).float()

    def log_groups(self) -> Tensor:
        """Log-probabilities of groups, shape (nodes, groups)."""
        inputs = torch.cat([self.kinds(self.node_kinds), self.node_rest], dim=-1)
        return torch.log_softmax(self.grouper(inputs), dim=-1)


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples, each with its own grouping and its own placement."""

    # log-probabilities that the groupings were drawn from, with gradient, shape (nodes, groups)
    log_groups: Tensor
    groups: Tensor  # group of each node, shape (samples, nodes)
    encoded: Encoded  # inputs of the placer, as its encoder reads them, with gradient
    actions: Tensor  # device of each group, shape (samples, groups)
    placements: IntArray  # shape (samples, n_units)


def learn(
    settings: GrouperPlacer,
    joint: JointSpace,
    evaluator: Evaluator,
    rng: np.random.Generator,
) -> GrouperPlacerPolicy:
    """Learn on one problem until the budget is spent (`BudgetSpent`) or `patience` runs out."""
    problem, reference = joint.space.problem, reference_value(joint.space.problem)
    baseline, square = (MovingAverage(settings.baseline_decay) for _ in range(2))
    stop = EarlyStop(settings.patience)
    if settings.homogeneous_starts:
        evaluate_homogeneous(problem, evaluator)
    with learning_scope(settings.tensorboard, evaluator, rng) as (generator, report):
        policy = GrouperPlacerPolicy(joint, settings)
        optimiser = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
        while not stop(evaluator.best_value, evaluator.evaluations):
            # 1. Draw groupings, each with a placement, and time them.
            batch = draw(policy, joint, settings.samples_per_update, generator)
            times = relative_times(evaluator.sample_many(batch.placements), reference)
            # 2. Compare them with the moving baseline.
            rewards = negative_root(times)
            advantage = baseline.advantage(rewards)
            baseline.update(rewards)
            if settings.normalised:
                advantage = over_root_mean_square(advantage, square)
            # 3. REINFORCE for both networks, with an entropy bonus.
            weights = torch.tensor(advantage, dtype=torch.float32)
            loss, spread = batch_loss(policy, batch, weights)
            loss = loss - joint_bonus(settings, spread, batch.log_groups)
            if settings.updates:
                descend(policy, optimiser, loss, settings.clip_norm)
            report(
                mean_time=float(times.mean()) * reference, loss=loss.item(), entropy=spread.item()
            )
    return policy


def draw(
    policy: GrouperPlacerPolicy, joint: JointSpace, samples: int, generator: torch.Generator
) -> Batch:
    """Sample groupings, and for each of them a placement of its groups."""
    log_groups = policy.log_groups()
    groups = sample(log_groups.detach().expand(samples, -1, -1), generator)  # (samples, nodes)
    group_of = as_array(groups)
    rows = [joint.rows.for_placer(row, joint.n_groups) for row in group_of]
    inputs = torch.tensor(np.stack(rows)).float()  # (samples, groups, inputs)
    anywhere = policy.placer.anywhere(joint.n_groups)
    encoded = policy.placer.encode(inputs)
    actions = policy.placer.draw(encoded, anywhere, samples, PLAIN, generator)
    placements = [
        joint.expand(row, action) for row, action in zip(group_of, as_array(actions), strict=True)
    ]
    return Batch(log_groups, groups, encoded, actions, np.stack(placements))


def batch_loss(
    policy: GrouperPlacerPolicy, batch: Batch, advantage: Tensor
) -> tuple[Tensor, Tensor]:
    """REINFORCE loss of grouper and placer, and the mean entropy of the placer.

    Args:
        advantage: of the samples that were timed, shape (n,); the budget may cut the last batch.
    """
    n, anywhere = len(advantage), policy.placer.anywhere(batch.actions.shape[1])
    scored = policy.placer.score_actions(batch.encoded.first(n), anywhere, batch.actions[:n], PLAIN)
    of_groups = chosen(batch.log_groups.expand(n, -1, -1), batch.groups[:n]).sum(dim=1)
    return -(advantage * (scored.log_probability + of_groups)).mean(), scored.entropy.mean()
