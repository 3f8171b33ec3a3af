"""Scores of additive attention, v . tanh(key + query), computed within the processor's cache.

Written as one expression, each of its sums, tangents and their gradients is a tensor of more than
ten megabytes that goes to memory and back, and most of them to fresh pages. Here both passes go
over it in pieces that stay in the cache, and only the tangents are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

_PIECE = 2**17  # elements: half a megabyte


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

    By NumPy: PyTorch calls a library that takes eight times as long on other makers' processors.
    """
    array = values.numpy()
    np.tanh(array, out=array)
    return values


class _AdditiveScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keys: Tensor, queries: Tensor, weight: Tensor) -> Tensor:
        batch, n_queries, hidden = queries.shape
        mixed = queries.new_empty((batch, n_queries, keys.shape[1], hidden))
        for sample, rows in _pieces(mixed):
            piece = mixed[sample, rows]
            torch.add(keys[sample], queries[sample, rows].unsqueeze(1), out=piece)
            tangent_(piece)
        ctx.save_for_backward(mixed, weight)
        return torch.nn.functional.linear(mixed, weight).squeeze(-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gradient, (mixed, weight) = gradients[0], ctx.saved_tensors
        batch, n_queries, n_keys, hidden = mixed.shape
        of_keys = mixed.new_zeros((batch, n_keys, hidden))
        of_queries = mixed.new_empty((batch, n_queries, hidden))
        for sample, rows in _pieces(mixed):
            piece = gradient[sample, rows].unsqueeze(-1) * weight[0]
            torch.ops.aten.tanh_backward.grad_input(piece, mixed[sample, rows], grad_input=piece)
            of_keys[sample] += piece.sum(dim=0)
            of_queries[sample, rows] = piece.sum(dim=1)
        of_weight = gradient.reshape(1, -1) @ mixed.reshape(-1, hidden)
        return of_keys, of_queries, of_weight


def _pieces(mixed: Tensor) -> Iterator[tuple[int, slice]]:
    """Parts of (batch, queries, keys, hidden) by sample and queries."""
    batch, n_queries = mixed.shape[:2]
    step = max(1, _PIECE // max(1, mixed[0, 0].numel()))
    for sample in range(batch):
        for first in range(0, n_queries, step):
            yield sample, slice(first, first + step)
