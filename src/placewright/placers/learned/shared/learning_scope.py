"""The context of a search that learns (random state, scalars), and a step down the gradient."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from placewright.placers.learned.shared.monitoring import Scalars, scalars_to
from placewright.placers.learned.shared.sampling import torch_scope
from placewright.simulation.evaluator import Evaluator


@contextmanager
def learning_scope(
    tensorboard: str, evaluator: Evaluator, rng: np.random.Generator
) -> Iterator[tuple[torch.Generator, Scalars]]:
    """One thread, a random state that follows from `rng`, and a writer of scalars.

    Args:
        tensorboard: folder for TensorBoard scalars; "" writes none.
        evaluator: records the scalars of each update.
    """
    with (
        torch_scope(rng) as generator,
        scalars_to(tensorboard, evaluator.record_update) as scalars,
    ):
        yield generator, scalars


def clipped_step(
    policy: nn.Module, optimiser: torch.optim.Optimizer, loss: Tensor, clip_norm: float
) -> None:
    """One step of `optimiser` down `loss`, the gradient's global norm at most `clip_norm`."""
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(policy.parameters(), clip_norm)
    optimiser.step()
