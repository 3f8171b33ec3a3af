"""Compare outputs with the unsplit model's, slice by slice, and allow for the library's scatter.

A detector may put boxes of hundreds of pixels and scores of hundredths into one tensor. Relative to
the boxes, a wrong score looks like rounding. So the slices along an axis are grouped by their
largest magnitude, a decade each, and a difference counts relative to the scale of its own group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Protocol, runtime_checkable

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.cluster import Device
from placewright.execution.runtime import HostArray, LoadedModel, PlainCall

# A split joins and separates other operators than any optimization level does. So it may differ
# somewhat more from a level than the levels differ from each other.
_SCATTER_FACTOR = 4.0
_LEAST_VALUES = 8  # of a slice; the largest of fewer values may be small by chance
_SMALLEST_SCALE = 1e-12
# Share of the tensor's largest magnitude; smaller slices count as this large. With a tolerance of
# 2e-4 that allows 1e-7 of the largest: even a dead channel of a convolution has such rounding.
_SMALLEST_SHARE = 5e-4


@runtime_checkable
class RoundsOtherwise(Protocol):
    """A loaded model that its library can also run in other ways, which round differently.

    The check of outputs uses them if the precision alone does not explain a difference.
    """

    def plain_at_other_levels(self, devices: Sequence[Device]) -> Iterator[PlainCall]:
        """Yield the unsplit model, as `plain` runs it, at other optimization levels.

        The levels are those of the first device, and each precision in which a later one computes.
        Levels that the library refuses are left out. As in `plain`, our graph is not used: an error
        of our reader must not look like rounding.
        """
        ...


@dataclass(frozen=True)
class JudgedOutput:
    """Error of an output in the slices where it is largest relative to its tolerance."""

    error: float  # largest difference in a group of slices, relative to the group's scale
    tolerance: float  # largest error that precision, or `scatter`, explains there
    # largest difference there between runs of the unsplit model itself at several optimization
    # levels, relative to the same scale; 0 if the precision explains the error
    scatter: float = 0.0
    # name of the slices, if the output has slices of very different scale; else empty
    part: str = ""
    # equal runs of the unsplit model differ, so that the output cannot be compared
    random: bool = False
    # values that runs of the unsplit model leave open: they differ in an integer, NaN or infinity
    disputed: int = 0
    is_left_open: bool = False  # every value is disputed, so that none was compared

    @property
    def is_compared(self) -> bool:
        """False if runs of the unsplit model itself leave nothing to compare."""
        return not (self.random or self.is_left_open)

    @property
    def excess(self) -> float:
        """Error over tolerance: above 1 for a mismatch."""
        if self.random or self.error == 0.0 or np.isinf(self.tolerance):
            return 0.0
        return self.error / self.tolerance


class OutputCheck:
    """Compares outputs of a split with those of the unsplit model, run by its own library.

    Args:
        devices: to which the device numbers of segments refer.
        plain: the model as its own library runs it on the first device; default
            ``model.plain(devices[0])``.
        levels_of: devices whose precisions the other levels take, the first of `devices` before
            the others; default all.

    Raises:
        RuntimeFailure: the library refuses the model.
    """

    def __init__(
        self,
        model: LoadedModel,
        devices: Sequence[Device],
        plain: PlainCall | None = None,
        *,
        levels_of: Sequence[Device] | None = None,
    ) -> None:
        self.tolerance = model.tolerance(devices)
        self.plain = model.plain(devices[0]) if plain is None else plain
        self._model = model
        self._levels_of = devices if levels_of is None else levels_of
        self._levels: list[PlainCall] | None = None  # made when they are needed
        self.random: set[int] = set()  # numbers of the outputs that were found to be random
        self.compared: set[int] = set()  # of those that were compared at least once

    def judged(
        self,
        inputs: Sequence[HostArray],
        actual: Sequence[HostArray],
        expected: Sequence[HostArray],
    ) -> list[JudgedOutput]:
        """Judge each output in the slices where its error is largest relative to its tolerance.

        Args:
            inputs: values of all inputs, in the model's own order.
            actual: outputs of the split.
            expected: outputs of `plain`.

        Raises:
            RuntimeFailure: the library fails with the model.
        """
        pairs = list(zip(actual, expected, strict=True))
        judged = [self._judged(*pair, ()) for pair in pairs]
        if any(output.excess > 1.0 for output in judged):
            self._judge_by_runs(inputs, pairs, judged)
        self.compared.update(at for at, output in enumerate(judged) if output.is_compared)
        return judged

    def _judge_by_runs(
        self,
        inputs: Sequence[HostArray],
        pairs: Sequence[tuple[HostArray, HostArray]],
        judged: list[JudgedOutput],
    ) -> None:
        """Judge outputs with an excess above 1 again, by what further runs differ by."""
        # Precision alone does not explain every error, so the library runs again.
        runs = [[expected for _, expected in pairs], self.plain(inputs), self.plain(inputs)]
        n_equal = len(runs)
        runs += [run(inputs) for run in self._at_other_levels()]
        for at, pair in enumerate(pairs):
            if judged[at].excess > 1.0:
                values = [run[at] for run in runs]
                is_random = self._is_random(values[:n_equal])
                judged[at] = replace(self._judged(*pair, values), random=is_random)
                if is_random:
                    self.random.add(at)

    def _judged(
        self, actual: HostArray, expected: HostArray, runs: Sequence[HostArray]
    ) -> JudgedOutput:
        runs, n_disputed = [run for run in runs if run.shape == actual.shape], 0
        if runs:  # an output whose shape only other levels give is compared with theirs
            expected = runs[0]
            # Where the runs themselves differ beyond rounding, no value can be called wrong. All
            # other values are compared as ever.
            disputed = np.any([_is_disputed(run, expected) for run in runs], axis=0)
            n_disputed = int(disputed.sum())
            actual, *runs = (np.where(disputed, expected, one) for one in (actual, *runs))
        slices = Slices.of(expected)
        errors = slices.errors(actual, expected)
        scatter = np.zeros(len(errors))
        for run, other in combinations(runs, 2):
            scatter = np.maximum(scatter, slices.errors(run, other))
        tolerance = np.maximum(self.tolerance, _SCATTER_FACTOR * scatter)
        judged = [
            JudgedOutput(error, allowed, scattered, slices.name_of(group))
            for group, (error, allowed, scattered) in enumerate(
                zip(errors.tolist(), tolerance.tolist(), scatter.tolist(), strict=True)
            )
        ]
        worst = max(judged, key=lambda output: (output.excess, output.error))
        is_left_open = 0 < n_disputed == actual.size
        return replace(worst, disputed=n_disputed, is_left_open=is_left_open)

    def _is_random(self, runs: Sequence[HostArray]) -> bool:
        """True if equal runs of the unsplit model differ by more than precision explains."""
        pairs = combinations(runs, 2)
        return max(relative_error(run, other) for run, other in pairs) > self.tolerance

    def _at_other_levels(self) -> list[PlainCall]:
        if self._levels is None:
            self._levels = []
            if isinstance(self._model, RoundsOtherwise):
                self._levels += self._model.plain_at_other_levels(self._levels_of)
        return self._levels


@dataclass(frozen=True)
class Slices:
    """Groups of a tensor's slices by their largest magnitude."""

    axis: int | None  # along which the slices lie; None if the whole tensor is the only group
    group_of: IntArray  # of each slice, shape (n_slices,)
    # largest finite magnitude of each group, descending, or 5e-4 of the tensor's largest if that is
    # more, shape (n_groups,)
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
        per_slice, axis = min(axes, key=lambda row: (float(row[0].min()), -row[1]))
        per_slice = np.maximum(per_slice, max(_SMALLEST_SHARE * largest, _SMALLEST_SCALE))
        decades = np.floor(np.log10(largest / per_slice))
        groups, group_of = np.unique(decades, return_inverse=True)
        if len(groups) == 1:
            return Slices.whole(expected)
        scales = np.zeros(len(groups))
        np.maximum.at(scales, group_of, per_slice)
        return Slices(axis, group_of, scales)

    def name_of(self, group: int) -> str:
        """Name of a group for messages; empty if the whole tensor is the only group."""
        if self.axis is None:
            return ""
        count = int((self.group_of == group).sum())
        named = (
            f"slice {int(np.argmax(self.group_of == group))}" if count == 1 else f"{count} slices"
        )
        return f"{named} of axis {self.axis} with values up to {self.scales[group]:.2g}"

    def errors(self, actual: HostArray, expected: HostArray) -> FloatArray:
        """Largest difference in each group over its scale, shape (n_groups,).

        NaN and infinity must stand at the same places, with the same sign. There they do not count;
        anywhere else they make the error infinite.
        """
        if actual.shape == expected.shape and np.array_equal(actual, expected, equal_nan=True):
            return np.zeros(len(self.scales))
        never = np.full(len(self.scales), np.inf)
        if actual.shape != expected.shape or not np.issubdtype(expected.dtype, np.inexact):
            return never
        mine, other = actual.astype(_wide(expected)), expected.astype(_wide(expected))
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


def _is_disputed(run: HostArray, expected: HostArray) -> BoolArray:
    """True where two runs differ in an integer, NaN or infinity."""
    if not np.issubdtype(expected.dtype, np.inexact):
        return np.asarray(run != expected)
    is_same = (run == expected) | (np.isnan(run) & np.isnan(expected))
    return np.asarray(~(is_same | (np.isfinite(run) & np.isfinite(expected))))


def _sizes(values: HostArray) -> FloatArray:
    """Magnitudes; 0 for NaN and infinity, and for integers and booleans."""
    if not np.issubdtype(values.dtype, np.inexact):
        return np.zeros(values.shape)
    sizes: FloatArray = np.asarray(np.abs(values.astype(_wide(values))))  # a scalar has no items
    sizes[~np.isfinite(sizes)] = 0.0
    return sizes


def _largest(sizes: FloatArray, axis: int) -> FloatArray:
    """Largest magnitude of each slice along an axis, shape (n_slices,)."""
    others = tuple(other for other in range(sizes.ndim) if other != axis)
    largest: FloatArray = sizes.max(axis=others, initial=0.0)
    return largest


def _wide(values: HostArray) -> type[np.complex128] | type[np.float64]:
    is_complex = np.issubdtype(values.dtype, np.complexfloating)
    return np.complex128 if is_complex else np.float64


def relative_error(actual: HostArray, expected: HostArray) -> float:
    """Largest difference over the largest expected magnitude; 0 if both are 0.

    NaN and infinity are treated as by `Slices.errors`.
    """
    return float(Slices.whole(expected).errors(actual, expected)[0])
