"""Placements with given counts of items per kind and device, see `counted.kinds`.

Items take devices in topological order; then items of one kind swap devices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.placers.exact.counted.kinds import Symmetry

_HALF = 0.5  # of a pair: the solver's numbers are nearly whole
_MOST_ORDERS = 120
_MANY_ITEMS = 2000  # above which few orders of devices are tried, and nothing is swapped
_FEW_ORDERS = 6


class Messages:
    """Seconds of the transfers of a placement, a term of its value under `sequential`."""

    def __init__(self, problem: Problem, symmetry: Symmetry) -> None:
        self.symmetry, self.host = symmetry, problem.cluster.host_endpoint
        self.n_devices = problem.n_devices
        type_of = {
            tensor: number for number, each in enumerate(symmetry.types) for tensor in each.tensors
        }
        self.type_of = [type_of[tensor] for tensor in range(len(symmetry.tensors))]
        n_items = len(symmetry.kind_of)
        self.made: list[list[int]] = [[] for _ in range(n_items)]
        self.read: list[list[int]] = [[] for _ in range(n_items)]
        for tensor, each in enumerate(symmetry.tensors):
            if each.source >= 0:
                self.made[each.source].append(tensor)
            for reader in each.readers:
                self.read[reader].append(tensor)

    def total(self, device_of: list[int]) -> float:
        """Seconds of all transfers."""
        return sum(self.of_tensor(tensor, device_of) for tensor in range(len(self.type_of)))

    def around(self, item: int, device_of: list[int]) -> FloatArray:
        """Seconds of the transfers from and to an item if it were on each device: (n_devices,)."""
        found, before = np.zeros(self.n_devices), device_of[item]
        tensors = [*self.made[item], *self.read[item]]
        for device in range(self.n_devices):
            device_of[item] = device
            found[device] = sum(self.of_tensor(tensor, device_of) for tensor in tensors)
        device_of[item] = before
        return found

    def of_tensor(self, tensor: int, device_of: list[int]) -> float:
        """Seconds of the transfers of one tensor, to the host included."""
        each, kind = self.symmetry.tensors[tensor], self.symmetry.types[self.type_of[tensor]]
        source = device_of[each.source] if each.source >= 0 else self.host
        targets = {device_of[reader] for reader in each.readers} - {source}
        seconds = sum(float(kind.arrival[source, target]) for target in targets)
        return seconds + (float(kind.exits[source]) if each.is_output else 0.0)


def constructed(
    symmetry: Symmetry,
    messages: Messages,
    counts: IntArray,
    pairs: dict[tuple[int, int], FloatArray],
    is_over: Callable[[], bool],
) -> Iterator[IntArray]:
    """Yield up to three placements of the items with the given counts, none worse than the last.

    The first uses one order of devices, the second the best of several orders, the third swaps.

    Args:
        counts: items of each kind on each device, (n_kinds, n_devices).
        pairs: (type of tensor, kind of its reader) -> number of such reads from each device to
            each device in the program's solution, which the placements follow.
        is_over: True ends the search after the present step.
    """
    best, best_value, first_value = None, math.inf, math.inf
    for order in _orders(symmetry, counts):
        device_of = _in_turn(symmetry, messages, counts, pairs, order)
        value = messages.total(device_of)
        if best is None:
            yield np.array(device_of, dtype=np.int64)
            first_value = value
        if value < best_value:
            best, best_value = device_of, value
        if is_over():
            break
    if best is None:
        return
    if best_value < first_value:
        yield np.array(best, dtype=np.int64)
    if len(symmetry.kind_of) <= _MANY_ITEMS:
        _swap(symmetry, messages, best, is_over)
        yield np.array(best, dtype=np.int64)


def _orders(symmetry: Symmetry, counts: IntArray) -> Iterator[tuple[int, ...]]:
    used = np.flatnonzero(counts.sum(axis=0)).tolist()
    many = len(symmetry.kind_of) > _MANY_ITEMS
    return itertools.islice(itertools.permutations(used), _FEW_ORDERS if many else _MOST_ORDERS)


def _in_turn(
    symmetry: Symmetry,
    messages: Messages,
    counts: IntArray,
    pairs: dict[tuple[int, int], FloatArray],
    order: tuple[int, ...],
) -> list[int]:
    """Give each item, producers first, the device on which it uses most of the left `pairs`.

    Among equals an item takes the device of the last item of its kind, then the first in order.
    """
    left, pairs_left = counts.tolist(), {key: value.copy() for key, value in pairs.items()}
    last = [-1] * symmetry.n_kinds
    device_of = [-1] * len(symmetry.kind_of)
    for item in symmetry.order.tolist():
        kind = int(symmetry.kind_of[item])
        ways = []
        for tensor in messages.read[item]:
            source = symmetry.tensors[tensor].source
            at = device_of[source] if source >= 0 else messages.host
            if at >= 0:
                ways.append((pairs_left[messages.type_of[tensor], kind], at))
        device = max(
            (device for device in order if left[kind][device] > 0),
            key=lambda device: (
                sum(rows[at, device] > _HALF for rows, at in ways),
                device == last[kind],
                -order.index(device),
            ),
        )
        for rows, at in ways:
            rows[at, device] -= 1.0
        left[kind][device] -= 1
        last[kind] = device_of[item] = device
    return device_of


def _swap(
    symmetry: Symmetry, messages: Messages, device_of: list[int], is_over: Callable[[], bool]
) -> None:
    """Swap the devices of two items of a kind while that saves seconds; counts do not change."""
    around = np.array([messages.around(item, device_of) for item in range(len(device_of))])
    neighbours = _neighbours(symmetry)
    while not is_over():
        at = np.array(device_of)
        gain = around - around[np.arange(len(at)), at][:, None]
        swapped = False
        for first, second in _candidates(symmetry, at, gain):
            before = _cost(messages, first, second, device_of)
            device_of[first], device_of[second] = device_of[second], device_of[first]
            if _cost(messages, first, second, device_of) < before - 1e-12 * abs(before):
                for item in {first, second, *neighbours[first], *neighbours[second]}:
                    around[item] = messages.around(item, device_of)
                swapped = True
                break
            device_of[first], device_of[second] = device_of[second], device_of[first]
        if not swapped:
            return


def _candidates(symmetry: Symmetry, at: IntArray, gain: FloatArray) -> Iterator[tuple[int, int]]:
    """Pairs of items of a kind whose swap may save seconds, largest first.

    For each two devices it is the pair of the items that would save most if each moved alone.
    """
    found = []
    for kind in range(symmetry.n_kinds):
        items = np.flatnonzero(symmetry.kind_of == kind)
        devices = np.unique(at[items]).tolist()
        for device, other in itertools.combinations(devices, 2):
            here, there = items[at[items] == device], items[at[items] == other]
            first = int(here[np.argmin(gain[here, other])])
            second = int(there[np.argmin(gain[there, device])])
            saved = float(gain[first, other] + gain[second, device])
            if saved < 0:
                found.append((saved, first, second))
    for _, first, second in sorted(found):
        yield first, second


def _cost(messages: Messages, first: int, second: int, device_of: list[int]) -> float:
    """Seconds of the transfers from and to two items; a transfer between them counts once."""
    of_both = {tensor for item in (first, second) for tensor in messages.made[item]}
    of_both |= {tensor for item in (first, second) for tensor in messages.read[item]}
    return sum(messages.of_tensor(tensor, device_of) for tensor in sorted(of_both))


def _neighbours(symmetry: Symmetry) -> list[set[int]]:
    found: list[set[int]] = [set() for _ in symmetry.kind_of]
    for tensor in symmetry.tensors:
        ends = [end for end in (tensor.source, *tensor.readers) if end >= 0]
        for end in ends:
            found[end].update(ends)
    return found
