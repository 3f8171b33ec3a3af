"""Beam search over a chain: partial placements that keep all limits, the most promising first.

A partial placement is judged by its value and by what the rest costs at least with the prices of
the Lagrangian relaxation. Of two with the same open devices and the same bytes the quicker stays.
So only those beyond the width are lost, and the most promising of them bounds them all: a beam that
loses none is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.placers.exact.lagrangian.chain import ROUNDING, Chain, ChainStep

_GRAIN = 2.0**-40  # of a limit's unit, within which sums of bytes are the same
_FITS = 1.0 + 1e-12  # times a limit, for sums in another order


@dataclass(frozen=True)
class Found:
    """The end of a beam search.

    Attributes:
        devices: of each item in the best placement; None without one.
        bound: seconds; each placement that fits takes at least the smaller one of this and `under`.
    """

    devices: IntArray | None
    bound: float


def best_in_beam(
    chain: Chain,
    prices: FloatArray,
    width: int,
    under: float = math.inf,
    is_over: Callable[[], bool] = lambda: False,
) -> Found:
    """The best placement that is found, and a bound of all others.

    Args:
        width: partial placements that are kept.
        under: seconds; placements that cannot be quicker are left out.
        is_over: True gives up.
    """
    rest = chain.towards_end(prices)
    if not math.isfinite(float(rest[0])):
        return Found(None, math.inf)
    beam = _Beam(chain, prices)
    for number, step in enumerate(chain.steps):
        if is_over():
            return Found(None, -math.inf)
        if not beam.advance(step, rest[number + 1], width, under):
            return Found(None, beam.lost)
    devices, value = beam.best()
    return Found(devices, min(beam.lost, value))


class _Beam:
    def __init__(self, chain: Chain, prices: FloatArray) -> None:
        self._chain, self._prices = chain, prices
        self._fits = chain.limits * _FITS
        self._open = np.zeros((1, 0), dtype=np.int64)  # (kept, open items)
        self._value = np.zeros(1)
        self._used = np.zeros((1, len(chain.limits)))
        self._history: list[tuple[IntArray, IntArray]] = []  # row before, and choice
        self.lost = math.inf  # least seconds of placements that go on from one beyond the width

    def advance(self, step: ChainStep, rest: FloatArray, width: int, under: float) -> bool:
        """Let all partial placements choose a device of an item; False if none is left."""
        n_devices = len(step.devices)
        at = tuple(self._open.T)
        size = np.broadcast_to(step.size, step.seconds.shape)[at].reshape(-1, n_devices)
        seconds = step.seconds[at].reshape(-1, n_devices)
        value = self._value[:, None] + seconds
        shares = self._chain.shares[:, step.devices].T
        used = self._used[:, None, :] + size[:, :, None] * shares[None]
        axes = [np.broadcast_to(row[:, None], value.shape) for row in self._open.T]
        axes.append(np.broadcast_to(np.arange(n_devices), value.shape))
        is_open = tuple(axes[axis] for axis in step.kept)
        promise = value + used @ self._prices + rest[is_open]
        priced = float(self._prices @ self._chain.limits)
        under += priced
        good = np.isfinite(promise) & (promise < under) & (used <= self._fits).all(axis=-1)
        if not good.any():
            return False
        after = np.zeros((int(good.sum()), len(is_open)), dtype=np.int64)
        for column, axis in enumerate(is_open):
            after[:, column] = axis[good]
        chosen, beyond = self._chosen(after, value[good], used[good], promise[good], width)
        self.lost = min(self.lost, beyond - priced - ROUNDING * abs(beyond))
        rows, choices = (found[chosen] for found in np.nonzero(good))
        self._history.append((rows, choices))
        self._open, self._value = after[chosen], value[good][chosen]
        self._used = used[good][chosen]
        return True

    @staticmethod
    def _chosen(
        after: IntArray, value: FloatArray, used: FloatArray, promise: FloatArray, width: int
    ) -> tuple[IntArray, float]:
        """Rows that stay, and the least promise of the others.

        The quickest of those that are alike stays, if it is one of the most promising.
        """
        grains = np.rint(used / _GRAIN).astype(np.int64)
        keys = [*grains.T, *after.T]
        order = np.lexsort([value, *keys])
        alike: BoolArray = np.ones(len(order), dtype=np.bool_)
        alike[0] = False
        for key in keys:
            alike[1:] &= key[order][1:] == key[order][:-1]
        stays = order[~alike]
        stays = stays[np.argsort(promise[stays], kind="stable")]
        return stays[:width], float(promise[stays[width:][:1]].min(initial=math.inf))

    def best(self) -> tuple[IntArray, float]:
        """Device of each item in the quickest placement, and its seconds."""
        row = int(np.argmin(self._value))
        found = np.zeros(len(self._history), dtype=np.int64)
        for step, (rows, choices) in zip(
            reversed(self._chain.steps), reversed(self._history), strict=True
        ):
            found[step.item] = step.devices[choices[row]]
            row = int(rows[row])
        return found, float(self._value.min())
