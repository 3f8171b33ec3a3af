"""Grouper-placer: networks and joint REINFORCE, from top to bottom (see `GrouperPlacer`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from placewright.core.problem import Problem
from placewright.placers.learned.baselines import MovingAverage
from placewright.placers.learned.encoders import AttentionalDecoder, Logits, perceptron
from placewright.placers.learned.group_inputs import NodeRows
from placewright.placers.learned.grouping import ActionSpace
from placewright.placers.learned.monitoring import EarlyStop, scalars_to
from placewright.placers.learned.returns import negative_root, reference_value, relative_times
from placewright.placers.learned.sampling import as_array, chosen, sample, torch_scope
from placewright.simulation.evaluator import Evaluator

if TYPE_CHECKING:
    from placewright.placers.learned.grouper_placer import GrouperPlacer

PLAIN = Logits(constant=0.0, temperature=1.0)


class GrouperPlacerPolicy(nn.Module):
    """Kind embedding ++ shapes ++ neighbours -> FC(ReLU) -> groups; LSTM placer over groups."""

    def __init__(self, rows: NodeRows, n_groups: int, n_devices: int, settings: GrouperPlacer):
        super().__init__()
        n_kinds = rows.kinds.shape[1]
        self.kinds = nn.Linear(n_kinds, settings.embedding, bias=False)
        fixed = rows.shapes.shape[1] + rows.neighbours.shape[1]
        self.grouper = perceptron(settings.embedding + fixed, settings.grouper_hidden, n_groups)
        placer_inputs = rows.for_placer(np.zeros(len(rows.kinds), np.int64), n_groups).shape[1]
        self.placer = AttentionalDecoder(placer_inputs, n_devices, settings.hidden)
        self.node_kinds = torch.tensor(rows.kinds).float()
        self.node_rest = torch.tensor(np.concatenate([rows.shapes, rows.neighbours], 1)).float()

    def log_groups(self) -> Tensor:
        """Log-probabilities of groups, shape (nodes, groups)."""
        inputs = torch.cat([self.kinds(self.node_kinds), self.node_rest], dim=-1)
        return torch.log_softmax(self.grouper(inputs), dim=-1)


def learn(
    settings: GrouperPlacer, problem: Problem, evaluator: Evaluator, rng: np.random.Generator
) -> GrouperPlacerPolicy:
    """Learn on one problem until the budget ends (`BudgetSpent`) or patience is lost."""
    nodes = problem.colocation
    space, rows = ActionSpace(problem, nodes), NodeRows.of(problem, nodes)
    n_groups = min(settings.groups, nodes.n_groups)
    reference, stop = reference_value(problem), EarlyStop(settings.patience)
    baseline = MovingAverage(settings.baseline_decay)
    with torch_scope(rng) as generator, scalars_to(settings.tensorboard) as scalars:
        policy = GrouperPlacerPolicy(rows, n_groups, problem.n_devices, settings)
        anywhere = torch.ones((n_groups, problem.n_devices), dtype=torch.bool)
        optimiser = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
        while not stop(evaluator.best_value, evaluator.evaluations):
            # 1. Each sample has its own grouping and its own placement.
            log_groups = policy.log_groups()
            shape = (settings.samples_per_update, -1, -1)
            groups = sample(log_groups.detach().expand(shape), generator)  # (samples, nodes)
            group_of = as_array(groups)
            inputs = torch.stack(
                [torch.tensor(rows.for_placer(row, n_groups)).float() for row in group_of]
            )  # (samples, groups, inputs)
            actions = policy.placer.draw(inputs, anywhere, len(inputs), PLAIN, generator)
            placements = [
                space.expand_with(row[nodes.group_of], action)
                for row, action in zip(group_of, as_array(actions), strict=True)
            ]
            # 2. Time them.
            times = relative_times(evaluator.evaluate_many(np.stack(placements)), reference)
            rewards = negative_root(times)
            advantage = torch.tensor(baseline.advantage(rewards), dtype=torch.float32)
            baseline.update(rewards)
            # 3. One advantage teaches both sub-policies.
            n = len(times)
            scored = policy.placer.score_actions(inputs[:n], anywhere, actions[:n], PLAIN)
            of_groups = chosen(log_groups.expand(n, -1, -1), groups[:n]).sum(dim=1)
            spread = scored.entropy.mean()
            loss = -(advantage * (scored.log_probability + of_groups)).mean()
            loss = loss - settings.entropy_weight * spread
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(policy.parameters(), settings.clip_norm)
            optimiser.step()
            scalars(
                evaluator.evaluations,
                best=evaluator.best_value,
                mean_time=float(times.mean()) * reference,
                loss=loss.item(),
                entropy=spread.item(),
            )
    return policy
