"""Which parts and pairs of devices ask the same program, so that it is solved once.

The layers of a transformer are the same part again and again, and alike devices may be exchanged.
"""

from __future__ import annotations

import hashlib

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.problem import Problem
from placewright.core.replicas import alike_devices
from placewright.placers.exact.parts.problems import part_problem
from placewright.simulation.event.arrays import event_arrays

Pair = tuple[int, int]
_MOST_COMPARED = 1000  # parts: each takes a millisecond or two


class Twins:
    """Parts that are alike, and pairs of devices (before, after) that alike devices make equal."""

    def __init__(self, problem: Problem, cuts: IntArray, parts: list[IntArray]) -> None:
        """Compare the parts of several units, where there are not too many.

        Args:
            problem: the whole, of execution model `event`.
            cuts: articulation units in topological order, shape (n_parts - 1,).
            parts: units of each part in topological order, the later articulation unit last.
        """
        self._n_parts = len(parts)
        self._pool = alike_devices(problem).group_of
        self._first = list(range(len(parts)))
        compared = [at for at, units in enumerate(parts) if len(units) > 1]
        if len(compared) <= _MOST_COMPARED:
            firsts: dict[bytes, int] = {}
            for at in compared:
                before = None if at == 0 else int(cuts[at - 1])
                content = _content(problem, parts[at], before, at == len(parts) - 1)
                self._first[at] = firsts.setdefault(content, at)
        self._alike: dict[int, list[int]] = {}
        for at, first in enumerate(self._first):
            self._alike.setdefault(first, []).append(at)

    def program(self, part: int, pair: Pair) -> tuple[int, Pair]:
        """The part and the pair whose program stands for this one."""
        return self._first[part], self._standing(part, pair)

    def alike(self, part: int, pair: Pair) -> list[tuple[int, Pair]]:
        """All parts and pairs that have the program of this one."""
        befores = [0] if part == 0 else self._members(pair[0])
        afters = [0] if self._is_last(part) else self._members(pair[1])
        standing = self._standing(part, pair)
        pairs = [(before, after) for before in befores for after in afters]
        pairs = [one for one in pairs if self._standing(part, one) == standing]
        return [(other, one) for other in self._alike[self._first[part]] for one in pairs]

    def exchanged(self, device_of: IntArray, part: int, pair: Pair) -> IntArray:
        """Devices of a solution of `program(part, pair)`, exchanged so that they fit the pair."""
        image = np.arange(len(self._pool))
        has_end = (part > 0, not self._is_last(part))
        for is_end, device, wanted in zip(has_end, self._standing(part, pair), pair, strict=True):
            if is_end:
                at = int(np.flatnonzero(image == wanted)[0])
                image[[device, at]] = image[[at, device]]
        return np.asarray(image[device_of])

    def _standing(self, part: int, pair: Pair) -> Pair:
        before = 0 if part == 0 else self._members(pair[0])[0]
        if self._is_last(part):
            return before, 0
        members = self._members(pair[1])
        is_other = part > 0 and self._pool[pair[0]] == self._pool[pair[1]] and pair[0] != pair[1]
        return before, members[1] if is_other else members[0]

    def _members(self, device: int) -> list[int]:
        return [int(one) for one in np.flatnonzero(self._pool == self._pool[device])]

    def _is_last(self, part: int) -> bool:
        return part == self._n_parts - 1


def _content(problem: Problem, units: IntArray, before: int | None, is_last: bool) -> bytes:
    """All that the program of a part reads, with units and tensors in the order of the part."""
    allowed = problem.allowed_by_class[problem.colocation.group_of]
    ends = [] if before is None else [before]
    cut = None if before is None else (before, int(allowed[before].argmax()))
    after = None
    if not is_last:
        ends.append(int(units[-1]))
        after = int(allowed[units[-1]].argmax())
    part = part_problem(problem, units, cut, after)
    arrays = event_arrays(part.problem)
    digest = hashlib.sha256(repr((before is None, is_last)).encode())
    for array in (allowed[ends], part.in_order, *arrays):
        digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(b";")
    return digest.digest()
