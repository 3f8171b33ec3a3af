"""Slices of one tensor whose magnitudes differ widely, each judged against its own scale.

A detector may put boxes of hundreds of pixels and scores of hundredths into one tensor: relative to
the boxes, a wrong score looks like rounding. So the slices along one axis are put into groups by
their largest magnitude, a decade each, and a difference counts relative to its own group's scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.execution.runtime import HostArray

_LEAST_VALUES = 8  # of a slice; the largest of fewer values may be small by chance
_SMALLEST_SCALE = 1e-12
# Of the tensor's largest magnitude. Smaller slices count as this large: with a tolerance of 2e-4,
# that allows 1e-7 of the largest, the rounding that even a dead channel of a convolution has.
_LEAST_SHARE = 5e-4


@dataclass(frozen=True)
class Slices:
    """Groups of a tensor's slices by their largest magnitude.

    Attributes:
        axis: along which the slices lie; None if the whole tensor is the only group.
        group_of: of each slice, shape (n_slices,).
        scales: largest finite magnitude of each group, descending, or 5e-4 of the tensor's largest
            where that is more, shape (n_groups,).
    """

    axis: int | None
    group_of: IntArray
    scales: FloatArray

    @staticmethod
    def whole(expected: HostArray) -> Slices:
        """The whole tensor as its only group."""
        largest = max(float(_sizes(expected).max(initial=0.0)), _SMALLEST_SCALE)
        return Slices(None, np.zeros(1, dtype=np.int64), np.array([largest]))

    @staticmethod
    def of(expected: HostArray) -> Slices:
        """The groups along the axis whose slices' magnitudes differ most.

        Axes whose slices have fewer than eight values are left out.
        """
        sizes = _sizes(expected)
        largest = float(sizes.max(initial=0.0))
        axes = [
            (_largest(sizes, axis), axis)
            for axis, length in enumerate(expected.shape)
            if length > 1 and sizes.size >= _LEAST_VALUES * length
        ]
        if not axes or largest == 0.0:
            return Slices.whole(expected)
        per_slice, axis = min(axes, key=lambda one: (float(one[0].min()), -one[1]))
        per_slice = np.maximum(per_slice, max(_LEAST_SHARE * largest, _SMALLEST_SCALE))
        decades = np.floor(np.log10(largest / per_slice))
        groups, group_of = np.unique(decades, return_inverse=True)
        if len(groups) == 1:
            return Slices.whole(expected)
        scales = np.zeros(len(groups))
        np.maximum.at(scales, group_of, per_slice)
        return Slices(axis, group_of, scales)

    def told(self, group: int) -> str:
        """Which slices a group has, for messages; empty if the whole tensor is the only group."""
        if self.axis is None:
            return ""
        count = int((self.group_of == group).sum())
        named = (
            f"slice {int(np.argmax(self.group_of == group))}" if count == 1 else f"{count} slices"
        )
        return f"{named} of axis {self.axis} with values up to {self.scales[group]:.2g}"

    def errors(self, found: HostArray, expected: HostArray) -> FloatArray:
        """Largest difference in each group over its scale, shape (n_groups,).

        What is no number, or infinite, must be so at the same places (and with the same sign): it
        is left out of the difference there, and makes the error infinite anywhere else.
        """
        if found.shape == expected.shape and np.array_equal(found, expected, equal_nan=True):
            return np.zeros(len(self.scales))
        never = np.full(len(self.scales), np.inf)
        if found.shape != expected.shape or not np.issubdtype(expected.dtype, np.inexact):
            return never
        mine, other = found.astype(_wide(expected)), expected.astype(_wide(expected))
        numbers = np.isfinite(other)
        if not np.array_equal(np.isfinite(mine), numbers) or not np.array_equal(
            mine[~numbers], other[~numbers], equal_nan=True
        ):
            return never
        off = np.abs(np.subtract(mine, other, where=numbers, out=np.zeros_like(other)))
        if self.axis is None:
            return np.array([float(off.max(initial=0.0))]) / self.scales
        largest = np.zeros(len(self.scales))
        np.maximum.at(largest, self.group_of, _largest(off, self.axis))
        return largest / self.scales


def _sizes(values: HostArray) -> FloatArray:
    """Magnitudes; 0 for what is no number or infinite, and for values that are not inexact."""
    if not np.issubdtype(values.dtype, np.inexact):
        return np.zeros(values.shape)
    found: FloatArray = np.asarray(np.abs(values.astype(_wide(values))))  # a scalar has no items
    found[~np.isfinite(found)] = 0.0
    return found


def _largest(sizes: FloatArray, axis: int) -> FloatArray:
    """Of each slice along an axis, shape (n_slices,)."""
    others = tuple(other for other in range(sizes.ndim) if other != axis)
    found: FloatArray = sizes.max(axis=others, initial=0.0)
    return found


def _wide(values: HostArray) -> type[np.complex128] | type[np.float64]:
    is_complex = np.issubdtype(values.dtype, np.complexfloating)
    return np.complex128 if is_complex else np.float64


def relative_error(found: HostArray, expected: HostArray) -> float:
    """Largest difference over the largest magnitude of what was expected; 0 where both are 0.

    Values that are no number, or infinite, are treated as by `Slices.errors`.
    """
    return float(Slices.whole(expected).errors(found, expected)[0])
