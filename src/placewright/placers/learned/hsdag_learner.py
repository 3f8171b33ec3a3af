"""HSDAG: features, episodes, policy gradient, from top to bottom (see `Hsdag`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.errors import FileFormatError
from placewright.placers.learned.baselines import MovingAverage
from placewright.placers.learned.checkpoint import Checkpoint, load_checkpoint
from placewright.placers.learned.features import (
    fractal_dimension,
    graph_data,
    group_edges,
    kind_counts,
    kind_vocabulary,
    one_hot_degrees,
    positional_encoding,
    widest_output_shape,
)
from placewright.placers.learned.grouping import ActionSpace, hsdag_grouping, neighbour_merge
from placewright.placers.learned.hsdag_network import Copies, HsdagPolicy
from placewright.placers.learned.monitoring import EarlyStop, scalars_to
from placewright.placers.learned.returns import (
    discounted,
    reference_value,
    released_hsdag_return,
)
from placewright.placers.learned.sampling import (
    as_array,
    chosen,
    entropy,
    masked_log_softmax,
    sample,
    torch_scope,
)
from placewright.placers.shared_weights import with_shared_weights_tied
from placewright.simulation.evaluator import Evaluator

if TYPE_CHECKING:
    from placewright.placers.learned.hsdag import Hsdag

FAILED_LATENCY = 1e10
# What a policy file fixes: the network and what it sees.
NETWORK_SETTINGS = (
    "variant",
    "hidden",
    "parse_rounds",
    "accumulate",
    "without_output_shape",
    "without_node_id",
    "without_structure",
)


@dataclass(frozen=True, eq=False)
class HsdagGraph:
    """One problem as the network sees it.

    Attributes:
        space: the coarsened nodes and their devices.
        data: x (n_nodes, n_features) and undirected edge_index (2, n_edges), u < v.
        links: the edges of as many copies as pass through the network at once.
    """

    space: ActionSpace
    data: Data
    links: Copies

    @classmethod
    def of(cls, problem: Problem, settings: Hsdag, vocabulary: tuple[str, ...]) -> HsdagGraph:
        """Steps 1 and 2: coarsen, and compute features."""
        space = ActionSpace(problem, coarsened(problem, settings.max_nodes))
        directed, _ = group_edges(problem, space.grouping)
        undirected = np.unique(np.sort(directed, axis=0), axis=1).reshape(2, -1)
        rows = node_features(settings, space, directed, vocabulary)
        data = graph_data(rows, undirected)
        copies = 1 if settings.accumulates else settings.steps
        return cls(space, data, Copies.of(data.edge_index, space.n_groups, copies))


def coarsened(problem: Problem, max_nodes: int) -> Grouping:
    """The released coarsening; what it leaves beyond `max_nodes` is merged with neighbours."""
    grouping = hsdag_grouping(problem)
    if max_nodes == 0 or grouping.n_groups <= max_nodes:
        return grouping
    return neighbour_merge(problem, grouping, max_nodes)


def node_features(
    settings: Hsdag, space: ActionSpace, edges: IntArray, vocabulary: tuple[str, ...]
) -> FloatArray:
    """Feature rows of the coarsened nodes, shape (n_nodes, n_features)."""
    problem, grouping, n = space.problem, space.grouping, space.n_groups
    kinds = kind_counts(problem, grouping, vocabulary)
    parts = [kinds / np.maximum(1.0, kinds.sum(axis=1, keepdims=True))]
    if settings.variant == "released":
        return np.concatenate([*parts, np.arange(n)[:, None]], axis=1)
    if not settings.without_structure:
        parts += [one_hot_degrees(edges, n), fractal_dimension(edges, n)[:, None]]
    if not settings.without_node_id:
        parts.append(positional_encoding(np.arange(n)))
    if not settings.without_output_shape:
        parts.append(widest_output_shape(problem, grouping))
    return np.concatenate(parts, axis=1)


@dataclass(frozen=True, eq=False)
class Episode:
    """Placements of one episode, before they are timed.

    Attributes:
        placements: devices of all units at each step, shape (steps, n_units).
        log_probabilities: of each step's choices, shape (steps,), with gradient.
        entropy: mean over clusters at each step, shape (steps,), with gradient.
        n_clusters: at the last step.
    """

    placements: IntArray
    log_probabilities: Tensor
    entropy: Tensor
    n_clusters: int


def run_episode(
    policy: HsdagPolicy, graph: HsdagGraph, settings: Hsdag, generator: torch.Generator
) -> Episode:
    """Steps 3 and 4, `steps` times.

    Where the state accumulates, it gains each node's cluster embedding between two steps; where it
    does not, the steps differ in dropout and samples only, and pass as one graph of `steps` copies.
    """
    if not settings.accumulates:
        return run_steps(policy, graph, graph.data.x, generator)[0]
    state, episodes = graph.data.x, []
    for _ in range(settings.steps):
        episode, embedding = run_steps(policy, graph, state, generator)
        state = state + embedding
        episodes.append(episode)
    return Episode(
        np.concatenate([episode.placements for episode in episodes]),
        torch.cat([episode.log_probabilities for episode in episodes]),
        torch.cat([episode.entropy for episode in episodes]),
        episodes[-1].n_clusters,
    )


def run_steps(
    policy: HsdagPolicy, graph: HsdagGraph, state: Tensor, generator: torch.Generator
) -> tuple[Episode, Tensor]:
    """Parse and sample the k copies of the graph at once, from one state (n_nodes, n_features).

    Returns:
        The k steps, and each node's cluster embedding without gradient, (k * n_nodes, n_features).
    """
    space, n = graph.space, graph.space.n_groups
    parsed = policy(state, graph.links)
    copies = len(parsed.cluster_of) // n
    members = torch.tensor(parsed.cluster_of)
    copy_of = torch.zeros(len(parsed.logits), dtype=torch.int64)
    copy_of[members] = torch.arange(copies).repeat_interleave(n)
    allowed = torch.tensor(allowed_of_clusters(space, parsed.cluster_of))
    log_p = masked_log_softmax(parsed.logits, allowed)  # (clusters, devices)
    action = sample(log_p.detach(), generator)
    devices = as_array(action)[parsed.cluster_of].reshape(copies, n)  # (copies, nodes)
    zeros = torch.zeros(copies)
    n_clusters = zeros.index_add(0, copy_of, torch.ones(len(log_p)))
    episode = Episode(
        space.expand(devices),
        zeros.index_add(0, copy_of, chosen(log_p, action)),
        zeros.index_add(0, copy_of, entropy(log_p)) / n_clusters,
        int(n_clusters[-1]),
    )
    return episode, parsed.embedding.detach()[members]


def allowed_of_clusters(space: ActionSpace, cluster_of: IntArray) -> BoolArray:
    """Devices that all nodes of a cluster may use; any node's where they have none in common.

    `cluster_of` covers one or more copies of the graph, shape (k * n_nodes,).
    """
    shape = (int(cluster_of.max()) + 1, space.problem.n_devices)
    common, some = np.ones(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
    allowed = np.tile(space.allowed, (len(cluster_of) // space.n_groups, 1))
    np.logical_and.at(common, cluster_of, allowed)
    np.logical_or.at(some, cluster_of, allowed)
    return np.where(common.any(axis=1, keepdims=True), common, some)


def latencies(settings: Hsdag, values: FloatArray, placements: IntArray) -> FloatArray:
    """Values as the variant sees them: failures, and homogeneous ones if released, are 1e10."""
    failed = ~np.isfinite(values)
    if settings.variant == "released":
        failed = failed | (placements == placements[:, :1]).all(axis=1)
    return np.where(failed, FAILED_LATENCY, values)


def step_weights(settings: Hsdag, rewards: FloatArray, baseline: MovingAverage) -> FloatArray:
    """What multiplies each step's -log pi: the released scalar, or return minus baseline."""
    if settings.variant == "released":
        scale = released_hsdag_return(rewards, settings.effective_discount)
        return np.full(len(rewards), scale)
    returns = discounted(rewards, settings.effective_discount)
    weights = baseline.advantage(returns)
    baseline.update(returns)
    return weights


def policy_loss(log_probabilities: Tensor, weights: FloatArray) -> Tensor:
    """Sum over steps of -log pi(a_t) * weight_t."""
    return -(log_probabilities * torch.tensor(weights, dtype=log_probabilities.dtype)).sum()


def episode_loss(settings: Hsdag, episode: Episode, weights: FloatArray) -> Tensor:
    """`policy_loss` of the first n steps, weights (n,); ``corrected`` adds the entropy bonus."""
    loss = policy_loss(episode.log_probabilities[: len(weights)], weights)
    if settings.variant == "released":
        return loss
    return loss - settings.entropy_weight * episode.entropy.sum()


def learn(
    settings: Hsdag, problem: Problem, evaluator: Evaluator, rng: np.random.Generator
) -> HsdagPolicy:
    """Learn on one problem until the budget ends (`BudgetSpent`) or patience is lost."""
    problem = with_shared_weights_tied(problem)
    vocabulary, start = kind_vocabulary(problem), None
    if settings.policy:
        settings, vocabulary, start = trained_start(settings, problem)
    reference, stop = reference_value(problem), EarlyStop(settings.patience)
    baseline = MovingAverage(settings.baseline_decay)
    with torch_scope(rng) as generator, scalars_to(settings.tensorboard) as scalars:
        graph = HsdagGraph.of(problem, settings, vocabulary)
        policy = make_policy(settings, graph.data.x.shape[1], problem.n_devices)
        if start is not None:
            start.give_to(policy)
        optimiser = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
        while not stop(evaluator.best_value, evaluator.evaluations):
            episode = run_episode(policy, graph, settings, generator)
            values = evaluator.evaluate_many(episode.placements)
            n = len(values)
            latency = latencies(settings, values, episode.placements[:n])
            weights = step_weights(settings, reference / latency, baseline)
            loss = episode_loss(settings, episode, weights)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            scalars(
                evaluator.evaluations,
                best=evaluator.best_value,
                mean_time=float(np.mean(np.minimum(latency, 10.0 * reference))),
                loss=loss.item(),
                entropy=episode.entropy.mean().item(),
                clusters=float(episode.n_clusters),
            )
    return policy


def make_policy(settings: Hsdag, n_features: int, n_devices: int) -> HsdagPolicy:
    """A fresh network; it stays in training mode, as the released one does."""
    return HsdagPolicy(
        n_features, n_devices, settings.hidden, settings.dropout, settings.parse_rounds
    )


def trained_start(settings: Hsdag, problem: Problem) -> tuple[Hsdag, tuple[str, ...], Checkpoint]:
    """Settings and vocabulary that a policy file was trained with, and its parameters.

    Raises:
        FileFormatError: the file is unusable, or its policy has another number of devices.
    """
    checkpoint = load_checkpoint(settings.policy, "hsdag")
    trained = checkpoint.setting("n_devices")
    if trained != problem.n_devices:
        raise FileFormatError(
            f"policy '{settings.policy}' is for {trained} devices, not {problem.n_devices}; "
            "train one for them"
        )
    same = {name: checkpoint.setting(name) for name in NETWORK_SETTINGS}
    return replace(settings, **same), tuple(checkpoint.setting("vocabulary")), checkpoint
