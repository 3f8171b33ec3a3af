"""Placeto: state, network and REINFORCE (see `placer.PlacetoPlacer`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components, dijkstra
from torch import Tensor, nn

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.execution_models import Event, Placeto
from placewright.core.graph import FORWARD
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import FileFormatError, InfeasibleError
from placewright.placers.baselines.simple import evaluate_homogeneous
from placewright.placers.learned.placeto.placer import PlacetoPlacer
from placewright.placers.learned.shared.checkpoint import load_checkpoint
from placewright.placers.learned.shared.encoders import perceptron
from placewright.placers.learned.shared.group_inputs import (
    group_adjacency,
    group_output_bytes,
    levels,
)
from placewright.placers.learned.shared.learning_scope import (
    chosen,
    descend,
    entropy,
    learning_scope,
    masked_log_softmax,
    sample,
)
from placewright.placers.learned.shared.returns import (
    PerStepAverage,
    discounted,
    reference_value,
    relative_times,
)
from placewright.placers.learned.shared.searching import EarlyStop
from placewright.placers.learned.shared.training_episodes import (
    EpisodeResult,
    Trainee,
    require_one_device_count,
)
from placewright.placers.legal import ActionSpace
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator

SMALLEST_DEVIATION = 1e-6  # of advantages, in reference times
AGGREGATORS = "relu"  # entry of a policy file for the last layer of aggregators


@dataclass(frozen=True, eq=False)
class PlacetoGraph:
    """The fixed part of the state of one problem, over n nodes.

    A node is a group. In a training step, the backward ops of a group (and its update) are a node
    of their own, which follows the group's device: nothing is decided there. (The published graphs
    are not in the authors' repository, and their code visits every node.)
    """

    space: ActionSpace  # groups and their devices
    group_of: IntArray  # group of each node, shape (n,)
    decided: IntArray  # the node at which each group's device is decided, shape (n_groups,)
    adjacency: Tensor  # 1 if a row feeds a column, shape (n, n)
    # ancestors, descendants, parallel: 1 if the column is one of the row's, shape (n, n)
    ancestors: Tensor
    descendants: Tensor
    parallel: Tensor
    # cost per device and output bytes, each by its maximum, shape (n, n_devices + 1)
    fixed: FloatArray
    # placement of all units -> start seconds of each node, shape (n,)
    starts: Callable[[IntArray], FloatArray]

    @classmethod
    def of(cls, space: ActionSpace, evaluator: Evaluator) -> PlacetoGraph:
        """Compute the fixed part of `space`, whose groups are numbered in topological order."""
        problem = space.problem
        nodes, group_of = policy_nodes(space)
        links = ordered_links(problem, nodes)
        reach = np.isfinite(dijkstra(links, unweighted=True))
        np.fill_diagonal(reach, False)
        rest = ~(reach | reach.T)
        np.fill_diagonal(rest, False)
        seconds = nodes.sums(problem.costs.seconds)  # inf if unsupported
        seconds = np.where(np.isfinite(seconds), seconds, 0.0)
        columns = [seconds, group_output_bytes(problem, nodes)[:, None]]
        return cls(
            space,
            group_of,
            np.unique(group_of, return_index=True)[1],  # the first node of each group
            _float(links),
            _float(reach.T),
            _float(reach),
            _float(rest),
            np.concatenate([column / max(column.max(), 1e-30) for column in columns], axis=1),
            lambda device_of: start_seconds(problem, nodes, evaluator, device_of),
        )

    def features(self, devices: IntArray, current: int) -> FloatArray:
        """State rows: costs, bytes, done, is-current, start time, device; shape (n, d).

        Start times are shifted by the current node's and divided by their maximum, if it is above
        0: earlier nodes may be below -1.

        Args:
            devices: of each group, shape (n_groups,).
            current: the group whose device is decided now; those before it are done.
        """
        node = self.decided[current]
        start = self.starts(self.space.expand(devices))
        start = start - start[node]
        start = start / (start.max() or 1.0)
        is_current = np.arange(len(start)) == node
        one_hot = devices[self.group_of][:, None] == np.arange(self.space.problem.n_devices)
        columns = [self.fixed, self.group_of < current, is_current, start, one_hot]
        return np.column_stack(columns).astype(np.float32)


def _float(matrix: NDArray[Any]) -> Tensor:
    return torch.tensor(matrix, dtype=torch.float32)


def policy_nodes(space: ActionSpace) -> tuple[Grouping, IntArray]:
    """Units -> nodes of the policy's graph, and the group of each node (see `PlacetoGraph`).

    Forward nodes come first, in the order of their groups, then the others in the reverse order.
    """
    groups, n = space.grouping.group_of, space.n_groups
    is_late = space.problem.unit_graph.op_phases != FORWARD
    keys, node_of = np.unique(np.where(is_late, 2 * n - 1 - groups, groups), return_inverse=True)
    return Grouping(node_of.astype(np.int64)), np.where(keys < n, keys, 2 * n - 1 - keys)


def ordered_links(problem: Problem, nodes: Grouping) -> FloatArray:
    """1 if a row feeds a column, shape (n, n), without a cycle.

    If the edges close a cycle, those against the order of the nodes are left out.
    """
    links: FloatArray = (group_adjacency(problem, nodes) > 0).astype(np.float64)
    n_components, _ = connected_components(links, connection="strong")
    return links if n_components == len(links) else np.asarray(np.triu(links))


def simulated_starts(simulator: Simulator, placement: Placement) -> FloatArray | None:
    """Start of each unit in seconds, None without a simulation (see `start_seconds`)."""
    if not isinstance(simulator.problem.execution_model, Event | Placeto):
        return None
    try:
        found = simulator.explain(placement)
    except InfeasibleError:
        return None
    return found.starts if found.timeline is None else found.timeline.start


def start_seconds(
    problem: Problem, nodes: Grouping, evaluator: Evaluator, device_of: IntArray
) -> FloatArray:
    """Start of each node's first unit, in seconds: simulated, or by longest path.

    The longest path replaces the simulation outside `event` and `placeto`, and for infeasible
    placements, which have no start times.
    """
    begin = simulated_starts(evaluator.simulator, Placement.of(device_of))
    if begin is None:
        seconds = problem.costs.seconds[np.arange(problem.n_units), device_of]
        graph = problem.unit_graph
        begin = levels(graph.successors, graph.topological_order, seconds)
    first = np.full(nodes.n_groups, np.inf)
    np.minimum.at(first, nodes.group_of, begin)
    return np.where(np.isfinite(first), first, 0.0)


class PlacetoPolicy(nn.Module):
    """Message passing both ways, three aggregations, classifier for the current node."""

    def __init__(
        self, n_devices: int, rounds: int, embedding: str = "messages", aggregation: str = "sum"
    ) -> None:
        super().__init__()
        d = 4 + 2 * n_devices
        self.rounds, self.embedding, self.aggregation = rounds, embedding, aggregation
        self.transform = perceptron(d, d, d, d)
        self.messages = nn.ModuleList(_aggregator(d) for _ in range(2))
        self.updates = nn.ModuleList(_aggregator(d) for _ in range(2))
        self.gathers = nn.ModuleList(_aggregator(2 * d) for _ in range(3))
        self.summaries = nn.ModuleList(_aggregator(2 * d) for _ in range(3))
        self.classifier = perceptron(8 * d, 16 * d, 8 * d, n_devices)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, graph: PlacetoGraph, features: Tensor, current: Tensor) -> Tensor:
        """Logits of the current node's device, shape (batch, n_devices).

        Args:
            features: shape (batch, n, d).
            current: node of each state, shape (batch,).
        """
        both = self.embed(graph, features)  # (batch, n, 2 d)
        parts = [both[torch.arange(len(current)), current]]  # (batch, 2 d)
        relations = (graph.ancestors, graph.descendants, graph.parallel)
        if self.embedding == "sum":
            nothing = torch.zeros_like(graph.parallel)
            relations = (sum(relations, nothing), nothing, nothing)
        for index, relation in enumerate(relations):
            weights = self._shares(relation[current]).unsqueeze(1)  # (batch, 1, n)
            total = (weights @ self.gathers[index](both)).squeeze(1)
            parts.append(self.summaries[index](total))
        logits: Tensor = self.classifier(torch.cat(parts, dim=-1))
        return logits

    def embed(self, graph: PlacetoGraph, features: Tensor) -> Tensor:
        """Messages up and down the graph from each node's features, shape (batch, n, 2 d)."""
        own = self.transform(features)  # (batch, n, d)
        sides = [own, own]
        for side, links in enumerate((graph.adjacency.T, graph.adjacency)):
            has_neighbour, shares = links.any(dim=1, keepdim=True), self._shares(links)
            for _ in range(self.rounds if self.embedding == "messages" else 0):
                heard = self.updates[side](shares @ self.messages[side](sides[side]))
                sides[side] = has_neighbour * heard + own
        return torch.cat(sides, dim=-1)

    def _shares(self, links: Tensor) -> Tensor:
        """Weights of an aggregation over the last axis."""
        if self.aggregation == "sum":
            return links
        return links / links.sum(dim=-1, keepdim=True).clamp(min=1.0)


def _aggregator(width: int) -> nn.Sequential:
    """One half of an aggregator: a hidden layer, and a ReLU behind both layers."""
    return nn.Sequential(*perceptron(width, width, width), nn.ReLU())


@dataclass(frozen=True, eq=False)
class Episode:
    """One visit to every group."""

    features: Tensor  # shape (n_groups, n, d)
    actions: Tensor  # shape (n_groups,)
    # of the first placement, and of that after each step, over the reference; shape (n_groups + 1,)
    times: FloatArray

    @property
    def rewards(self) -> FloatArray:
        """The fall in time of each step, shape (n_groups,)."""
        return -np.diff(self.times)

    def returns(self, reward: str) -> FloatArray:
        """The return of each step with a reward of `placer.REWARDS`, shape (n_groups,)."""
        returns = discounted(self.rewards, 1.0)
        return np.full_like(returns, returns[0]) if reward == "terminal" else returns


def run_episode(
    policy: PlacetoPolicy,
    graph: PlacetoGraph,
    evaluator: Evaluator,
    devices: IntArray,
    generator: torch.Generator,
) -> Episode:
    """Visit every group once from first placement `devices` (n_groups,); each step is timed."""
    reference, devices = reference_value(graph.space.problem), devices.copy()
    allowed = torch.tensor(graph.space.allowed)

    def value_of_placement() -> FloatArray:
        return evaluator.evaluate_many(graph.space.expand(devices))

    values, states, actions = [value_of_placement()], [], []
    for group, node in enumerate(graph.decided.tolist()):
        state = torch.tensor(graph.features(devices, group))[None]
        with torch.no_grad():
            log_p = masked_log_softmax(policy(graph, state, torch.tensor([node])), allowed[group])
        action = sample(log_p, generator)
        devices[group] = int(action)
        values.append(value_of_placement())
        states.append(state)
        actions.append(action)
    # A test of learning reads last placements: those before are partly the first one of all.
    evaluator.record_samples(values[-1])
    times = relative_times(np.concatenate(values), reference)
    return Episode(torch.cat(states), torch.cat(actions), times)


def greedy_placement(policy: PlacetoPolicy, graph: PlacetoGraph, devices: IntArray) -> IntArray:
    """Argmax actions through one episode without a query; devices of all units.

    Args:
        devices: the first placement, shape (n_groups,).
    """
    devices, allowed = devices.copy(), torch.tensor(graph.space.allowed)
    for group, node in enumerate(graph.decided.tolist()):
        state = torch.tensor(graph.features(devices, group))[None]
        with torch.no_grad():
            logits = policy(graph, state, torch.tensor([node]))[0]
        devices[group] = int(masked_log_softmax(logits, allowed[group]).argmax())
    return graph.space.expand(devices)


def episode_loss(
    settings: PlacetoPlacer,
    policy: PlacetoPolicy,
    graph: PlacetoGraph,
    episode: Episode,
    baseline: PerStepAverage,
    progress: float,
) -> tuple[Tensor, float]:
    """REINFORCE loss with entropy bonus; the mean entropy. The episode enters `baseline`."""
    returns = episode.returns(settings.reward)
    baseline.update(returns)  # first: the current episode is part of the mean
    advantage = returns - baseline.value
    if settings.normalised:
        advantage = advantage / max(baseline.deviation, SMALLEST_DEVIATION)
    logits = policy(graph, episode.features, torch.tensor(graph.decided))
    log_p = masked_log_softmax(logits, torch.tensor(graph.space.allowed))
    spread = entropy(log_p)
    weights = torch.tensor(advantage, dtype=torch.float32)
    bonus = settings.entropy_weight_at(progress) * spread
    score = weights * chosen(log_p, episode.actions) + bonus
    return -score.sum() / len(score), spread.mean().item()


def learn(
    settings: PlacetoPlacer, space: ActionSpace, evaluator: Evaluator, rng: np.random.Generator
) -> PlacetoPolicy:
    """Learn on one problem until the budget is spent (`BudgetSpent`) or `patience` runs out."""
    stop, baseline = EarlyStop(settings.patience), PerStepAverage(settings.baseline_window)
    with learning_scope(settings.tensorboard, evaluator, rng) as (generator, report):
        policy = PlacetoPolicy(space.problem.n_devices, **settings.network)
        graph = PlacetoGraph.of(space, evaluator)
        if settings.homogeneous_starts:
            evaluate_homogeneous(space.problem, evaluator)
        first = space.draw(1, rng)[0]  # all episodes start from it
        if settings.policy:
            load_weights(settings, policy, space.problem.n_devices)
            evaluator.evaluate(greedy_placement(policy, graph, first))
        optimiser = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
        queries = space.n_groups + 1  # of an episode
        n_updates = (evaluator.budget.evaluations or settings.horizon * queries) / queries
        episode_number = 0
        while not stop(evaluator.best_value, evaluator.evaluations):
            progress = min(1.0, episode_number / n_updates)
            episode = run_episode(policy, graph, evaluator, first, generator)
            optimiser.param_groups[0]["lr"] = settings.learning_rate_at(progress)
            loss, spread = episode_loss(settings, policy, graph, episode, baseline, progress)
            if settings.updates:
                descend(policy, optimiser, loss, settings.clip_norm)
            episode_number += 1
            report(gain=float(episode.rewards.sum()), loss=loss.item(), entropy=spread)
    return policy


def load_weights(settings: PlacetoPlacer, policy: PlacetoPolicy, n_devices: int) -> None:
    """Load the parameters of a policy file.

    Raises:
        FileFormatError: the file is unusable, or its policy has another number of devices.
    """
    checkpoint = load_checkpoint(settings.policy, "placeto")
    checkpoint.setting("aggregators")  # files without it are of another network
    theirs = {name: checkpoint.setting(name) for name in ("n_devices", "rounds")}
    for name, before in (("embedding", "messages"), ("aggregation", "sum")):
        theirs[name] = checkpoint.metadata.get(name, before)  # files before had no choice
    ours = {"n_devices": n_devices, **settings.network}
    if theirs != ours:
        form = "{n_devices} devices, {rounds} rounds, {embedding} and {aggregation}"
        raise FileFormatError(
            f"policy '{settings.policy}' is for {form.format(**theirs)}, not "
            f"{form.format(**ours)}; train one for them"
        )
    checkpoint.give_to(policy)


def trainee(settings: PlacetoPlacer, problems: Sequence[Problem]) -> Trainee:
    """A policy for graphs on the same number of devices; every graph has its own baseline.

    Raises:
        InputError: the problems differ in their number of devices.
    """
    n_devices = require_one_device_count("placeto", problems)
    policy = PlacetoPolicy(n_devices, **settings.network)
    spaces = [settings.actions(problem) for problem in problems]
    evaluators = [Evaluator(space.problem) for space in spaces]
    graphs = [PlacetoGraph.of(*pair) for pair in zip(spaces, evaluators, strict=True)]
    baselines = [PerStepAverage(settings.baseline_window) for _ in problems]

    def one(graph: int, progress: float, generator: torch.Generator) -> EpisodeResult:
        first = spaces[graph].draw(1, np.random.default_rng(graph))[0]
        episode = run_episode(policy, graphs[graph], evaluators[graph], first, generator)
        loss, _ = episode_loss(settings, policy, graphs[graph], episode, baselines[graph], progress)
        return EpisodeResult(loss, float(episode.times.mean()), episode.returns(settings.reward))

    return Trainee(
        policy,
        {"n_devices": n_devices, **settings.network, "aggregators": AGGREGATORS},
        one,
        learning_rate=settings.learning_rate_at,
        clip_norm=settings.clip_norm,
        baselines=baselines,
    )
