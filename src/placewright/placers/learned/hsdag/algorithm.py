"""HSDAG on one problem: episodes, one update after each, until the budget ends.

Steps 3 to 5 of HSDAG: sample placements, time them, and weigh their gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.errors import FileFormatError
from placewright.placers.baselines.single import evaluate_homogeneous
from placewright.placers.learned.hsdag.graph import (
    CoarseGraph,
    coarsened,
    node_features,
    vocabulary_of,
)
from placewright.placers.learned.hsdag.network import HsdagPolicy, Links
from placewright.placers.learned.hsdag.settings import HsdagSettings
from placewright.placers.learned.shared.checkpoint import Checkpoint, load_checkpoint
from placewright.placers.learned.shared.learning_scope import clipped_step, learning_scope
from placewright.placers.learned.shared.monitoring import EarlyStop
from placewright.placers.learned.shared.returns import (
    FAILING_TIMES,
    MovingAverage,
    discounted,
    reference_value,
    released_hsdag_return,
)
from placewright.placers.learned.shared.sampling import (
    as_array,
    chosen,
    entropy,
    masked_log_softmax,
    sample,
)
from placewright.simulation.evaluator import Evaluator

# Choices that a policy file fixes: the network and its inputs.
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
FAILED_LATENCY = 1e10  # of the released code, in seconds


def learn(
    settings: HsdagSettings, problem: Problem, evaluator: Evaluator, rng: np.random.Generator
) -> HsdagPolicy:
    """Learn until the budget ends (`BudgetSpent`) or patience is lost.

    Raises:
        FileFormatError: the policy file is unusable for this placer or number of devices.
    """
    vocabulary, start = vocabulary_of(problem), None
    if settings.policy:
        settings, vocabulary, start = trained_start(settings, problem)
    stop = EarlyStop(settings.patience)
    if settings.homogeneous_starts:
        evaluate_homogeneous(problem, evaluator)
    judge = Judge(settings, evaluator, MovingAverage(settings.baseline_decay))
    with learning_scope(settings.tensorboard, evaluator, rng) as (generator, scalars):
        graph = HsdagGraph.of(problem, settings, vocabulary)
        n_features = int(graph.features.shape[1])
        if start is not None:
            start.check_network(lambda: make_policy(settings, n_features, problem.n_devices))
        policy = make_policy(settings, n_features, problem.n_devices)
        if start is not None:
            start.give_to(policy)
        optimiser = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
        while not stop(evaluator.best_value, evaluator.evaluations):
            steps = run_episode(policy, graph, settings, generator)
            rewards = judge.rewards(steps.placements)
            loss = episode_loss(settings, steps, judge.weights(rewards))
            if settings.updates:
                clipped_step(policy, optimiser, loss, clip_norm_of(settings))
            scalars(
                evaluator.evaluations,
                best=evaluator.best_value,
                mean_time=judge.mean_time(),
                loss=loss.item(),
                entropy=steps.entropy.mean().item(),
                clusters=float(steps.n_clusters),
            )
    return policy


def clip_norm_of(settings: HsdagSettings) -> float:
    """Largest global norm of a gradient; infinite if there is no limit."""
    return settings.clip_norm or math.inf


def make_policy(settings: HsdagSettings, n_features: int, n_devices: int) -> HsdagPolicy:
    """A new network; its dropout is always active, as in the released code."""
    rounds = -1 if settings.without_grouping else settings.parse_rounds
    return HsdagPolicy(n_features, n_devices, settings.hidden, settings.dropout, rounds)


def trained_start(
    settings: HsdagSettings, problem: Problem
) -> tuple[HsdagSettings, tuple[str, ...], Checkpoint]:
    """Choices and vocabulary that a policy file was trained with, and its parameters.

    Raises:
        FileFormatError: the file is unusable, or its policy has another number of devices.
    """
    checkpoint = load_checkpoint(settings.policy, "hsdag")
    trained = checkpoint.count("n_devices")
    if trained != problem.n_devices:
        raise FileFormatError(
            f"policy '{settings.policy}' is for {trained} devices, not {problem.n_devices}; "
            "train one for them"
        )
    same = {name: checkpoint.like(name, getattr(settings, name)) for name in NETWORK_CHOICES}
    same["hidden"] = checkpoint.count("hidden")
    same["parse_rounds"] = checkpoint.count("parse_rounds", least=0)
    vocabulary = checkpoint.like("vocabulary", ["MatMul"])
    if not all(isinstance(kind, str) for kind in vocabulary):
        raise FileFormatError(
            f"policy '{settings.policy}': 'vocabulary' must list kinds of operators by name; "
            "train it again"
        )
    return replace(settings, **same), tuple(vocabulary), checkpoint


@dataclass(frozen=True, eq=False)
class HsdagGraph:
    """The input of the network for one problem."""

    coarse: CoarseGraph  # nodes, and the groups of units among them
    features: Tensor  # the first state of every episode, shape (n_nodes, n_features)
    links: Links  # the edges of as many copies as pass through the network at once
    allowed: BoolArray  # devices of each node, shape (n_nodes, n_devices)

    @classmethod
    def of(
        cls, problem: Problem, settings: HsdagSettings, vocabulary: tuple[str, ...]
    ) -> HsdagGraph:
        """Steps 1 and 2: coarsen, and compute features."""
        coarse = coarsened(problem, settings.max_nodes, weights_as_nodes=settings.weights_as_nodes)
        rows = node_features(coarse, settings, vocabulary)
        allowed = np.ones((coarse.n_nodes, problem.n_devices), dtype=np.bool_)
        allowed[: coarse.space.n_groups] = coarse.space.allowed
        copies = 1 if settings.accumulate else settings.passes
        return cls(
            coarse,
            torch.tensor(rows, dtype=torch.get_default_dtype()),
            Links.symmetric(coarse.edges, coarse.n_nodes, copies),
            allowed,
        )


@dataclass(frozen=True, eq=False)
class EpisodeSteps:
    """Placements of some steps of an episode, before their evaluation."""

    placements: IntArray  # devices of all units at each step, shape (n_steps, n_units)
    log_probabilities: Tensor  # of each step's choices, shape (n_steps,), with gradient
    entropy: Tensor  # mean over clusters at each step, shape (n_steps,), with gradient
    n_clusters: int  # at the last step


def run_episode(
    policy: HsdagPolicy, graph: HsdagGraph, settings: HsdagSettings, generator: torch.Generator
) -> EpisodeSteps:
    """Sample `steps` placements.

    If the state evolves, it gains each node's cluster embedding between two steps; else the steps
    differ in dropout and samples only, and pass as one graph of `steps` copies.
    """
    if not settings.accumulate:
        return run_steps(policy, graph, graph.features, settings.draws, generator)[0]
    state, parts = graph.features, []
    for _ in range(settings.passes):
        steps, embedding = run_steps(policy, graph, state, settings.draws, generator)
        state = state + embedding
        parts.append(steps)
    return EpisodeSteps(
        np.concatenate([steps.placements for steps in parts]),
        torch.cat([steps.log_probabilities for steps in parts]),
        torch.cat([steps.entropy for steps in parts]),
        parts[-1].n_clusters,
    )


def run_steps(
    policy: HsdagPolicy,
    graph: HsdagGraph,
    state: Tensor,
    draws: int,
    generator: torch.Generator,
) -> tuple[EpisodeSteps, Tensor]:
    """Parse k copies of the graph at once, from one state (n_nodes, n_features).

    Args:
        policy, graph: the network and its input.
        draws: placements that are drawn from the distribution over each copy's clusters.

    Returns:
        The k * draws steps, those of one copy side by side, and each node's cluster embedding
        without gradient, (k * n_nodes, n_features).
    """
    space, n = graph.coarse.space, graph.coarse.n_nodes
    parsed = policy(state, graph.links)
    copies = len(parsed.cluster_of) // n
    members = torch.from_numpy(parsed.cluster_of)
    copy_of = torch.zeros(len(parsed.logits), dtype=torch.int64)
    copy_of[members] = torch.arange(copies).repeat_interleave(n)
    allowed = torch.from_numpy(allowed_of_clusters(graph, parsed.cluster_of))
    log_p = masked_log_softmax(parsed.logits, allowed)  # (clusters, devices)
    every = log_p.expand(draws, *log_p.shape)  # (draws, clusters, devices)
    action = sample(every.detach(), generator)
    devices = as_array(action)[:, parsed.cluster_of].reshape(draws, copies, n)
    units = space.expand(devices[:, :, : space.n_groups])  # (draws, copies, units)
    log_p_of_draws = torch.zeros(draws, copies, dtype=log_p.dtype).index_add(
        1, copy_of, chosen(every, action)
    )
    zeros = torch.zeros(copies, dtype=log_p.dtype)
    n_clusters = zeros.index_add(0, copy_of, torch.ones(len(log_p), dtype=log_p.dtype))
    mean_entropy = zeros.index_add(0, copy_of, entropy(log_p)) / n_clusters
    steps = EpisodeSteps(
        units.swapaxes(0, 1).reshape(copies * draws, -1),
        log_p_of_draws.T.reshape(-1),  # (copies * draws,)
        mean_entropy.repeat_interleave(draws),
        int(n_clusters[-1]),
    )
    return steps, parsed.embedding.detach()[members]


def allowed_of_clusters(graph: HsdagGraph, cluster_of: IntArray) -> BoolArray:
    """Devices that all nodes of a cluster may use; if there are none, those of any node.

    `cluster_of` covers one or more copies of the graph, shape (k * n_nodes,).
    """
    shape = (int(cluster_of.max()) + 1, graph.allowed.shape[1])
    if graph.allowed.all():
        return np.ones(shape, dtype=np.bool_)
    common, some = np.ones(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
    allowed = np.tile(graph.allowed, (len(cluster_of) // len(graph.allowed), 1))
    np.logical_and.at(common, cluster_of, allowed)
    np.logical_or.at(some, cluster_of, allowed)
    return np.where(common.any(axis=1, keepdims=True), common, some)


@dataclass
class Judge:
    """Evaluates placements and computes the weights of their log-probabilities."""

    settings: HsdagSettings  # rewards, returns and baseline
    evaluator: Evaluator  # of the problem
    baseline: MovingAverage  # of returns

    def rewards(self, placements: IntArray) -> FloatArray:
        """Evaluate placements (n, n_units); rewards, shape (at most n,).

        A placement that the rule forbids is a query like any other, but never the incumbent.
        """
        forbidden = np.zeros(len(placements), dtype=np.bool_)
        if not self.settings.homogeneous:
            forbidden = (placements == placements[:, :1]).all(axis=1)
        values = self.evaluator.sample_many(placements, keep=~forbidden)
        failed = ~np.isfinite(values) | forbidden[: len(values)]
        reference = reference_value(self.evaluator.problem)
        if self.settings.reward == "root":
            times = np.where(failed, FAILING_TIMES, np.minimum(values / reference, FAILING_TIMES))
            return np.asarray(-np.sqrt(times))
        # If nothing takes time, every placement has the reward 1.
        values = np.maximum(values, np.finfo(np.float64).tiny)
        return np.asarray(reference / np.where(failed, FAILED_LATENCY, values))

    def mean_time(self, last: int = 20) -> float:
        """Mean value of the last samples, each at most ten reference times."""
        most = FAILING_TIMES * reference_value(self.evaluator.problem)
        return float(np.mean(np.minimum(self.evaluator.samples[-last:], most)))

    def weights(self, rewards: FloatArray) -> FloatArray:
        """The factor on each step's -log pi, shape of `rewards`."""
        settings = self.settings
        if settings.returns == "shared":
            scale = released_hsdag_return(rewards, settings.discount)
            returns = np.full(len(rewards), scale)
        elif settings.returns == "own":
            returns = rewards * settings.discount ** np.arange(len(rewards))
        else:
            returns = discounted(rewards, settings.discount)
        if not settings.baseline:
            return returns
        weights = self.baseline.advantage(returns)
        self.baseline.update(returns)
        if settings.normalised_advantages:
            weights = weights / max(float(np.sqrt(np.mean(weights**2))), 1e-12)
        return weights


def episode_loss(settings: HsdagSettings, steps: EpisodeSteps, weights: FloatArray) -> Tensor:
    """Sum of -log pi(a_t) * weight_t over the first n steps, less the bonus; weights (n,)."""
    log_p = steps.log_probabilities[: len(weights)]
    loss = -(log_p * torch.tensor(weights, dtype=log_p.dtype)).sum()
    if settings.entropy_weight == 0.0:
        return loss
    return loss - settings.entropy_weight * steps.entropy.sum()
