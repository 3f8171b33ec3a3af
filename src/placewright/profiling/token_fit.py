"""Rates of a device for language models, from seconds of probes of two sizes.

    seconds of a pass of a probe = per pass + layers x seconds of a layer
    seconds of a layer = kernels x launch + operations x seconds per operation
                         + pairs of tokens x seconds per pair

Two probes that differ in their layers alone give the seconds of a layer. One of them may have none,
if the seconds of a pass beyond layers are known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placewright.core.data_sheet import TokenRates

ROWS = (1, 4, 16, 64, 256)  # tokens of a pass that are measured; 1 is a step of decode
_LEAST = 0.1  # part of a time, or of a rate, that stays if noise makes a difference smaller


@dataclass(frozen=True)
class ProbePair:
    """Seconds of a pass of two probes that differ in the number of their layers."""

    layers: tuple[int, int]  # of both
    seconds: tuple[Mapping[int, float], Mapping[int, float]]  # tokens of a pass -> seconds, of both
    operations: tuple[float, float]  # per token and layer, of dense products and of experts
    kernels: int  # of a layer
    share: float = 1.0  # of the experts that a token uses; 1 without experts

    def of_layer(self, rows: int) -> float:
        """Seconds of a layer in a pass of so many tokens."""
        small, large = (seconds[rows] for seconds in self.seconds)
        slope = (large - small) / (self.layers[1] - self.layers[0])
        return max(slope, _LEAST * large / self.layers[1])

    def fixed(self, rows: int) -> float:
        """Seconds of a pass beyond its layers."""
        return max(0.0, self.seconds[0][rows] - self.layers[0] * self.of_layer(rows))


def launch_seconds(tiny: ProbePair) -> float:
    """Seconds to start a kernel, by probes whose products take next to no time."""
    return max(0.0, tiny.of_layer(1)) / tiny.kernels


def dense_table(pair: ProbePair, launch: float) -> tuple[float, ...]:
    """Seconds per operation of dense products, for each of `ROWS`."""
    return tuple(
        _left(pair.of_layer(rows), pair.kernels * launch) / (pair.operations[0] * rows)
        for rows in ROWS
    )


def _left(whole: float, known: float) -> float:
    """Difference of two times, but at least a tenth of the whole."""
    return max(whole - known, _LEAST * whole)


def expert_table(pair: ProbePair, launch: float, dense: Sequence[float]) -> tuple[float, ...]:
    """Seconds per operation of routed experts, for each of `ROWS` of tokens of an expert.

    Args:
        pair: with experts.
        launch: seconds of a kernel.
        dense: table of the dense products of the same format.
    """
    at, found = [], []
    for rows, rate in zip(ROWS, dense, strict=True):
        touched = 1.0 - (1.0 - pair.share) ** rows
        known = pair.kernels * launch + pair.operations[0] * rows * rate
        left = _left(pair.of_layer(rows), known)
        at.append(math.log(max(1.0, rows * pair.share / touched)))
        found.append(math.log(left / (pair.operations[1] * rows)))
    return tuple(float(np.exp(np.interp(math.log(rows), at, found))) for rows in ROWS)


def score_table(
    shallow: ProbePair, deep: ProbePair, depth: int, per_pair: float, dense: Sequence[float]
) -> tuple[float, ...]:
    """Seconds per operation of attention on its cache, for each of `ROWS`.

    Args:
        shallow, deep: the same probes without and with tokens in their caches.
        depth: number of these tokens.
        per_pair: operations for a pair of tokens.
        dense: table of dense products; scores are taken as ten times as fast at most.
    """
    measured = sorted(set(deep.seconds[0]) & set(shallow.seconds[0]))
    found = [
        max(
            _LEAST * dense[ROWS.index(r)],
            (deep.of_layer(r) - shallow.of_layer(r)) / (r * depth * per_pair),
        )
        for r in measured
    ]
    at = np.log(measured)
    return tuple(float(np.exp(np.interp(math.log(r), at, np.log(found)))) for r in ROWS)


def token_rates(
    products: Mapping[str, tuple[float, ...]],
    scores: tuple[float, ...],
    launch: float,
    per_pass: float,
    source: str,
) -> TokenRates:
    """The tables of a device; see `core.data_sheet.TokenRates`."""
    rows = tuple(float(number) for number in ROWS)
    return TokenRates(rows, products, scores, launch, per_pass, source)
