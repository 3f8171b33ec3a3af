"""Items that are alike, and tensors that are alike: the symmetry that `sequential-ip` counts.

An item is a colocation class. Items of one *kind* cost the same on every device and keep as many
bytes of their own. Tensors of one *type* have producers of one kind, readers of the same kinds, and
the same size.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
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


def symmetry_of(problem: Problem) -> Symmetry:
    """Find what is alike in a problem."""
    items = problem.colocation
    seconds = np.zeros((items.n_groups, problem.n_devices))
    np.add.at(seconds, items.group_of, problem.costs.seconds)
    seconds = np.where(problem.allowed_by_class, seconds, np.inf)
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
        _ordered(problem),
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


def _ordered(problem: Problem) -> IntArray:
    """Items by their first unit in the topological order."""
    group_of = problem.colocation.group_of
    found = dict.fromkeys(group_of[problem.unit_graph.topological_order].tolist())
    return np.fromiter(found, np.int64, len(found))
