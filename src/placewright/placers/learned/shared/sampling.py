"""Categorical choices in log space: masks, samples, log-probabilities, entropy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor


@contextmanager
def torch_scope(rng: np.random.Generator) -> Iterator[torch.Generator]:
    """One thread and a private random state; both are restored at the end.

    All draws inside (weights, dropout, samples) follow from `rng`, so that a run repeats on any
    number of threads, and the global state of torch does not change.
    """
    threads = torch.get_num_threads()
    seed = int(rng.integers(2**62))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield torch.Generator().manual_seed(seed)
        finally:
            torch.set_num_threads(threads)


def masked_log_softmax(logits: Tensor, allowed: Tensor) -> Tensor:
    """Log-probabilities over the last axis, -inf if not allowed.

    Args:
        logits: shape (..., n).
        allowed: bool, broadcastable to `logits`, at least one True in each row.
    """
    return torch.log_softmax(logits.masked_fill(~allowed, -torch.inf), dim=-1)


def sample(log_probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """One choice per row by the Gumbel trick: shape (..., n) -> (...), int64."""
    uniform = torch.rand(log_probabilities.shape, generator=generator)
    gumbel = -torch.log(-torch.log(uniform.clamp(1e-20, 1.0 - 1e-7)))
    return (log_probabilities + gumbel).argmax(dim=-1)


def chosen(log_probabilities: Tensor, actions: Tensor) -> Tensor:
    """Log-probability of each action: (..., n) and (...) -> (...)."""
    return log_probabilities.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def entropy(log_probabilities: Tensor) -> Tensor:
    """Entropy of each row in nats, shape (..., n) -> (...); impossible choices add nothing."""
    possible = log_probabilities.masked_fill(torch.isinf(log_probabilities), 0.0)
    return -(possible * log_probabilities.exp()).sum(dim=-1)


def as_array(actions: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Actions for NumPy, int64."""
    return actions.detach().numpy().astype(np.int64)
