"""Contiguous runs: which of the devices, in their order, takes which of the pieces, in theirs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewright.core.arrays import IntArray


def contiguous(weights: Sequence[float], shares: Sequence[float]) -> IntArray:
    """Cut a chain of pieces so that the runs follow the shares as nearly as they can.

    The runs minimise the sum of load squared / share, whose minimum without whole pieces is exactly
    load proportional to share; equal pieces on equal devices make runs that differ by one at most,
    the longer ones first. Of two equally good cuts the one that leaves no device empty is taken;
    where there are fewer pieces than devices, the largest shares take part.

    Args:
        weights: of each piece in the order of the chain, >= 0.
        shares: of each device in the order in which runs are dealt, > 0.

    Returns:
        Device of each piece, shape (n_pieces,), non-decreasing.
    """
    used = sorted(range(len(shares)), key=lambda device: (-shares[device], device))
    used = sorted(used[: max(1, len(weights))])
    ends = np.concatenate([[0.0], np.cumsum(np.asarray(weights, dtype=np.float64))])
    n = len(weights)
    load = ends[None, :] - ends[:, None]  # (start, end) -> load of the run
    cost = np.where(np.triu(np.ones((n + 1, n + 1), dtype=np.bool_)), load**2, np.inf)
    np.fill_diagonal(cost, 1e-9 * ends[-1] ** 2)  # an empty run loses ties
    best = np.where(np.arange(n + 1) == 0, 0.0, np.inf)  # of the pieces before each end
    starts: list[IntArray] = []
    for device in used:
        total = best[:, None] + cost / shares[device]
        starts.append(n - np.argmin(total[::-1], axis=0))  # the last start: the earlier run is long
        best = total.min(axis=0)
    device_of = np.zeros(n, dtype=np.int64)
    end = n
    for device, start in zip(reversed(used), reversed(starts), strict=True):
        device_of[int(start[end]) : end] = device
        end = int(start[end])
    return device_of
