"""HSDAG on one problem: episodes, one update after each, until the budget ends."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from placewright.core.problem import Problem
from placewright.errors import FileFormatError
from placewright.placers.baselines.homogeneous import evaluate_homogeneous
from placewright.placers.learned.baselines import MovingAverage
from placewright.placers.learned.checkpoint import Checkpoint, load_checkpoint
from placewright.placers.learned.hsdag.episodes import (
    HsdagGraph,
    Judge,
    episode_loss,
    run_episode,
)
from placewright.placers.learned.hsdag.features import vocabulary_of
from placewright.placers.learned.hsdag.network import HsdagPolicy
from placewright.placers.learned.hsdag.presets import Choices
from placewright.placers.learned.learning_scope import clipped_step, learning_scope
from placewright.placers.learned.monitoring import EarlyStop
from placewright.simulation.evaluator import Evaluator

# What a policy file fixes: the network and what it sees.
NETWORK_CHOICES = (
    "hidden",
    "parse_rounds",
    "accumulate",
    "features",
    "normalised_features",
    "weights_as_nodes",
    "without_output_shape",
    "without_node_id",
    "without_degrees",
    "without_fractal_dimension",
    "without_grouping",
)


def learn(
    choices: Choices, problem: Problem, evaluator: Evaluator, rng: np.random.Generator
) -> HsdagPolicy:
    """Learn until the budget ends (`BudgetSpent`) or patience is lost.

    Raises:
        FileFormatError: the policy file is unusable for this placer or number of devices.
    """
    vocabulary, start = vocabulary_of(problem), None
    if choices.policy:
        choices, vocabulary, start = trained_start(choices, problem)
    stop = EarlyStop(choices.patience)
    if choices.homogeneous_starts:
        evaluate_homogeneous(problem, evaluator)
    judge = Judge(choices, evaluator, MovingAverage(choices.baseline_decay))
    with learning_scope(choices.tensorboard, evaluator, rng) as (generator, scalars):
        graph = HsdagGraph.of(problem, choices, vocabulary)
        policy = make_policy(choices, graph.features.shape[1], problem.n_devices)
        if start is not None:
            start.give_to(policy)
        optimiser = torch.optim.Adam(policy.parameters(), lr=choices.learning_rate)
        while not stop(evaluator.best_value, evaluator.evaluations):
            steps = run_episode(policy, graph, choices, generator)
            rewards = judge.rewards(steps.placements)
            loss = episode_loss(choices, steps, judge.weights(rewards))
            if choices.updates:
                clipped_step(policy, optimiser, loss, clip_norm_of(choices))
            scalars(
                evaluator.evaluations,
                best=evaluator.best_value,
                mean_time=judge.mean_time(),
                loss=loss.item(),
                entropy=steps.entropy.mean().item(),
                clusters=float(steps.n_clusters),
            )
    return policy


def clip_norm_of(choices: Choices) -> float:
    """Largest global norm of a gradient; infinite where none is set."""
    return choices.clip_norm or math.inf


def make_policy(choices: Choices, n_features: int, n_devices: int) -> HsdagPolicy:
    """A fresh network; its dropout never rests, as that of the released one."""
    rounds = -1 if choices.without_grouping else choices.parse_rounds
    return HsdagPolicy(n_features, n_devices, choices.hidden, choices.dropout, rounds)


def trained_start(
    choices: Choices, problem: Problem
) -> tuple[Choices, tuple[str, ...], Checkpoint]:
    """Choices and vocabulary that a policy file was trained with, and its parameters.

    Raises:
        FileFormatError: the file is unusable, or its policy has another number of devices.
    """
    checkpoint = load_checkpoint(choices.policy, "hsdag")
    trained = checkpoint.setting("n_devices")
    if trained != problem.n_devices:
        raise FileFormatError(
            f"policy '{choices.policy}' is for {trained} devices, not {problem.n_devices}; "
            "train one for them"
        )
    same = {name: checkpoint.setting(name) for name in NETWORK_CHOICES}
    return replace(choices, **same), tuple(checkpoint.setting("vocabulary")), checkpoint
