"""PyTorch for a search: random state, samples, a step down the gradient, an entropy bonus."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from placewright.placers.learned.shared.searching import JointSettings, UpdateReport, reporting
from placewright.simulation.evaluator import Evaluator


@contextmanager
def learning_scope(
    tensorboard: str, evaluator: Evaluator, rng: np.random.Generator
) -> Iterator[tuple[torch.Generator, UpdateReport]]:
    """One thread, a random state that follows from `rng`, and `reporting`."""
    with torch_scope(rng) as generator, reporting(tensorboard, evaluator) as report:
        yield generator, report


def descend(
    policy: nn.Module, optimiser: torch.optim.Optimizer, loss: Tensor, clip_norm: float
) -> None:
    """One `clipped_step` down `loss`."""
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    clipped_step(policy, optimiser, clip_norm)


def clipped_step(policy: nn.Module, optimiser: torch.optim.Optimizer, clip_norm: float) -> None:
    """One step down the gradient, its global norm at most `clip_norm`; 0 sets no limit."""
    nn.utils.clip_grad_norm_(policy.parameters(), clip_norm or math.inf)
    optimiser.step()


def joint_bonus(settings: JointSettings, placer_entropy: Tensor, log_groups: Tensor) -> Tensor:
    """Entropy bonus, to be subtracted from the loss of a grouper and a placer; a scalar.

    With weights u of `usage_entropy` and -g of the mean entropy of a node, u >= g, the last two
    terms are g I + (u - g) H, with the mutual information I of node and group and the entropy H of
    usage: nodes are drawn to groups of their own and each to one.

    Args:
        placer_entropy: of the placer, mean over groups and samples; a scalar.
        log_groups: log-probabilities of each node's group, shape (nodes, groups).
    """
    return (
        settings.entropy_weight * placer_entropy
        + settings.grouper_entropy_weight * entropy(log_groups).mean()
        + settings.usage_entropy_weight * usage_entropy(log_groups)
    )


def usage_entropy(log_groups: Tensor) -> Tensor:
    """Entropy in nats of the group of a node drawn at random; a scalar.

    ln(groups) if all groups are equally likely, 0 if all nodes are in one. Unlike `entropy` of each
    node, it requires no node to be undecided.

    Args:
        log_groups: log-probabilities of each node's group, shape (nodes, groups).
    """
    return entropy(torch.logsumexp(log_groups, dim=0) - math.log(len(log_groups)))


@contextmanager
def torch_scope(rng: np.random.Generator) -> Iterator[torch.Generator]:
    """One thread, a private random state, subnormal numbers as 0; all are restored at the end.

    All draws inside (weights, dropout, samples) follow from `rng`, so that a run repeats on any
    number of threads, and the global state of torch does not change.
    """
    threads = torch.get_num_threads()
    flushes = flushes_subnormals()
    seed = int(rng.integers(2**62))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` seeds accelerators, too
        torch.set_num_threads(1)
        # Gates that saturate have subnormal gradients, which processors multiply in microcode:
        # `hierarchical` took twice as long.
        torch.set_flush_denormal(True)
        try:
            yield torch.Generator().manual_seed(seed)
        finally:
            torch.set_flush_denormal(flushes)
            torch.set_num_threads(threads)


def flushes_subnormals() -> bool:
    """True if this thread's arithmetic replaces numbers too small for a full mantissa by 0."""
    return float(torch.full((1,), torch.finfo(torch.float32).tiny) / 2) == 0.0


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
