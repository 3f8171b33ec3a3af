"""Outputs judged beside those of the unsplit model: by slice, and by the library's own scatter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Protocol, runtime_checkable

import numpy as np

from placewright.core.cluster import Device
from placewright.execution.runtime import HostArray, LoadedModel, PlainCall
from placewright.execution.slices import Slices, relative_error

# A split joins and separates other operators than any optimization level does, so that it may be
# somewhat farther from a level than the levels are from each other.
_SCATTER_SHARE = 4.0


@runtime_checkable
class RoundsOtherwise(Protocol):
    """A loaded model whose library can compute it with other kernels, which round otherwise.

    The check of outputs asks for them if the precision alone does not explain a difference.
    """

    def plain_at_other_levels(self, device: Device) -> Iterator[PlainCall]:
        """The unsplit model as `plain`, at other optimization levels, made as they are asked for.

        Levels that the library refuses are left out. As in `plain`, the graph takes no part: a
        fault in how we read the model must not look like rounding.
        """
        ...


@dataclass(frozen=True)
class JudgedOutput:
    """How far one output is from the unsplit model's, in the slices where that matters most.

    Attributes:
        error: largest difference in a group of slices, relative to the group's scale.
        tolerance: largest error that precision, or `scatter`, explains there.
        scatter: largest difference there between runs of the unsplit model itself at several
            optimization levels, relative to the same scale; 0 if the precision explains the error.
        part: which slices, if the output has slices of very different scale; else empty.
        random: two runs of the unsplit model differ, so that the output cannot be compared.
    """

    error: float
    tolerance: float
    scatter: float = 0.0
    part: str = ""
    random: bool = False

    @property
    def excess(self) -> float:
        """Error over tolerance: above 1 for a mismatch."""
        if self.random or self.error == 0.0 or np.isinf(self.tolerance):
            return 0.0
        return self.error / self.tolerance


class OutputCheck:
    """Compares outputs with those of the unsplit model as its own library runs it.

    Args:
        model: as the runtime has read it.
        devices: that the placement's segments index.
        plain: the model as its own library runs it on the first device; None asks for it.

    Raises:
        RuntimeFailure: the library refuses the model.
    """

    def __init__(
        self, model: LoadedModel, devices: Sequence[Device], plain: PlainCall | None = None
    ) -> None:
        self.tolerance = model.tolerance(devices)
        self.plain = model.plain(devices[0]) if plain is None else plain
        self._model, self._device = model, devices[0]
        self._levels: list[PlainCall] | None = None  # made when they are first needed

    def judged(
        self,
        inputs: Sequence[HostArray],
        found: Sequence[HostArray],
        expected: Sequence[HostArray],
    ) -> list[JudgedOutput]:
        """Each output where its error is largest beside what explains it.

        Args:
            inputs: values of all inputs, in the model's own order.
            found: outputs of the split.
            expected: those that `plain` gives.

        Raises:
            RuntimeFailure: the library fails with the model.
        """
        pairs = list(zip(found, expected, strict=True))
        judged = [self._judged(*pair, ()) for pair in pairs]
        if all(one.excess <= 1.0 for one in judged):
            return judged
        # Only now the library runs again: precision alone does not explain every error.
        runs = [list(expected), self.plain(inputs), self.plain(inputs)]
        n_equal = len(runs)
        runs += [run(inputs) for run in self._at_other_levels()]
        for at, pair in enumerate(pairs):
            if judged[at].excess > 1.0:
                values = [run[at] for run in runs]
                judged[at] = replace(
                    self._judged(*pair, values), random=self._is_random(values[:n_equal])
                )
        return judged

    def _judged(
        self, found: HostArray, expected: HostArray, runs: Sequence[HostArray]
    ) -> JudgedOutput:
        slices = Slices.of(expected)
        errors = slices.errors(found, expected)
        scatter = np.zeros(len(errors))
        for one, other in combinations(runs, 2):
            scatter = np.maximum(scatter, slices.errors(one, other))
        tolerance = np.maximum(self.tolerance, _SCATTER_SHARE * scatter)
        judged = [
            JudgedOutput(error, allowed, own, slices.told(group))
            for group, (error, allowed, own) in enumerate(
                zip(errors.tolist(), tolerance.tolist(), scatter.tolist(), strict=True)
            )
        ]
        return max(judged, key=lambda one: (one.excess, one.error))

    def _is_random(self, runs: Sequence[HostArray]) -> bool:
        """True if equal runs of the unsplit model differ by more than precision explains."""
        pairs = combinations(runs, 2)
        return max(relative_error(one, other) for one, other in pairs) > self.tolerance

    def _at_other_levels(self) -> list[PlainCall]:
        if self._levels is None:
            self._levels = []
            if isinstance(self._model, RoundsOtherwise):
                self._levels += self._model.plain_at_other_levels(self._device)
        return self._levels
