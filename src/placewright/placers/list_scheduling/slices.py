"""Kernels in slices of some milliseconds, so that Ctrl-C and the budget end them."""

from __future__ import annotations

import time
from collections.abc import Callable

from placewright.errors import BudgetSpent

_SLICE_SECONDS = 0.02  # between two looks at the budget


def in_slices(
    advance: Callable[[int, int], int], n_steps: int, is_over: Callable[[], bool]
) -> None:
    """Advance from step 0 to the last; slices grow until they take some milliseconds.

    Args:
        advance: does the steps from the first to before the second number; returns the first step
            that is not done, which it may be asked for again.
        n_steps: of all the work.
        is_over: asked after each slice.

    Raises:
        BudgetSpent: it was over before the last step.
    """
    done, size = 0, 256
    while done < n_steps:
        began = time.perf_counter()
        done = advance(done, min(n_steps, done + size))
        spent = time.perf_counter() - began
        if spent < _SLICE_SECONDS / 2:
            size *= 2
        elif spent > 2 * _SLICE_SECONDS:
            size = max(1, size // 2)
        if done < n_steps and is_over():
            raise BudgetSpent
