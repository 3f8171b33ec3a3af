"""Zero-shot: graph network, pair scores, decoding, from top to bottom (see `ZeroShot`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.placers.learned.shared.checkpoint import load_checkpoint
from placewright.placers.learned.shared.encoders import perceptron
from placewright.placers.learned.shared.group_inputs import group_edges
from placewright.placers.learned.shared.sampling import torch_scope
from placewright.placers.learned.zero_shot.list_state import (
    NODE_FEATURES,
    PAIR_FEATURES,
    ListProblem,
    ListState,
)
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


@dataclass(frozen=True, eq=False)
class Decoded:
    """k placements with the data to score them again."""

    placements: IntArray  # shape (k, n_units)
    pairs: FloatArray  # features at each step, shape (n_units, k, D, PAIR_FEATURES)
    allowed: BoolArray  # shape (n_units, k, D)
    order: IntArray  # unit of each step, shape (n_units,)


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
) -> Decoded:
    """Place unit by unit, k = len(temperatures) placements at once; temperature 0 is greedy."""
    k = len(temperatures)
    with torch.no_grad():
        embedding = policy.embed(*policy_inputs(problem)).numpy()
    layers = [
        (layer.weight.detach().numpy().T, layer.bias.detach().numpy())
        for layer in policy.score
        if isinstance(layer, nn.Linear)
    ]
    state = ListState(problem, k)
    order = problem.order
    shape = (len(order), k, problem.problem.n_devices)
    features, masks = np.empty((*shape, PAIR_FEATURES)), np.empty(shape, np.bool_)
    for step, unit in enumerate(order.tolist()):
        pairs, finish = state.features(unit)
        wide = np.broadcast_to(embedding[unit], (*pairs.shape[:-1], embedding.shape[1]))
        x = np.concatenate([wide, pairs], axis=-1)
        for index, (weight, bias) in enumerate(layers):
            x = x @ weight + bias
            if index < len(layers) - 1:
                x = np.maximum(x, 0.0)
        allowed = state.allowed(unit)
        score = np.where(allowed, x[..., 0] - FINISH_WEIGHT * pairs[..., 0], -np.inf)
        noisy = score + temperatures[:, None] * rng.gumbel(size=score.shape)
        state.place(unit, noisy.argmax(axis=1), finish)
        features[step], masks[step] = pairs, allowed
    return Decoded(state.devices, features, masks, order)


def candidate_placements(
    problem: Problem,
    policy_file: str,
    n_candidates: int,
    temperature: float,
    rng: np.random.Generator,
) -> Iterator[IntArray]:
    """Greedy, earliest finish, one device of each kind of cost column, then samples."""
    problem = with_shared_weights_tied(problem)
    listed = ListProblem(problem)
    with torch_scope(rng):
        policy = load_policy(policy_file)
        temperatures = np.full(n_candidates, temperature)
        temperatures[0] = 0.0
        placements = decode(policy, listed, temperatures, rng).placements
        untrained = ZeroShotPolicy(policy.hidden)  # takes the earliest finish
        earliest = decode(untrained, listed, np.zeros(1), rng).placements
    homogeneous = one_device_placements(problem)
    candidates = [placements[0], *earliest, *homogeneous, *placements[1:]]
    yield from candidates[:n_candidates]


def one_device_placements(problem: Problem) -> list[IntArray]:
    """All units on one device, where it may run them all; one device of each cost column."""
    allowed = np.asarray(problem.allowed_by_class.all(axis=0))
    _, first = np.unique(problem.costs.seconds, axis=1, return_index=True)
    totals = problem.costs.seconds.sum(axis=0)
    kinds = [device for device in np.sort(first).tolist() if allowed[device]]
    kinds.sort(key=lambda device: (totals[device], device))
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
