"""HSDAG on one problem: episodes, one update after each, until the budget ends.

Steps 3 to 5 of HSDAG: sample placements, time them, and weigh their gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.errors import FileFormatError
from placewright.placers.baselines.simple import evaluate_homogeneous
from placewright.placers.learned.hsdag.graph import (
    CoarseGraph,
    coarsened,
    node_features,
    vocabulary_of,
)
from placewright.placers.learned.hsdag.network import HsdagPolicy, Links
from placewright.placers.learned.hsdag.placer import Hsdag
from placewright.placers.learned.shared.checkpoint import Checkpoint, load_checkpoint
from placewright.placers.learned.shared.learning_scope import (
    as_array,
    chosen,
    descend,
    entropy,
    learning_scope,
    masked_log_softmax,
    sample,
)
from placewright.placers.learned.shared.returns import (
    FAILING_TIMES,
    MovingAverage,
    discounted,
    reference_value,
    released_hsdag_return,
)
from placewright.placers.learned.shared.searching import EarlyStop
from placewright.placers.learned.shared.training_episodes import (
    EpisodeResult,
    Trainee,
    require_one_device_count,
)
from placewright.placers.legal import common_devices
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
    settings: Hsdag, problem: Problem, evaluator: Evaluator, rng: np.random.Generator
) -> HsdagPolicy:
    """Learn until the budget is spent (`BudgetSpent`) or `patience` runs out.

    Raises:
        FileFormatError: the policy file is unusable for this placer or number of devices.
    """
    vocabulary, start = vocabulary_of(problem), None
    if settings.policy:
        settings, vocabulary, start = trained_start(settings, problem)
    stop, baseline = EarlyStop(settings.patience), baseline_of(settings)
    if settings.homogeneous_starts and settings.homogeneous:
        evaluate_homogeneous(problem, evaluator)
    with learning_scope(settings.tensorboard, evaluator, rng) as (generator, report):
        graph = HsdagGraph.of(problem, settings, vocabulary)
        n_features = int(graph.features.shape[1])
        if start is not None:
            start.check_network(lambda: make_policy(settings, n_features, problem.n_devices))
        policy = make_policy(settings, n_features, problem.n_devices)
        if start is not None:
            start.give_to(policy)
        optimiser = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
        while not stop(evaluator.best_value, evaluator.evaluations):
            # 1. Draw placements, from a state that evolves, and time them.
            steps = run_episode(policy, graph, settings, generator)
            rewards = rewards_of(settings, evaluator, steps.placements)
            # 2. Weigh each step by its return.
            returns = returns_of(settings, rewards)
            weights = weights_of(settings, returns, baseline)
            # 3. REINFORCE with an entropy bonus.
            loss = episode_loss(settings, steps, weights)
            if settings.updates:
                descend(policy, optimiser, loss, settings.clip_norm)
            report(
                mean_time=mean_time(evaluator, rewards),
                loss=loss.item(),
                entropy=steps.entropy.mean().item(),
                clusters=float(steps.n_clusters),
            )
    return policy


def make_policy(settings: Hsdag, n_features: int, n_devices: int) -> HsdagPolicy:
    """A new network; its dropout is always active, as in the released code."""
    rounds = -1 if settings.without_grouping else settings.parse_rounds
    return HsdagPolicy(n_features, n_devices, settings.hidden, settings.dropout, rounds)


@dataclass(frozen=True, eq=False)
class HsdagGraph:
    """The input of the network for one problem."""

    coarse: CoarseGraph  # nodes, and the groups of units among them
    features: Tensor  # the first state of every episode, shape (n_nodes, n_features)
    links: Links  # the edges of as many copies as pass through the network at once
    allowed: BoolArray  # devices of each node, shape (n_nodes, n_devices)

    @classmethod
    def of(cls, problem: Problem, settings: Hsdag, vocabulary: tuple[str, ...]) -> HsdagGraph:
        """Steps 1 and 2: coarsen, and compute features."""
        coarse = coarsened(problem, settings.max_nodes, weights_as_nodes=settings.weights_as_nodes)
        rows = node_features(
            coarse, vocabulary, settings.feature_parts, normalised=settings.normalised_features
        )
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
    policy: HsdagPolicy, graph: HsdagGraph, settings: Hsdag, generator: torch.Generator
) -> EpisodeSteps:
    """Sample `steps` placements.

    If the state evolves, it gains each node's cluster embedding between two passes; else all passes
    are copies in one graph. They differ in dropout, and draws of one pass in samples only.
    """
    state, parts = graph.features, []
    for _ in range(settings.passes if settings.accumulate else 1):
        steps, embedding = run_steps(policy, graph, state, settings.draws, generator)
        state = state + embedding if settings.accumulate else state
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
    """Devices of each cluster, see `common_devices`, shape (n_clusters, n_devices).

    `cluster_of` covers one or more copies of the graph, shape (k * n_nodes,).
    """
    if graph.allowed.all():  # most often, and each update asks
        return np.ones((int(cluster_of.max()) + 1, graph.allowed.shape[1]), dtype=np.bool_)
    copies = len(cluster_of) // len(graph.allowed)
    return common_devices(np.tile(graph.allowed, (copies, 1)), cluster_of)


def rewards_of(settings: Hsdag, evaluator: Evaluator, placements: IntArray) -> FloatArray:
    """Evaluate placements (n, n_units); rewards, reference time / latency, shape (at most n,).

    A placement that the rule forbids is a query like any other, but never the incumbent.
    """
    forbidden = np.zeros(len(placements), dtype=np.bool_)
    if not settings.homogeneous:
        forbidden = (placements == placements[:, :1]).all(axis=1)
    values = evaluator.sample_many(placements, keep=~forbidden)
    failed = ~np.isfinite(values) | forbidden[: len(values)]
    # If nothing takes time, every placement has the reward 1.
    values = np.maximum(values, np.finfo(np.float64).tiny)
    reference = reference_value(evaluator.problem)
    return np.asarray(reference / np.where(failed, FAILED_LATENCY, values))


def returns_of(settings: Hsdag, rewards: FloatArray) -> FloatArray:
    """The return of each step, shape of `rewards`."""
    if settings.returns == "shared":
        return np.full(len(rewards), released_hsdag_return(rewards, settings.discount))
    if settings.returns == "own":
        return np.asarray(rewards * settings.discount ** np.arange(len(rewards)))
    return discounted(rewards, settings.discount)


def baseline_of(settings: Hsdag) -> MovingAverage | None:
    """A new baseline; None if the settings use none."""
    return MovingAverage(settings.baseline_decay) if settings.baseline else None


def weights_of(settings: Hsdag, returns: FloatArray, baseline: MovingAverage | None) -> FloatArray:
    """The factor on each step's -log pi, shape of `returns`; these enter the baseline."""
    if baseline is None:
        return returns
    weights = baseline.advantage(returns)
    baseline.update(returns)
    if settings.normalised_advantages:
        weights = weights / max(float(np.sqrt(np.mean(weights**2))), 1e-12)
    return weights


def episode_loss(settings: Hsdag, steps: EpisodeSteps, weights: FloatArray) -> Tensor:
    """Sum of -log pi(a_t) * weight_t over the first n steps, less the bonus; weights (n,)."""
    n = len(weights)
    log_p = steps.log_probabilities[:n]
    loss = -(log_p * torch.tensor(weights, dtype=log_p.dtype)).sum()
    if settings.entropy_weight == 0.0:
        return loss
    return loss - settings.entropy_weight * steps.entropy[:n].sum()


def mean_time(evaluator: Evaluator, rewards: FloatArray) -> float:
    """Mean value of an episode's samples, failures and slower ones as ten reference times.

    Args:
        rewards: of the samples, as `rewards_of` returns them.
    """
    # The reward of a failure may be too small for its inverse.
    with np.errstate(divide="ignore", over="ignore"):
        times = np.minimum(1.0 / rewards, FAILING_TIMES)
    return reference_value(evaluator.problem) * float(times.mean())


def trained_start(settings: Hsdag, problem: Problem) -> tuple[Hsdag, tuple[str, ...], Checkpoint]:
    """Read a policy file: its settings, its vocabulary of kinds, and its parameters.

    Raises:
        FileFormatError: the file is unusable, or its policy has another number of devices, or
            other settings than the user gave or `hsdag-released` has.
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
    require_same_choices(settings, same)
    return replace(settings, **same), tuple(vocabulary), checkpoint


def require_same_choices(settings: Hsdag, trained: Mapping[str, Any]) -> None:
    """Raise if a policy has other settings than the user gave, or than `hsdag-released` has.

    Args:
        trained: the choices that its file fixes, by name.

    Raises:
        FileFormatError: naming the file, the setting and both values.
    """
    default = type(settings)()
    fixed = ("features", "parse_rounds") if settings.name == "hsdag-released" else ()
    for name, theirs in trained.items():
        ours = getattr(settings, name)
        if ours != theirs and (ours != getattr(default, name) or name in fixed):
            way = "" if name in fixed else "leave the setting out, or "
            raise FileFormatError(
                f"policy '{settings.policy}' has {name} = {theirs}, not {ours}; {way}train one "
                f"for '{settings.name}' with it"
            )


def trainee(settings: Hsdag, problems: Sequence[Problem]) -> Trainee:
    """A policy for graphs on the same number of devices; every graph has its own baseline.

    Raises:
        InputError: the problems differ in their number of devices.
    """
    n_devices = require_one_device_count("hsdag", problems)
    vocabulary = vocabulary_of(*problems)
    graphs = [HsdagGraph.of(problem, settings, vocabulary) for problem in problems]
    evaluators = [Evaluator(problem) for problem in problems]
    policy = make_policy(settings, int(graphs[0].features.shape[1]), n_devices)
    baselines = [baseline_of(settings) for _ in problems]

    def one(graph: int, progress: float, generator: torch.Generator) -> EpisodeResult:
        del progress
        evaluator = evaluators[graph]
        steps = run_episode(policy, graphs[graph], settings, generator)
        rewards = rewards_of(settings, evaluator, steps.placements)
        returns = returns_of(settings, rewards)
        weights = weights_of(settings, returns, baselines[graph])
        loss = episode_loss(settings, steps, weights)
        time = mean_time(evaluator, rewards) / reference_value(evaluator.problem)
        return EpisodeResult(loss, time, returns)

    return Trainee(
        policy,
        {
            "n_devices": n_devices,
            "vocabulary": list(vocabulary),
            **{name: getattr(settings, name) for name in NETWORK_CHOICES},
        },
        one,
        learning_rate=lambda progress: settings.learning_rate,
        clip_norm=settings.clip_norm,
        baselines=[baseline for baseline in baselines if baseline is not None],
    )
