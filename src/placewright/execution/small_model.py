"""A small model that each framework builds, on which cuts, dispatch and contention are measured.

It has towers of several tensor sizes, each with two branches that may run at the same time. A
branch is a chain of pairs: a product, whose kernel has a layout of its own, and a light op.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.arrays import FloatArray

DEPTH, BRANCHES = 3, 2


@dataclass(frozen=True)
class ImageTower:
    """Convolutions of 3 x 3 and pooling: shape (1, channels, side, side) everywhere."""

    channels: int
    side: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of its input and of every tensor inside."""
        return (1, self.channels, self.side, self.side)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weight of each convolution."""
        return (self.channels, self.channels, 3, 3)


@dataclass(frozen=True)
class MatrixTower:
    """Matrix products and softmax: shape (count, width) everywhere."""

    count: int
    width: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of its input and of every tensor inside."""
        return (self.count, self.width)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weight of each product."""
        return (self.width, self.width)


@dataclass(frozen=True)
class SmallModel:
    """Towers of the model, and their weights."""

    NAME: ClassVar[str] = "small"
    VERSION: ClassVar[int] = 1  # goes up when the model changes
    towers: tuple[ImageTower | MatrixTower, ...] = (
        ImageTower(8, 12),
        ImageTower(24, 28),
        ImageTower(12, 64),
        MatrixTower(8, 48),
        MatrixTower(64, 256),
    )

    def weights(self) -> list[list[list[FloatArray]]]:
        """Weights by tower, branch and pair."""
        rng = np.random.default_rng(0)
        return [
            [[_drawn(rng, tower.weight_shape) for _ in range(DEPTH)] for _ in range(BRANCHES)]
            for tower in self.towers
        ]


def _drawn(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    drawn = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    return np.asarray(drawn, dtype=np.float32)
