"""Placeto: state, network and REINFORCE (see `placer.PlacetoPlacer`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components, dijkstra
from torch import Tensor, nn

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.execution_models import Event
from placewright.core.graph import FORWARD
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import BudgetSpent, FileFormatError
from placewright.placers.baselines.single import evaluate_homogeneous
from placewright.placers.learned.placeto.placer import PlacetoPlacer
from placewright.placers.learned.shared.checkpoint import load_checkpoint
from placewright.placers.learned.shared.encoders import perceptron
from placewright.placers.learned.shared.features import (
    group_adjacency,
    group_output_bytes,
    group_seconds,
    levels,
)
from placewright.placers.learned.shared.grouping import ActionSpace
from placewright.placers.learned.shared.learning_scope import clipped_step, learning_scope
from placewright.placers.learned.shared.monitoring import EarlyStop
from placewright.placers.learned.shared.returns import (
    FAILING_TIMES,
    PerStepAverage,
    discounted,
    reference_value,
    relative_times,
)
from placewright.placers.learned.shared.sampling import (
    as_array,
    chosen,
    entropy,
    masked_log_softmax,
    sample,
)
from placewright.simulation.evaluator import Evaluator

SMALLEST_DEVIATION = 1e-6  # of advantages, in reference times
AGGREGATORS = "relu"  # entry of a policy file for the last layer of aggregators


@dataclass(frozen=True, eq=False)
class PlacetoGraph:
    """The fixed part of the state of one problem, over n nodes.

    A node is a group. In a training step, the backward ops of a group (and its update) are a node
    of their own, which follows the group's device, as in the published training graphs: nothing is
    decided there.
    """

    space: ActionSpace  # groups and their devices
    group_of: IntArray  # group of each node, shape (n,)
    decided: IntArray  # the node at which each group's device is decided, shape (n_groups,)
    nodes: Grouping  # units -> nodes
    adjacency: Tensor  # 1 if a row feeds a column, shape (n, n)
    # ancestors, descendants, parallel: 1 if the column is one of the row's, shape (n, n)
    ancestors: Tensor
    descendants: Tensor
    parallel: Tensor
    # cost per device and output bytes, each by its maximum, shape (n, n_devices + 1)
    fixed: FloatArray
    # placement of all units -> start seconds of each group, shape (n,)
    starts: Callable[[IntArray], FloatArray]

    @classmethod
    def of(cls, space: ActionSpace, evaluator: Evaluator) -> PlacetoGraph:
        """Compute the fixed part of `space`, whose groups are numbered in topological order."""
        problem = space.problem
        nodes, group_of, decided = policy_nodes(space)
        links = ordered_links(problem, nodes)
        reach = np.isfinite(dijkstra(links, unweighted=True))
        np.fill_diagonal(reach, False)
        rest = ~(reach | reach.T)
        np.fill_diagonal(rest, False)
        seconds = group_seconds(problem, nodes)
        seconds = np.where(np.isfinite(seconds), seconds, 0.0)
        columns = [seconds, group_output_bytes(problem, nodes)[:, None]]
        return cls(
            space,
            group_of,
            decided,
            nodes,
            torch.tensor(links, dtype=torch.float32),
            _float(reach.T),
            _float(reach),
            _float(rest),
            np.concatenate([column / max(column.max(), 1e-30) for column in columns], axis=1),
            lambda device_of: start_seconds(problem, nodes, evaluator, device_of),
        )

    def features(self, devices: IntArray, current: int, done: BoolArray) -> FloatArray:
        """State rows: costs, bytes, done, is-current, start time, device; shape (n, d).

        Start times are shifted by the current node's and divided by their maximum, if it is above
        0: earlier nodes may be below -1.

        Args:
            devices: of each group, shape (n_groups,).
            current: the group whose device is decided now.
            done: groups that were decided, shape (n_groups,).
        """
        node = self.decided[current]
        start = self.starts(self.space.expand(devices))
        start = start - start[node]
        start = start / (start.max() or 1.0)
        is_current = np.arange(len(start)) == node
        of_nodes = devices[self.group_of]
        one_hot = of_nodes[:, None] == np.arange(self.space.problem.n_devices)
        columns = [self.fixed, done[self.group_of], is_current, start, one_hot]
        return np.column_stack(columns).astype(np.float32)


def policy_nodes(space: ActionSpace) -> tuple[Grouping, IntArray, IntArray]:
    """The nodes of the policy's graph (see `PlacetoGraph`).

    Forward nodes come first, in the order of their groups, then the others in the reverse order.

    Returns:
        Units -> nodes; the group of each node; the node at which each group is decided.
    """
    problem, group_of_unit = space.problem, space.grouping.group_of
    is_late = problem.unit_graph.op_phases != FORWARD
    ahead = np.full((2, space.n_groups), False)
    np.logical_or.at(ahead, (is_late.astype(np.int64), group_of_unit), True)
    groups = np.arange(space.n_groups)
    forward, late = groups[ahead[0]], groups[ahead[1]][::-1]
    number = np.full((2, space.n_groups), -1, dtype=np.int64)
    number[0, forward] = np.arange(len(forward))
    number[1, late] = len(forward) + np.arange(len(late))
    decided = np.where(ahead[0], number[0], number[1])
    nodes = Grouping(number[is_late.astype(np.int64), group_of_unit])
    return nodes, np.concatenate([forward, late]), decided


def ordered_links(problem: Problem, nodes: Grouping) -> FloatArray:
    """1 if a row feeds a column, shape (n, n), without a cycle.

    If the edges close a cycle, those against the order of the nodes are left out.
    """
    links: FloatArray = (group_adjacency(problem, nodes) > 0).astype(np.float64)
    n_components, _ = connected_components(links, connection="strong")
    return links if n_components == len(links) else np.asarray(np.triu(links))


def start_seconds(
    problem: Problem, nodes: Grouping, evaluator: Evaluator, device_of: IntArray
) -> FloatArray:
    """Start of each node's first unit, in seconds: simulated, or by longest path.

    The longest path replaces the simulation outside `event`, and for infeasible placements, which
    have no timeline.
    """
    placement = Placement.of(device_of)
    is_simulated = isinstance(problem.execution_model, Event)
    if is_simulated and evaluator.simulator.violation(placement) is None:
        begin = evaluator.simulator.timeline(placement).start
    else:
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
        self.n_devices, self.rounds, self.embedding = n_devices, rounds, embedding
        self.aggregation = aggregation
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
        """Logits of the current node's device.

        Args:
            features: shape (batch, n, d).
            current: node of each state, shape (batch,).
        """
        own = self.transform(features)  # (batch, n, d)
        sides = own.expand(2, -1, -1, -1)
        if self.embedding == "messages":
            sides = self._passed(graph, own)
        both = torch.cat(sides.unbind(0), dim=-1)  # (batch, n, 2 d)
        parts = [both[torch.arange(len(current)), current]]  # (batch, 2 d)
        relations = (graph.ancestors, graph.descendants, graph.parallel)
        if self.embedding == "sum":
            nothing = torch.zeros_like(graph.parallel)
            relations = (sum(relations, nothing), nothing, nothing)
        for index, relation in enumerate(relations):
            weights = self._shares(relation[current]).unsqueeze(1)  # (batch, 1, n)
            total = (weights @ self.gathers[index](both)).squeeze(1)
            parts.append(self.summaries[index](total))
        logits: Tensor = self.classifier(torch.cat(parts, dim=-1))  # (batch, devices)
        return logits

    def _shares(self, links: Tensor) -> Tensor:
        """Weights of an aggregation over the last axis."""
        if self.aggregation == "sum":
            return links
        return links / links.sum(dim=-1, keepdim=True).clamp(min=1.0)

    def _passed(self, graph: PlacetoGraph, own: Tensor) -> Tensor:
        """Both directions of message passing at once, shape (2, batch, n, d)."""
        batch, n, d = own.shape
        links = torch.stack([graph.adjacency.T, graph.adjacency])  # (2, n, n)
        has_neighbour = (links.sum(dim=2) > 0).float()[:, None, :, None]
        links = self._shares(links)
        layers = [
            _stacked(sides, index) for sides in (self.messages, self.updates) for index in (0, 2)
        ]
        x = own.expand(2, -1, -1, -1)

        def through(value: Tensor, first: int) -> Tensor:
            flat = value.reshape(2, batch * n, d)
            for weight, bias in layers[first : first + 2]:
                flat = torch.relu(torch.baddbmm(bias, flat, weight))
            return flat.view(2, batch, n, d)

        for _ in range(self.rounds):
            x = has_neighbour * through(links[:, None] @ through(x, 0), 2) + own
        return x


def _stacked(sides: nn.ModuleList, index: int) -> tuple[Tensor, Tensor]:
    """Weight (2, d, d) and bias (2, 1, d) of one layer of both directions."""
    pairs = [side.get_submodule(str(index)) for side in sides]
    weight = torch.stack([layer.get_parameter("weight").T for layer in pairs])
    return weight, torch.stack([layer.get_parameter("bias") for layer in pairs]).unsqueeze(1)


def _aggregator(width: int) -> nn.Sequential:
    """One half of an aggregator: a hidden layer, and a ReLU behind both layers."""
    return nn.Sequential(*perceptron(width, width, width), nn.ReLU())


@dataclass(frozen=True, eq=False)
class Episode:
    """Data of one episode of all workers; T = groups, W = workers, n = nodes."""

    features: Tensor  # shape (T, W, n, d)
    actions: Tensor  # shape (T, W)
    rewards: FloatArray  # shape (T, W)


def run_episode(
    policy: PlacetoPolicy,
    graph: PlacetoGraph,
    evaluator: Evaluator,
    devices: IntArray,
    generator: torch.Generator,
) -> Episode:
    """Visit every group once from first placements `devices` (workers, T); each step is timed."""
    n_workers, n = devices.shape
    reference = reference_value(graph.space.problem)
    allowed = torch.tensor(graph.space.allowed)
    before = _times(evaluator, graph.space.expand(devices), reference)
    states, actions, rewards = [], [], []
    for group in range(n):
        done = np.arange(n) < group
        state = torch.tensor(np.stack([graph.features(row, group, done) for row in devices]))
        current = torch.full((n_workers,), int(graph.decided[group]))
        with torch.no_grad():
            log_p = masked_log_softmax(policy(graph, state, current), allowed[group])
        action = sample(log_p, generator)
        devices = devices.copy()
        devices[:, group] = as_array(action)
        after = _times(evaluator, graph.space.expand(devices), reference)
        states.append(state)
        actions.append(action)
        rewards.append(before - after)
        before = after
    evaluator.record_samples(np.where(after < FAILING_TIMES, after * reference, np.inf))
    return Episode(torch.stack(states), torch.stack(actions), np.stack(rewards))


def greedy_placement(policy: PlacetoPolicy, graph: PlacetoGraph) -> IntArray:
    """Argmax actions through one episode without a query; devices of all units."""
    devices = graph.space.allowed.argmax(axis=1)
    for group in range(len(devices)):
        state = graph.features(devices, group, np.arange(len(devices)) < group)
        current = torch.tensor([int(graph.decided[group])])
        with torch.no_grad():
            logits = policy(graph, torch.tensor(state)[None], current)[0]
        allowed = torch.tensor(graph.space.allowed[group])
        devices[group] = int(masked_log_softmax(logits, allowed).argmax())
    return graph.space.expand(devices)


def update(
    settings: PlacetoPlacer,
    policy: PlacetoPolicy,
    graph: PlacetoGraph,
    episode: Episode,
    baseline: PerStepAverage,
    progress: float,
) -> tuple[Tensor, float]:
    """REINFORCE loss with entropy bonus, gradients summed over workers; the mean entropy."""
    returns = discounted(episode.rewards, 1.0)  # (T, W)
    if settings.reward == "terminal":
        returns = np.tile(returns[0], (len(returns), 1))
    baseline.update(returns.mean(axis=1))  # first: the current episode is part of the mean
    advantage = returns - baseline.value[:, None]
    if settings.normalised:
        advantage = advantage / max(baseline.deviation, SMALLEST_DEVIATION)
    steps, workers = episode.actions.shape
    states = episode.features.flatten(0, 1)  # (T * W, n, d)
    group = torch.arange(steps).repeat_interleave(workers)
    current, allowed = torch.tensor(graph.decided)[group], torch.tensor(graph.space.allowed)[group]
    log_p = masked_log_softmax(policy(graph, states, current), allowed)
    weights = torch.tensor(advantage, dtype=torch.float32).flatten()
    spread = entropy(log_p)
    score = (
        weights * chosen(log_p, episode.actions.flatten())
        + settings.entropy_weight * (1.0 - progress) * spread
    )
    return -score.sum() / steps, spread.mean().item()


def learn(
    settings: PlacetoPlacer, space: ActionSpace, evaluator: Evaluator, rng: np.random.Generator
) -> PlacetoPolicy:
    """Learn on one problem until the budget ends (`BudgetSpent`) or patience is lost."""
    stop, baseline = EarlyStop(settings.patience), PerStepAverage(settings.baseline_window)
    with learning_scope(settings.tensorboard, evaluator, rng) as (generator, scalars):
        policy = PlacetoPolicy(
            space.problem.n_devices, settings.rounds, settings.embedding, settings.aggregation
        )
        graph = PlacetoGraph.of(space, evaluator)
        if settings.homogeneous_starts:
            evaluate_homogeneous(graph.space.problem, evaluator)
        if settings.policy:
            load_weights(policy, settings.policy)
            evaluator.evaluate(greedy_placement(policy, graph))
        optimiser = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
        queries = settings.workers * (graph.space.n_groups + 1)
        n_updates = (evaluator.budget.evaluations or settings.horizon * queries) / queries
        episode_number = 0
        while not stop(evaluator.best_value, evaluator.evaluations):
            progress = min(1.0, episode_number / n_updates)
            if settings.initial == "varied" or episode_number == 0:
                first = first_placements(settings, graph, rng)
            episode = run_episode(policy, graph, evaluator, first, generator)
            optimiser.param_groups[0]["lr"] = settings.learning_rate_at(progress)
            loss, spread = update(settings, policy, graph, episode, baseline, progress)
            if settings.updates:
                clipped_step(policy, optimiser, loss, settings.clip_norm)
            episode_number += 1
            gain = float(episode.rewards.sum(axis=0).mean())
            scalars(
                evaluator.evaluations,
                best=evaluator.best_value,
                gain=gain,
                loss=loss.item(),
                entropy=spread,
            )
    return policy


def first_placements(
    settings: PlacetoPlacer, graph: PlacetoGraph, rng: np.random.Generator
) -> IntArray:
    """First placement of each worker's episode, the same for all, shape (workers, n)."""
    allowed = graph.space.allowed
    draws = np.where(allowed, rng.random(allowed.shape), -1.0)
    first = allowed if settings.initial == "zero" else draws
    return np.tile(first.argmax(axis=1), (settings.workers, 1))


def load_weights(policy: PlacetoPolicy, path: str) -> None:
    """Load the parameters of a policy file.

    Raises:
        FileFormatError: the file is unusable, or its policy has another number of devices.
    """
    checkpoint = load_checkpoint(path, "placeto")
    checkpoint.setting("aggregators")  # files without it are of another network
    trained, rounds = checkpoint.setting("n_devices"), checkpoint.setting("rounds")
    embedding = checkpoint.metadata.get("embedding", "messages")  # files before had no choice
    aggregation = checkpoint.metadata.get("aggregation", "sum")
    theirs = (trained, rounds, embedding, aggregation)
    ours = (policy.n_devices, policy.rounds, policy.embedding, policy.aggregation)
    if theirs != ours:
        said = [f"{d} devices, {r} rounds, {e} and {a}" for d, r, e, a in (theirs, ours)]
        raise FileFormatError(
            f"policy '{path}' is for {said[0]}, not {said[1]}; train one for them"
        )
    checkpoint.give_to(policy)


def _times(evaluator: Evaluator, placements: IntArray, reference: float) -> FloatArray:
    values = evaluator.evaluate_many(placements)
    if len(values) < len(placements):
        raise BudgetSpent
    return relative_times(values, reference)


def _float(matrix: BoolArray) -> Tensor:
    return torch.tensor(matrix.astype(np.float32))
