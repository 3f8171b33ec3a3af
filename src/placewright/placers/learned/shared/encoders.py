"""Networks that several systems use: the attentional decoder, additive attention, perceptrons.

The scores of additive attention, v . tanh(key + query), are computed within the processor's cache.
As one expression, each sum, tangent and gradient is a tensor of more than ten megabytes that goes
to memory and back, mostly to fresh pages. Here both passes work in pieces that fit the cache, and
store the tangents only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from placewright.placers.learned.shared.learning_scope import (
    chosen,
    entropy,
    masked_log_softmax,
    sample,
)

_PIECE = 2**17  # elements: half a megabyte


@dataclass(frozen=True)
class Logits:
    """The map from scores to logits: ``constant * tanh(score / temperature)``, or plain scores."""

    constant: float = 5.0  # C; 0 leaves out the tanh and only divides
    temperature: float = 10.0  # T > 0

    def __call__(self, scores: Tensor) -> Tensor:
        """Logits of the same shape."""
        if self.constant == 0:
            return scores / self.temperature
        return self.constant * torch.tanh(scores / self.temperature)


@dataclass(frozen=True)
class Decoded:
    """The log-probability and entropy of given devices of all groups."""

    log_probability: Tensor  # of each whole sample, shape (samples,)
    entropy: Tensor  # mean over groups, shape (samples,)


@dataclass(frozen=True, eq=False)
class Encoded:
    """The encoder's output for groups, computed once for drawing and scoring of an update."""

    memory: Tensor  # shape (batch, groups, hidden)
    state: tuple[Tensor, ...]  # the decoder's first one, shape (1, batch, hidden) each

    def first(self, n: int) -> Encoded:
        """The first `n` samples of a batch."""
        return Encoded(self.memory[:n], tuple(s[:, :n] for s in self.state))

    def expand(self, samples: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Memory and state for so many samples; a batch of one serves them all."""
        state = tuple(s.expand(-1, samples, -1).contiguous() for s in self.state)
        return self.memory.expand(samples, -1, -1), state


class AttentionalDecoder(nn.Module):
    """Recurrent encoder over groups, decoder with additive attention, one device per step.

    The decoder reads the embedding of the previous group's device (a learned "go" at first); its
    state queries the encoder's memory, v . tanh(W1 memory + W2 state); the logits come from
    [state; context], or [state; context; memory of this step's group] where `aligned`. Attention by
    content alone can find "the group of this step" only by counting steps. Sampling runs
    step by step; scoring runs all steps at once.
    """

    def __init__(
        self,
        n_inputs: int,
        n_devices: int,
        hidden: int,
        *,
        bidirectional: bool = False,
        aligned: bool = False,
        cell: str = "lstm",
    ) -> None:
        super().__init__()
        recurrent = nn.GRU if cell == "gru" else nn.LSTM
        self.is_lstm = cell != "gru"
        width = hidden // 2 if bidirectional else hidden
        self.encoder = recurrent(n_inputs, width, batch_first=True, bidirectional=bidirectional)
        self.decoder = recurrent(hidden, hidden, batch_first=True)
        self.device_embedding = nn.Embedding(n_devices + 1, hidden)  # the last one is "go"
        self.memory_projection = nn.Linear(hidden, hidden, bias=False)
        self.query_projection = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.output = nn.Linear((3 if aligned else 2) * hidden, n_devices)
        self.aligned = aligned
        self.n_devices = n_devices
        self.bidirectional = bidirectional

    def anywhere(self, n_groups: int) -> Tensor:
        """Every group on every device, shape (groups, devices).

        Units that cannot run on their group's device go to another, see `ActionSpace.expand`.
        """
        return torch.ones((n_groups, self.n_devices), dtype=torch.bool)

    def encode(self, groups: Tensor) -> Encoded:
        """Memory and first state, with gradient, from (batch, groups, inputs)."""
        memory, final = self.encoder(groups)
        states = final if self.is_lstm else (final,)
        if self.bidirectional:  # (2, batch, hidden / 2) -> (1, batch, hidden)
            states = tuple(torch.cat([s[0], s[1]], dim=-1).unsqueeze(0) for s in states)
        return Encoded(memory, tuple(states))

    def attend(self, states: Tensor, memory: Tensor) -> Tensor:
        """Scores of devices from decoder states (batch, steps, hidden): (batch, steps, devices)."""
        keys = self.memory_projection(memory)  # (batch, groups, hidden)
        queries = self.query_projection(states)  # (batch, steps, hidden)
        weights = torch.softmax(additive_scores(keys, queries, self.score.weight), dim=-1)
        context = weights @ memory  # (batch, steps, hidden)
        return self.score_devices(states, context, memory)

    def score_devices(self, states: Tensor, context: Tensor, own: Tensor) -> Tensor:
        """Scores (batch, steps, devices) from states, contexts, own memories, all (..., hidden)."""
        parts = [states, context, own] if self.aligned else [states, context]
        scores: Tensor = self.output(torch.cat(parts, dim=-1))
        return scores

    @torch.no_grad()
    def draw(
        self,
        encoded: Encoded,
        allowed: Tensor,
        samples: int,
        logits: Logits,
        generator: torch.Generator,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Sample devices, shape (samples, groups), int64.

        Args:
            encoded: of the groups, shared by all samples or of each sample.
            allowed: bool, shape (groups, devices) or (samples, groups, devices).
            logits: map from scores to logits.
            noise: added to the logits in units of their root mean square over devices, shape
                (samples, groups, devices).
        """
        memory, state = encoded.expand(samples)
        keys = self.memory_projection(memory)  # (samples, groups, hidden)
        previous = torch.full((samples,), self.n_devices)
        actions = torch.empty(memory.shape[:2], dtype=torch.int64)
        mask = allowed.expand(samples, -1, -1)
        advance = _StepwiseDecoder(self)
        state = tuple(s.squeeze(0) for s in state)
        for step in range(memory.shape[1]):
            state = advance(previous, state)
            out = state[0].unsqueeze(1)  # (samples, 1, hidden)
            query = self.query_projection(out)
            weights = torch.softmax(self.score(tangent_(keys + query)).squeeze(-1), dim=-1)
            context = weights.unsqueeze(1) @ memory  # (samples, 1, hidden)
            own = memory[:, step : step + 1]
            value = logits(self.score_devices(out, context, own).squeeze(1))
            if noise is not None:
                value = value + noise[:, step] * _size(value)
            previous = sample(masked_log_softmax(value, mask[:, step]), generator)
            actions[:, step] = previous
        return actions

    def score_actions(
        self,
        encoded: Encoded,
        allowed: Tensor,
        actions: Tensor,
        logits: Logits,
        noise: Tensor | None = None,
    ) -> Decoded:
        """Log-probability of given actions (samples, groups), all steps at once."""
        samples = len(actions)
        memory, state = encoded.expand(samples)
        go = torch.full((samples, 1), self.n_devices)
        previous = torch.cat([go, actions[:, :-1]], dim=1)  # (samples, groups)
        states, _ = self.decoder(
            self.device_embedding(previous), state if self.is_lstm else state[0]
        )
        value = logits(self.attend(states, memory))  # (samples, groups, devices)
        if noise is not None:
            value = value + noise * _size(value)
        log_p = masked_log_softmax(value, allowed)
        return Decoded(chosen(log_p, actions).sum(1), entropy(log_p).mean(1))


class _StepwiseDecoder:
    """One step of a decoder at a time, for sampling.

    PyTorch's recurrent layers prepare their weights on every call, which takes longer than the
    step; and the step's input is one of `n_devices` + 1 embeddings, so that its product with the
    weights is in a table.
    """

    def __init__(self, owner: AttentionalDecoder) -> None:
        layer = owner.decoder
        self.is_lstm = owner.is_lstm
        given = owner.device_embedding.weight @ layer.get_parameter("weight_ih_l0").T
        self.inputs = layer.get_parameter("bias_ih_l0") + given
        self.weight = layer.get_parameter("weight_hh_l0").T.contiguous()
        self.bias = layer.get_parameter("bias_hh_l0")

    def __call__(self, previous: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Next state from the previous devices (samples,) and the state, (samples, hidden) each."""
        products = self.inputs[previous]  # (samples, gates * hidden)
        own = torch.addmm(self.bias, state[0], self.weight)
        if not self.is_lstm:
            reset, update, new = products.chunk(3, dim=-1)
            own_reset, own_update, own_new = own.chunk(3, dim=-1)
            gate = torch.sigmoid(update + own_update)
            fresh = torch.tanh(new + torch.sigmoid(reset + own_reset) * own_new)
            return ((1.0 - gate) * fresh + gate * state[0],)
        keep_in, forget, fresh, out = (products + own).chunk(4, dim=-1)
        cell = torch.sigmoid(forget) * state[1] + torch.sigmoid(keep_in) * torch.tanh(fresh)
        return torch.sigmoid(out) * torch.tanh(cell), cell


def _size(logits: Tensor) -> Tensor:
    return logits.detach().square().mean(dim=-1, keepdim=True).sqrt()


def perceptron(*widths: int, last_scale: float = 1.0) -> nn.Sequential:
    """Linear layers of the given widths with ReLU between them.

    Args:
        widths: of the inputs, the hidden layers and the outputs.
        last_scale: factor on the first weights and biases of the last layer.
    """
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        if index:
            layers.append(nn.ReLU())
        layer = nn.Linear(inputs, outputs)
        layers.append(layer)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(last_scale)
    return nn.Sequential(*layers)


def additive_scores(keys: Tensor, queries: Tensor, weight: Tensor) -> Tensor:
    """Score of every key for every query: shape (batch, queries, keys).

    Args:
        keys: shape (batch, keys, hidden).
        queries: shape (batch, queries, hidden).
        weight: v, shape (1, hidden).
    """
    scores: Tensor = _AdditiveScores.apply(keys, queries, weight)  # type: ignore[no-untyped-call]
    return scores


def tangent_(values: Tensor) -> Tensor:
    """Hyperbolic tangent in place, without gradient, within one unit in the last place.

    By NumPy: PyTorch calls a library that takes eight times as long on processors of other makers.
    """
    array = values.numpy()
    np.tanh(array, out=array)
    return values


class _AdditiveScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keys: Tensor, queries: Tensor, weight: Tensor) -> Tensor:
        batch, n_queries, hidden = queries.shape
        mixed = queries.new_empty((batch, n_queries, keys.shape[1], hidden))
        for number, rows in _pieces(mixed):
            piece = mixed[number, rows]
            torch.add(keys[number], queries[number, rows].unsqueeze(1), out=piece)
            tangent_(piece)
        ctx.save_for_backward(mixed, weight)
        return torch.nn.functional.linear(mixed, weight).squeeze(-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gradient, (mixed, weight) = gradients[0], ctx.saved_tensors
        batch, n_queries, n_keys, hidden = mixed.shape
        of_keys = mixed.new_zeros((batch, n_keys, hidden))
        of_queries = mixed.new_empty((batch, n_queries, hidden))
        for number, rows in _pieces(mixed):
            piece = gradient[number, rows].unsqueeze(-1) * weight[0]
            torch.ops.aten.tanh_backward.grad_input(piece, mixed[number, rows], grad_input=piece)
            of_keys[number] += piece.sum(dim=0)
            of_queries[number, rows] = piece.sum(dim=1)
        of_weight = gradient.reshape(1, -1) @ mixed.reshape(-1, hidden)
        return of_keys, of_queries, of_weight


def _pieces(mixed: Tensor) -> Iterator[tuple[int, slice]]:
    """Parts of (batch, queries, keys, hidden) by sample and queries."""
    batch, n_queries = mixed.shape[:2]
    step = max(1, _PIECE // max(1, mixed[0, 0].numel()))
    for number in range(batch):
        for first in range(0, n_queries, step):
            yield number, slice(first, first + step)
