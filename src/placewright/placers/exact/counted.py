"""Alike items and tensors, which `sequential-ip` counts, and layouts of items by their counts.

An item is a colocation class. Items of one *kind* cost the same on every device and keep as many
bytes of their own. Tensors of one *type* have producers of one kind, readers of the same kinds, and
the same size.

Placements with given counts are constructed: items take devices in topological order; then items
of one kind swap devices.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.placers.legal import class_seconds, classes_in_order
from placewright.simulation.layout import problem_arrays
from placewright.simulation.sequential import Ways, messages_of, ways_of


@dataclass(frozen=True)
class ItemTensor:
    """A tensor between items."""

    source: int  # item that makes it, -1 for a graph input
    readers: tuple[int, ...]  # other items that read it, each once, ascending
    tensor: int  # of the unit graph
    is_output: bool  # of the model


@dataclass(frozen=True, eq=False)
class TensorType:
    """Tensors that are alike."""

    tensors: tuple[int, ...]  # members, numbers of `Symmetry.tensors`
    source: int  # kind of the producers, -1 for graph inputs
    readers: dict[int, int]  # kind -> items of that kind that read one tensor
    arrival: FloatArray  # seconds of an arrival, (n_endpoints, n_devices)
    exits: FloatArray  # seconds to the host, (n_devices,); zeros if they are no outputs


@dataclass(frozen=True, eq=False)
class Symmetry:
    """A problem by kinds."""

    kind_of: IntArray  # of each item, (n_items,)
    n_of: IntArray  # items of each kind, (n_kinds,)
    seconds: FloatArray  # of an item of each kind, (n_kinds, n_devices); inf where it may not run
    own_bytes: FloatArray  # that an item of each kind keeps alone, (n_kinds,)
    # bytes of entries that items of several kinds keep, with these kinds
    shared: tuple[tuple[float, tuple[int, ...]], ...]
    tensors: tuple[ItemTensor, ...]  # between items
    types: tuple[TensorType, ...]  # of the tensors
    order: IntArray  # items, producers first

    @property
    def n_kinds(self) -> int:
        """Number of kinds."""
        return len(self.n_of)

    @property
    def is_listed(self) -> bool:
        """True if no two items are alike, so that the program is exact."""
        return len(self.n_of) == len(self.kind_of)

    @cached_property
    def type_of(self) -> list[int]:
        """Type of each tensor."""
        found = {tensor: at for at, each in enumerate(self.types) for tensor in each.tensors}
        return [found[tensor] for tensor in range(len(self.tensors))]


def symmetry_of(problem: Problem) -> Symmetry:
    """Find what is alike in a problem."""
    items = problem.colocation
    seconds = class_seconds(problem)
    own, shared_of, sizes = _entries(problem)
    keys: dict[Any, int] = {}
    kind_of = np.array(
        [
            keys.setdefault((seconds[item].tobytes(), float(own[item]), shared_of[item]), len(keys))
            for item in range(items.n_groups)
        ],
        dtype=np.int64,
    )
    first = np.unique(kind_of, return_index=True)[1]
    needed: dict[int, set[int]] = {}
    for item, entries in enumerate(shared_of):
        for entry in entries:
            needed.setdefault(entry, set()).add(int(kind_of[item]))
    tensors = _item_tensors(problem)
    return Symmetry(
        kind_of,
        np.bincount(kind_of),
        seconds[first],
        own[first],
        tuple((float(sizes[entry]), tuple(sorted(kinds))) for entry, kinds in needed.items()),
        tensors,
        _types(problem, tensors, kind_of),
        classes_in_order(problem),
    )


def _entries(problem: Problem) -> tuple[FloatArray, list[tuple[int, ...]], FloatArray]:
    """Bytes that each item keeps alone, entries that it shares with others, sizes of entries."""
    kept, items = problem.kept, problem.colocation
    own = np.zeros(items.n_groups)
    shared: list[list[int]] = [[] for _ in range(items.n_groups)]
    for entry in range(len(kept.sizes)):
        users = np.unique(items.group_of[kept.units.row(entry)])
        if len(users) == 1:
            own[users[0]] += kept.sizes[entry]
        else:
            for item in users.tolist():
                shared[item].append(entry)
    return own, [tuple(row) for row in shared], kept.sizes


def _item_tensors(problem: Problem) -> tuple[ItemTensor, ...]:
    graph, group_of = problem.unit_graph, problem.colocation.group_of
    found = []
    for tensor in range(graph.n_tensors):
        producer = int(graph.tensor_producers[tensor])
        source = int(group_of[producer]) if producer >= 0 else -1
        readers = set(group_of[graph.tensor_consumers.row(tensor)].tolist()) - {source}
        is_output = bool(graph.tensor_is_output[tensor]) and producer >= 0
        if readers or is_output:
            found.append(ItemTensor(source, tuple(sorted(readers)), tensor, is_output))
    return tuple(found)


def _types(
    problem: Problem, tensors: tuple[ItemTensor, ...], kind_of: IntArray
) -> tuple[TensorType, ...]:
    arrays = problem_arrays(problem)
    ways = ways_of(arrays, messages_of(problem))
    members: dict[Any, list[int]] = {}
    for number, each in enumerate(tensors):
        readers = Counter(kind_of[list(each.readers)].tolist()) if each.readers else Counter()
        own = float(arrays.own_transfer[each.tensor]) if len(arrays.own_transfer) else 0.0
        source = int(kind_of[each.source]) if each.source >= 0 else -1
        size = float(arrays.tensor_bytes[each.tensor])
        key = source, tuple(sorted(readers.items())), size, own, each.is_output
        members.setdefault(key, []).append(number)
    return tuple(
        TensorType(
            tuple(numbers), key[0], dict(key[1]), *_rates(problem, ways, tensors[numbers[0]])
        )
        for key, numbers in members.items()
    )


def _rates(problem: Problem, ways: Ways, each: ItemTensor) -> tuple[FloatArray, FloatArray]:
    arrays = problem_arrays(problem)
    sources, targets = np.indices(ways.fixed.shape)
    tensors = np.full(sources.size, each.tensor)
    arrival = ways.arrivals(arrays, tensors, sources.ravel(), targets.ravel())
    devices = np.arange(problem.n_devices)
    exits = ways.exits(arrays, np.full(problem.n_devices, each.tensor), devices)
    return arrival.reshape(sources.shape), exits if each.is_output else np.zeros_like(exits)


_HALF = 0.5  # of a pair: the solver's numbers are nearly whole
_MOST_ORDERS = 120
_MANY_ITEMS = 2000  # above which few orders of devices are tried, and nothing is swapped
_FEW_ORDERS = 6


class Messages:
    """Seconds of the transfers of a placement, a term of its value under `sequential`."""

    def __init__(self, problem: Problem, symmetry: Symmetry) -> None:
        self.symmetry, self.host = symmetry, problem.cluster.host_endpoint
        self.n_devices = problem.n_devices
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
        return sum(
            self.of_tensor(tensor, device_of) for tensor in range(len(self.symmetry.tensors))
        )

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
        each, kind = (
            self.symmetry.tensors[tensor],
            self.symmetry.types[self.symmetry.type_of[tensor]],
        )
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
        if best is None or value < best_value:
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
                ways.append((pairs_left[symmetry.type_of[tensor], kind], at))
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
