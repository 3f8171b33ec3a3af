"""Zero-shot: graph network, pair scores, decoding, from top to bottom (see `ZeroShot`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from placewright.core.arrays import BoolArray, FloatArray, IntArray, positions_in
from placewright.core.problem import Problem
from placewright.errors import BudgetSpent
from placewright.placers.learned.shared.checkpoint import load_checkpoint
from placewright.placers.learned.shared.encoders import perceptron
from placewright.placers.learned.shared.group_inputs import group_edges, levels
from placewright.placers.learned.shared.grouping import edge_list, mean_seconds
from placewright.placers.learned.shared.learning_scope import (
    torch_scope,
)
from placewright.placers.legal import ActionSpace
from placewright.placers.shared_weights import with_shared_weights_tied

SHIPPED = Path(__file__).parent / "policies" / "zero_shot.safetensors"
ROUNDS = 3
FINISH_WEIGHT = 4.0  # of log(1 + lateness / scale) in the score of a fresh policy


class ZeroShotPolicy(nn.Module):
    """Unit embedding by `ROUNDS` rounds of SAGE both ways; score of a pair by a perceptron."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.first = nn.Linear(NODE_FEATURES, hidden)
        self.down = nn.ModuleList(SAGEConv(hidden, hidden) for _ in range(ROUNDS))
        self.up = nn.ModuleList(SAGEConv(hidden, hidden) for _ in range(ROUNDS))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(ROUNDS))
        self.score = perceptron(hidden + PAIR_FEATURES, hidden, hidden, 1)
        last = self.score[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)  # a fresh policy takes the earliest finish
        nn.init.zeros_(last.bias)

    def embed(self, features: Tensor, edges: Tensor) -> Tensor:
        """Embedding of each unit: (n_units, NODE_FEATURES), (2, n_edges) -> (n_units, hidden)."""
        x = torch.relu(self.first(features))
        for down, up, norm in zip(self.down, self.up, self.norms, strict=True):
            x = norm(x + torch.relu(down(x, edges) + up(x, edges.flip(0))))
        return x

    def scores(self, embedding: Tensor, pairs: Tensor) -> Tensor:
        """Scores (..., D) of pairs (..., D, PAIR_FEATURES) given embeddings (..., hidden)."""
        shape = (*pairs.shape[:-1], self.hidden)
        wide = embedding.unsqueeze(-2).expand(shape)
        learned: Tensor = self.score(torch.cat([wide, pairs], dim=-1)).squeeze(-1)
        return learned - FINISH_WEIGHT * pairs[..., 0]


def policy_inputs(problem: ListProblem) -> tuple[Tensor, Tensor]:
    """Node features and edges as tensors."""
    from placewright.core.grouping import Grouping

    edges, _ = group_edges(problem.problem, Grouping.identity(problem.problem.n_units))
    return torch.tensor(problem.node_features()).float(), torch.tensor(edges)


def decode(
    policy: ZeroShotPolicy,
    problem: ListProblem,
    temperatures: FloatArray,
    rng: np.random.Generator,
    *,
    seen: Callable[[FloatArray, BoolArray], None] = lambda pairs, allowed: None,
    is_over: Callable[[], bool] = lambda: False,
) -> IntArray:
    """Place unit by unit, k = len(temperatures) placements at once; temperature 0 is greedy.

    Args:
        rng: of samples; greedy placements alone draw nothing.
        seen: called at each step of `ListProblem.order` with the features of its pairs, shape
            (k, D, PAIR_FEATURES), and the allowed devices, shape (k, D).
        is_over: called at each step; True ends the work.

    Returns:
        Placements, shape (k, n_units).

    Raises:
        BudgetSpent: `is_over` said so.
    """
    with torch.no_grad():
        embedding = policy.embed(*policy_inputs(problem)).numpy()
    layers = [
        (layer.weight.detach().numpy().T, layer.bias.detach().numpy())
        for layer in policy.score
        if isinstance(layer, nn.Linear)
    ]
    state, draws = ListState(problem, len(temperatures)), temperatures.any()
    for unit in problem.order.tolist():
        if is_over():
            raise BudgetSpent
        pairs, finish = state.features(unit)
        wide = np.broadcast_to(embedding[unit], (*pairs.shape[:-1], embedding.shape[1]))
        x = np.concatenate([wide, pairs], axis=-1)
        for index, (weight, bias) in enumerate(layers):
            x = x @ weight + bias
            if index < len(layers) - 1:
                x = np.maximum(x, 0.0)
        allowed = state.allowed(unit)
        score = np.where(allowed, x[..., 0] - FINISH_WEIGHT * pairs[..., 0], -np.inf)
        if draws:
            score = score + temperatures[:, None] * rng.gumbel(size=score.shape)
        state.place(unit, score.argmax(axis=1), finish)
        seen(pairs, allowed)
    return state.devices


def candidate_placements(
    problem: Problem,
    policy_file: str,
    n_candidates: int,
    temperature: float,
    rng: np.random.Generator,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[IntArray]:
    """One device of each kind of cost column, earliest finish, greedy, then samples.

    In the order of the time that they take: each is decoded when the ones before it are in use. The
    greedy placement and the one by earliest finish are always among them, if there are two.

    Args:
        is_over: see `decode`.
    """
    problem = with_shared_weights_tied(problem)
    with torch_scope(rng):
        policy = load_policy(policy_file)
        untrained = ZeroShotPolicy(1)  # takes the earliest finish
    homogeneous = one_device_placements(problem)[: max(0, n_candidates - 2)]
    yield from homogeneous
    temperatures = np.full(n_candidates, temperature)
    temperatures[0] = 0.0
    left, listed = n_candidates - len(homogeneous), ListProblem(problem)
    for network, of_rows in ((untrained, np.zeros(min(1, left - 1))), (policy, temperatures)):
        if len(of_rows) == 0:
            continue
        with torch_scope(np.random.default_rng(0)):  # of which decoding draws nothing
            placements = decode(network, listed, of_rows, rng, is_over=is_over)
        yield from placements[:left]
        left -= len(placements)


def one_device_placements(problem: Problem) -> list[IntArray]:
    """All units on one device that may run them all; the largest memory of each cost column."""
    allowed = np.flatnonzero(problem.allowed_by_class.all(axis=0))
    if not len(allowed):
        return []
    by_memory = allowed[np.argsort(-problem.cluster.memory_bytes[allowed], kind="stable")]
    _, first = np.unique(problem.costs.seconds[:, by_memory], axis=1, return_index=True)
    totals = problem.costs.seconds.sum(axis=0)
    kinds = sorted(by_memory[first].tolist(), key=lambda device: (totals[device], device))
    return [np.full(problem.n_units, device, dtype=np.int64) for device in kinds]


def load_policy(path: str) -> ZeroShotPolicy:
    """A trained policy; "" is the shipped one.

    Raises:
        FileFormatError: the file is unusable.
    """
    checkpoint = load_checkpoint(path or SHIPPED, "zero-shot")
    hidden = checkpoint.count("hidden")
    checkpoint.check_network(lambda: ZeroShotPolicy(hidden))
    policy = ZeroShotPolicy(hidden)
    checkpoint.give_to(policy)
    return policy


PAIR_FEATURES = 10
NODE_FEATURES = 8


@dataclass(frozen=True, eq=False)
class ListProblem:
    """Arrays of a problem that list scheduling reads, each computed once."""

    problem: Problem  # the problem to solve

    @cached_property
    def seconds(self) -> FloatArray:
        """Costs, with 10 x the row's largest finite cost where unsupported, (n_units, D)."""
        seconds = self.problem.costs.seconds
        able = np.isfinite(seconds)
        worst = np.where(able, seconds, 0.0).max(axis=1, keepdims=True)
        return np.where(able, seconds, 10.0 * worst)

    @cached_property
    def latency(self) -> FloatArray:
        """Seconds of an empty transfer between devices, through the host where needed, (D, D)."""
        return self._routes(self.problem.cluster.link_latency)

    @cached_property
    def seconds_per_byte(self) -> FloatArray:
        """Seconds per byte between devices, through the host where needed, (D, D)."""
        return self._routes(self.problem.cluster.link_seconds_per_byte)

    def _routes(self, matrix: FloatArray) -> FloatArray:
        cluster, n = self.problem.cluster, self.problem.n_devices
        host = cluster.host_endpoint
        through = matrix[:n, host][:, None] + matrix[host, :n][None, :]
        direct = np.where(np.isfinite(matrix[:n, :n]), matrix[:n, :n], through)
        direct = np.where(np.isfinite(direct), direct, 1.0)
        np.fill_diagonal(direct, 0.0)
        return direct

    @cached_property
    def transfer_seconds(self) -> FloatArray:
        """Mean seconds to move each edge's tensor between two devices, shape (n_edges,)."""
        _, _, size = edge_list(self.problem)
        n = self.problem.n_devices
        pairs = max(1, n * (n - 1))
        mean: FloatArray = (self.latency.sum() + size * self.seconds_per_byte.sum()) / pairs
        return mean

    @cached_property
    def inputs(self) -> list[tuple[IntArray, FloatArray]]:
        """Producers and bytes of each unit's inputs."""
        producers, consumers, size = edge_list(self.problem)
        order = np.argsort(consumers, kind="stable")
        ends = np.searchsorted(consumers[order], np.arange(self.problem.n_units + 1))
        return [
            (producers[order[a:b]], size[order[a:b]])
            for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
        ]

    @cached_property
    def upward_rank(self) -> FloatArray:
        """Mean seconds from each unit's start to the end, transfers included, (n_units,)."""
        graph, cost = self.problem.unit_graph, mean_seconds(self.problem)
        out: list[list[tuple[int, float]]] = [[] for _ in range(graph.n_ops)]
        producers, consumers, _ = edge_list(self.problem)
        for a, b, t in zip(
            producers.tolist(), consumers.tolist(), self.transfer_seconds.tolist(), strict=True
        ):
            out[a].append((b, t))
        rank = np.zeros(graph.n_ops)
        for unit in graph.topological_order[::-1].tolist():
            rank[unit] = cost[unit] + max((t + rank[b] for b, t in out[unit]), default=0.0)
        return rank

    @cached_property
    def order(self) -> IntArray:
        """Units by falling upward rank, topological, shape (n_units,)."""
        position = positions_in(self.problem.unit_graph.topological_order)
        return np.lexsort((position, -self.upward_rank))

    @cached_property
    def scale(self) -> float:
        """Mean seconds of a unit on its fastest device."""
        return float(max(self.seconds.min(axis=1).mean(), 1e-30))

    def node_features(self) -> FloatArray:
        """Ratios that describe each unit, shape (n_units, NODE_FEATURES)."""
        graph, cost = self.problem.unit_graph, mean_seconds(self.problem)
        start = levels(graph.successors, graph.topological_order, cost)
        length = max(float((start + self.upward_rank).max()), 1e-30)
        fastest = self.seconds.min(axis=1)
        producers, consumers, _ = edge_list(self.problem)
        n = self.problem.n_units
        sent = np.bincount(producers, self.transfer_seconds, minlength=n)
        read = np.bincount(consumers, self.transfer_seconds, minlength=n)
        spread = self.seconds.max(axis=1) / np.maximum(fastest, 1e-30)
        return np.column_stack(
            [
                np.log1p(fastest / self.scale),
                np.log1p(np.minimum(spread, 1e6)),
                np.log1p(sent / self.scale),
                np.log1p(read / self.scale),
                self.upward_rank / length,
                start / length,
                np.log1p(np.diff(graph.successors.indptr)),
                np.log1p(np.diff(graph.predecessors.indptr)),
            ]
        )


class ListState:
    """k partial schedules of one problem; units of a colocation class follow its first unit."""

    def __init__(self, problem: ListProblem, k: int) -> None:
        n, n_devices = problem.problem.n_units, problem.problem.n_devices
        self.fixed = problem
        self.k = k
        self.rows = np.arange(k)
        self.devices = np.full((k, n), -1, dtype=np.int64)
        self.finish = np.zeros((k, n))
        self.available = np.zeros((k, n_devices))
        self.resident = np.zeros((k, n_devices))
        self.last = np.full((k, n_devices), -1, dtype=np.int64)
        self._classes = problem.problem.colocation.group_of
        self._class_device = np.full((k, problem.problem.colocation.n_groups), -1, dtype=np.int64)
        self._space = ActionSpace(problem.problem, problem.problem.colocation)
        self._weights = problem.problem.kept.bytes_by_label(self._classes)
        cluster, kept_free = problem.problem.cluster, bytes_kept_free(problem.problem)
        self._memory = cluster.memory_bytes - kept_free
        self._pool_bytes = cluster.pool_bytes - kept_free
        self._pools = cluster.pool_shares.T

    def arrival(self, unit: int) -> FloatArray:
        """Earliest time of all inputs of a unit on each device, shape (k, D)."""
        producers, size = self.fixed.inputs[unit]
        if len(producers) == 0:
            return np.zeros_like(self.available)
        source = self.devices[:, producers]  # (k, inputs)
        cost = (
            self.fixed.latency[source] + size[None, :, None] * self.fixed.seconds_per_byte[source]
        )
        return np.asarray((self.finish[:, producers][:, :, None] + cost).max(axis=1))

    def allowed(self, unit: int) -> BoolArray:
        """Devices by support, pins, class and, where any has room, memory, shape (k, D)."""
        base = np.broadcast_to(self._space.allowed_of_units[unit], self.available.shape)
        taken = self._class_device[:, self._classes[unit]]
        same = np.arange(base.shape[1]) == taken[:, None]
        base = np.where((taken >= 0)[:, None], same, base)
        added = self._added(unit)[:, None]
        fits = base & (self.resident + added <= self._memory)
        if self._pools.shape[1]:
            spare = self._pool_bytes - self.resident @ self._pools  # (k, pools)
            too_much = added[:, :, None] * self._pools > spare[:, None, :]  # (k, D, pools)
            fits &= ~(too_much & (self._pools > 0)).any(axis=2)
        return np.where(fits.any(axis=1, keepdims=True), fits, base)

    def features(self, unit: int) -> tuple[FloatArray, FloatArray]:
        """Ratios that describe each pair, (k, D, PAIR_FEATURES), and finish times, (k, D)."""
        scale, cost = self.fixed.scale, self.fixed.seconds[unit]
        arrival = self.arrival(unit)
        start = np.maximum(arrival, self.available)
        finish = start + cost
        producers, size = self.fixed.inputs[unit]
        here = self.devices[:, producers][:, :, None] == np.arange(len(cost))  # (k, inputs, D)
        share = (here * size[None, :, None]).sum(axis=1) / max(size.sum(), 1e-30)
        follows = (self.last[:, :, None] == producers).any(axis=2)
        best = finish.min(axis=1, keepdims=True)
        columns = [
            np.log1p((finish - best) / scale),
            np.log1p((start - start.min(axis=1, keepdims=True)) / scale),
            np.log1p(np.maximum(arrival - self.available, 0.0) / scale),
            np.log1p(np.maximum(self.available - arrival, 0.0) / scale),
            np.broadcast_to(np.log(np.maximum(cost, 1e-12) / max(cost.min(), 1e-12)), start.shape),
            np.broadcast_to(np.log1p(cost / scale), start.shape),
            share,
            follows.astype(np.float64),
            self.available / np.maximum(self.available.max(axis=1, keepdims=True), 1e-30),
            (finish <= best).astype(np.float64),
        ]
        return np.stack(columns, axis=2), finish

    def place(self, unit: int, device: IntArray, finish: FloatArray) -> None:
        """Put `unit` on `device` (k,), given the finish times of its pairs (k, D)."""
        self.devices[:, unit] = device
        self.finish[:, unit] = finish[self.rows, device]
        self.available[self.rows, device] = self.finish[:, unit]
        self.resident[self.rows, device] += self._added(unit)
        self.last[self.rows, device] = unit
        self._class_device[:, self._classes[unit]] = device

    def _added(self, unit: int) -> FloatArray:
        """Resident bytes that placing `unit` adds: its class's, for the first one, shape (k,)."""
        unit_class = self._classes[unit]
        return np.where(self._class_device[:, unit_class] < 0, self._weights[unit_class], 0.0)


def bytes_kept_free(problem: Problem) -> float:
    """Bytes kept free for tensors: twice the inputs and outputs of the widest unit."""
    graph = problem.unit_graph
    own = np.zeros(problem.n_units)
    for rows in (graph.op_inputs, graph.op_outputs):
        np.add.at(own, rows.row_of_each(), graph.tensor_bytes[rows.indices])
    return 2.0 * float(own.max())
