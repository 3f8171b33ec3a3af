"""Monitoring of runs that learn: TensorBoard scalars, and early stopping."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from placewright.placers.learned.shared.searching import require_packages


class Scalars(Protocol):
    """Function that writes named numbers after so many evaluations."""

    def __call__(self, step: int, **values: float) -> None: ...


class Keep(Protocol):
    """Function that stores the named numbers of an update, such as `Evaluator.record_update`."""

    def __call__(self, **values: float) -> None: ...


@contextmanager
def scalars_to(folder: str, keep: Keep | None = None) -> Iterator[Scalars]:
    """Write numbers of updates to `keep`, and into `folder` for TensorBoard unless it is "".

    All learners use the same names: ``best``, ``mean_time``, ``loss``, ``entropy``, ``kl``.

    Raises:
        MissingExtraError: a folder is given and TensorBoard is absent.
    """
    if not folder:
        yield _only(keep)
        return
    require_packages("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder) as writer:

        def write(step: int, **values: float) -> None:
            if keep is not None:
                keep(**values)
            for name, value in values.items():
                writer.add_scalar(name, value, step)

        yield write


@dataclass
class EarlyStop:
    """True once the incumbent has not improved for a number of evaluations."""

    patience: int = 0  # evaluations without improvement that end a run; 0 never ends it
    _best: float = field(default=math.inf)
    _since: int = 0

    def __call__(self, best_value: float, evaluations: int) -> bool:
        """True if the run should end."""
        if best_value < self._best:
            self._best, self._since = best_value, evaluations
        return self.patience > 0 and evaluations - self._since >= self.patience


def _only(keep: Keep | None) -> Scalars:
    def write(step: int, **values: float) -> None:
        del step
        if keep is not None:
            keep(**values)

    return write
