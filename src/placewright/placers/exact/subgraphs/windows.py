"""Connected units that keep more bytes than one accelerator holds."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.placers.pipelines.ideals.load_model import grouped_entries


@dataclass(frozen=True)
class Window:
    """A tree of units that are not all on one accelerator.

    Attributes:
        root: the unit that it grew from.
        edges: (producer, consumer, whether it leads away from the root) of each edge of the tree.
    """

    root: int
    edges: tuple[tuple[int, int, bool], ...]


class Windows:
    """Finds windows: from each unit along a heavy path, and from each unit by dearest edges.

    Args:
        problem: what is placed.
        transfer: seconds of each tensor, shape (n_tensors,).
        limit: bytes of the largest accelerator.
    """

    def __init__(self, problem: Problem, transfer: FloatArray, limit: float) -> None:
        self._graph, self._limit = problem.unit_graph, limit
        self._group_of = problem.colocation.group_of
        self._weights, self._sizes = grouped_entries(problem, problem.colocation)
        rows = self._weights.row_of_each()
        own = np.bincount(rows, self._sizes[self._weights.indices], problem.colocation.n_groups)
        self._own: FloatArray = np.asarray(own[self._group_of], dtype=np.float64)
        self._neighbours: list[list[tuple[float, int, int, bool]]] = [
            [] for _ in range(problem.n_units)
        ]
        for tensor, producer in enumerate(self._graph.tensor_producers.tolist()):
            readers = self._graph.tensor_consumers.row(tensor).tolist() if producer >= 0 else []
            for reader in readers:
                dear = -float(transfer[tensor])
                self._neighbours[producer].append((dear, reader, tensor, True))
                self._neighbours[reader].append((dear, producer, tensor, False))

    def __iter__(self) -> Iterator[Window]:
        """Each window once."""
        if float(self._sizes.sum()) <= self._limit:
            return
        order = self._graph.topological_order
        seen: set[Window] = set()
        ways = (self._along(order[::-1], True), self._along(order, False), self._dearest)
        for grown in ways:
            for root in order.tolist():
                window = grown(root)
                if window is not None and window not in seen:
                    seen.add(window)
                    yield window

    def _kept(self, unit: int) -> list[int]:
        return list(self._weights.row(int(self._group_of[unit])).tolist())

    def _along(self, order: IntArray, forward: bool) -> Callable[[int], Window | None]:
        """Windows on the path from which most bytes can be met, in one direction."""
        graph = self._graph
        neighbours = graph.successors if forward else graph.predecessors
        ahead = np.array(self._own)
        for unit in order.tolist():
            ahead[unit] += ahead[neighbours.row(unit)].max(initial=0.0)

        def grown(root: int) -> Window | None:
            held, unit = _Held(self._sizes, self._kept(root)), root
            edges: list[tuple[int, int, bool]] = []
            while held.total <= self._limit:
                following = neighbours.row(unit)
                if len(following) == 0:
                    return None
                before, unit = unit, int(following[np.argmax(ahead[following])])
                edges.append((before, unit, True) if forward else (unit, before, False))
                held.add(self._kept(unit))
            return Window(root, tuple(edges)) if edges else None

        return grown

    def _dearest(self, root: int) -> Window | None:
        """The window that grows by the dearest tensor that crosses its border."""
        held, inside = _Held(self._sizes, self._kept(root)), {root}
        edges: list[tuple[int, int, bool]] = []
        border = [(*edge, root) for edge in self._neighbours[root]]
        heapq.heapify(border)
        while held.total <= self._limit:
            if not border:
                return None
            _, unit, _, forward, known = heapq.heappop(border)
            if unit in inside:
                continue
            inside.add(unit)
            edges.append((known, unit, True) if forward else (unit, known, False))
            held.add(self._kept(unit))
            for edge in self._neighbours[unit]:
                heapq.heappush(border, (*edge, unit))
        return Window(root, tuple(edges)) if edges else None


class _Held:
    """Bytes of weights, each once."""

    def __init__(self, sizes: FloatArray, weights: list[int]) -> None:
        self._sizes, self._weights, self.total = sizes, set[int](), 0.0
        self.add(weights)

    def add(self, weights: list[int]) -> None:
        """Hold these, too."""
        for weight in weights:
            if weight not in self._weights:
                self._weights.add(weight)
                self.total += float(self._sizes[weight])
