"""A lower bound on the latency of atomic subgraphs: paths that pay for leaving an accelerator.

The published program (see `program`) allows q serialised subgraphs per accelerator, so its bound
does not hold if a placement may have any number of pieces (`subgraph`). This program relaxes both
execution models. It keeps the assignment of each class to an accelerator or to the CPUs, and the
memory of the accelerators. Of time, it keeps the following:

A piece first receives, then computes in topological order, then sends. Let end[v] be the moment
when unit v is computed in it (or has run on its CPU). For every tensor t from u to v
  end[v] >= end[u] + out(t, u, v) + in(t, u, v) + seconds of v,
because a piece that t leaves ends after u and after t is sent, and one that t enters receives it
before v. Further, t is received before the first unit that reads it in the global order; that unit
waits for all tensors of which it is the first reader, whichever path is looked at:
  end[v] >= ... + the sum over such tensors t of in(t, producer of t, v).
Left out are: pieces that wait for unrelated inputs, what else is in them, second readers of an
entering tensor, and pieces of one accelerator that send to each other.

Columns: x[class, machine], machine 0 all CPUs together; leaves[u, v, d] >= x[u, d] - x[v, d] for
classes on an edge; then x[v, d] - x[u, d] + leaves[u, v, d] is 1 if v on d reads u's tensor from
elsewhere. Both are priced only on accelerators, at the tensor's transfer seconds.

Fractions would spread each class over all accelerators, so that memory holds everything and nothing
leaves. Rows of `Windows` forbid that. Take a tree of units that no accelerator can hold together.
If its root is on one, some tensor of the tree leaves it, on an edge that leads away from the root,
or enters it, on one that leads to the root; else all of the tree would be there:
  x[root, CPUs] + the sum over edges away of leaves + the sum over edges towards of enters >= 1,
where leaves and enters of an edge (u, v) are summed over the accelerators.

`subgraph_limits` replaces the objective by a limit.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray, positions_in
from placewright.core.problem import Problem
from placewright.placers.exact.integer_program import (
    Decode,
    IntegerProgram,
    Narrowing,
    ProgramBuilder,
)
from placewright.placers.pipelines.ideals.load_model import allowed_devices, grouped_entries
from placewright.simulation.bounds.feasibility import MEMORY_ROUNDING
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.published.subgraph import LatencyArrays, latency_arrays

_MOST_GROWN = 500_000  # units of all windows, with those that were given up; any windows are valid
_LONG = 1e6  # times a value: integers hold the seconds of units beside such a transfer


@dataclass(frozen=True, eq=False)
class BoundProgram:
    """A program whose value no placement undercuts."""

    program: IntegerProgram  # rows and columns
    # column of x[class, machine], -1 if the class may not be; machine 0 is the CPUs
    placed: IntArray
    devices: IntArray  # device of each machine for each class, shape (n_classes, n_machines)

    def classes_on(self, columns: FloatArray) -> IntArray:
        """Device of each class in a solution, shape (n_classes,)."""
        machine = np.where(self.placed >= 0, columns[self.placed], -1.0).argmax(axis=1)
        return np.asarray(self.devices[np.arange(len(machine)), machine])


def program_size(problem: Problem, arrays: LatencyArrays) -> int:
    """Approximate number of columns of the program."""
    n_edges = len(problem.unit_graph.tensor_consumers.indices)
    n_accelerators = int(arrays.is_atomic.sum())
    return (problem.colocation.n_groups + n_edges) * (1 + n_accelerators) + problem.n_units


def bound_program(problem: Problem, arrays: LatencyArrays, most: float = math.inf) -> BoundProgram:
    """Build the program of a problem of execution model `subgraph` or `subgraph-ip`.

    Args:
        problem: no placement undercuts the program's value.
        arrays: of the problem, in any unit of time.
        most: placements that take longer are of no interest. A transfer counts with as much at
            most: added to a longer one, the seconds of units would be lost in rounding.
    """
    short = arrays._replace(transfer=np.minimum(arrays.transfer, most))
    return _Builder(problem, short).build()


class _Builder(ProgramBuilder):
    """Numbers the columns and adds the rows."""

    def __init__(self, problem: Problem, arrays: LatencyArrays) -> None:
        super().__init__()
        self.problem, self.arrays = problem, arrays
        self.graph, self.group_of = problem.unit_graph, problem.colocation.group_of
        self.accelerators = np.flatnonzero(arrays.is_atomic).astype(np.int64)
        cpus = np.flatnonzero(arrays.is_atomic == 0).astype(np.int64)
        allowed = allowed_devices(problem, problem.colocation)
        n_classes = problem.colocation.n_groups
        here = allowed[:, self.accelerators] & _first_twins(problem, arrays, allowed)
        wanted = np.concatenate([allowed[:, cpus].any(axis=1, keepdims=True), here], axis=1)
        cpu = np.full((n_classes, 1), -1, dtype=np.int64)
        if len(cpus):
            cpu[:, 0] = cpus[allowed[:, cpus].argmax(axis=1)]
        machines = np.tile(self.accelerators, (n_classes, 1))
        self.devices = np.concatenate([cpu, machines], axis=1)
        # All CPUs are one machine, so a unit takes the least of their seconds there.
        least = arrays.seconds[:, cpus].min(axis=1, initial=np.inf, keepdims=True)
        self.seconds = np.concatenate([least, arrays.seconds[:, self.accelerators]], axis=1)
        self.placed = self.columns(wanted, is_integer=True)
        self.leaves: dict[tuple[int, int], list[int]] = {}

    def build(self) -> BoundProgram:
        """Add all columns and rows."""
        for item in range(len(self.placed)):
            used = self.placed[item][self.placed[item] >= 0].tolist()
            self.rows.add(1.0, 1.0, used, [1.0] * len(used))
        self._memory()
        self._windows()
        total = self.column(np.inf, 1.0)
        ends = [self.column(np.inf) for _ in range(self.problem.n_units)]
        rank = positions_in(self.arrays.order)
        for unit, end in enumerate(ends):
            self._unit(unit, ends, rank)
            self.rows.add(0.0, np.inf, [total, end], [1.0, -1.0])
        return BoundProgram(self.program(), self.placed, self.devices)

    def _memory(self) -> None:
        """Resident bytes of every accelerator fit, a weight that classes share once."""
        weights, sizes = grouped_entries(self.problem, self.problem.colocation)
        users = weights.transposed(len(sizes))
        for machine, device in enumerate(self.accelerators.tolist(), start=1):
            limit = float(self.problem.cluster.memory_bytes[device])
            if sizes.sum() <= limit:
                continue
            unit = max(limit, 1.0)  # bytes
            columns, kept = self.kept(users, sizes, self.placed[:, machine])
            self.rows.add(-np.inf, limit / unit, columns, [size / unit for size in kept])

    def _windows(self) -> None:
        """Forbid that a whole window is on the accelerator of its root; see the module."""
        limit = self.problem.cluster.memory_bytes[self.accelerators].max(initial=0.0)
        limit = float(limit) * (1.0 + MEMORY_ROUNDING)  # another order of addition may fit
        for window in Windows(self.problem, self.arrays.transfer, limit):
            terms: dict[int, float] = {}
            column = int(self.placed[self.group_of[window.root], 0])
            if column >= 0:
                terms[column] = 1.0
            for producer, consumer, leads_away in window.edges:
                before, after = int(self.group_of[producer]), int(self.group_of[consumer])
                for column in self._crossings(before, after):
                    _add(terms, column, 1.0)
                if not leads_away:
                    self._add_placed(terms, after, 1.0)
                    self._add_placed(terms, before, -1.0)
            self.rows.add(1.0, np.inf, list(terms), list(terms.values()))

    def _add_placed(self, terms: dict[int, float], group: int, value: float) -> None:
        """Add a class's columns on accelerators."""
        for column in self.placed[group, 1:].tolist():
            if column >= 0:
                _add(terms, column, value)

    def _unit(self, unit: int, ends: list[int], rank: IntArray) -> None:
        """Add the rows of the end of a unit."""
        own = {ends[unit]: 1.0}
        for column, value in zip(
            self.placed[self.group_of[unit]].tolist(), self.seconds[unit].tolist(), strict=True
        ):
            if column >= 0:
                own[column] = -value
        inputs = [
            tensor
            for tensor in self.graph.op_inputs.row(unit).tolist()
            if self.arrays.producers[tensor] >= 0
        ]
        first = []
        for tensor in inputs:
            readers = self.graph.tensor_consumers.row(tensor)
            if int(rank[readers].min()) == int(rank[unit]):
                first.append(tensor)
                self._add_arrival(own, tensor, unit)
        self.rows.add(0.0, np.inf, list(own), list(own.values()))
        for tensor in inputs:
            producer = int(self.arrays.producers[tensor])
            terms = dict(own)
            _add(terms, ends[producer], -1.0)
            if tensor not in first:
                self._add_arrival(terms, tensor, unit)
            for leaves in self._leaves(tensor, unit):
                _add(terms, leaves, -float(self.arrays.transfer[tensor]))
            self.rows.add(0.0, np.inf, list(terms), list(terms.values()))

    def _add_arrival(self, terms: dict[int, float], tensor: int, unit: int) -> None:
        """Take off the seconds in which a tensor enters the unit's piece from elsewhere."""
        seconds = float(self.arrays.transfer[tensor])
        leaves = self._leaves(tensor, unit)
        if not leaves:
            return
        for column in leaves:
            _add(terms, column, -seconds)
        self._add_placed(terms, int(self.group_of[unit]), -seconds)
        self._add_placed(terms, int(self.group_of[self.arrays.producers[tensor]]), seconds)

    def _leaves(self, tensor: int, unit: int) -> list[int]:
        """Columns that are 1 if a tensor leaves an accelerator for the unit."""
        if self.arrays.transfer[tensor] <= 0:
            return []
        producer = self.arrays.producers[tensor]
        return self._crossings(int(self.group_of[producer]), int(self.group_of[unit]))

    def _crossings(self, before: int, after: int) -> list[int]:
        """Columns, one an accelerator, that are 1 if it holds class `before`, not `after`."""
        if before == after:
            return []
        if (before, after) not in self.leaves:
            self.leaves[before, after] = []
            for machine in range(1, 1 + len(self.accelerators)):
                here, there = int(self.placed[before, machine]), int(self.placed[after, machine])
                column = self.column(1.0)
                self.leaves[before, after].append(column)
                terms = {column: 1.0}
                if here >= 0:
                    terms[here] = -1.0
                if there >= 0:
                    terms[there] = 1.0
                self.rows.add(0.0, np.inf, list(terms), list(terms.values()))
        return self.leaves[before, after]


def _add(terms: dict[int, float], column: int, value: float) -> None:
    terms[column] = terms.get(column, 0.0) + value


def _first_twins(problem: Problem, arrays: LatencyArrays, allowed: BoolArray) -> BoolArray:
    """Machines that classes may use when equal accelerators are numbered by largest class.

    Of the classes in falling order of bytes, the j-th (from 0) is on one of the first j + 1 twins.

    Returns:
        shape (n_classes, n_accelerators).
    """
    accelerators = np.flatnonzero(arrays.is_atomic)
    own = problem.kept.bytes_by_label(problem.colocation.group_of)
    largest = np.argsort(-own, kind="stable")
    memory = problem.cluster.memory_bytes
    may_be = np.ones((len(allowed), len(accelerators)), dtype=np.bool_)
    kinds: dict[bytes, int] = {}
    for column, device in enumerate(accelerators.tolist()):
        kind = b"".join(part[..., device].tobytes() for part in (arrays.seconds, allowed, memory))
        rank = kinds.get(kind, 0)
        kinds[kind] = rank + 1
        may_be[largest[:rank], column] = False
    return may_be


@dataclass(frozen=True)
class Window:
    """A tree of units that no accelerator can hold together."""

    root: int  # the unit that it grew from
    # (producer, consumer, whether it leads away from the root) of each edge of the tree
    edges: tuple[tuple[int, int, bool], ...]


class Windows:
    """Windows that grow from each unit: along heavy paths, and by the most expensive tensors.

    There are fewer if they are large.

    Args:
        transfer: seconds of each tensor, shape (n_tensors,).
        limit: bytes of the largest accelerator.
    """

    def __init__(self, problem: Problem, transfer: FloatArray, limit: float) -> None:
        self._graph, self._limit = problem.unit_graph, limit
        self._group_of = problem.colocation.group_of
        self._weights, self._sizes = grouped_entries(problem, problem.colocation)
        self._own = problem.kept.bytes_by_label(self._group_of)[self._group_of]
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
        self._grown = 0
        if float(self._sizes.sum()) <= self._limit:
            return
        order = self._graph.topological_order
        seen: set[Window] = set()
        ways = (self._along(order[::-1], True), self._along(order, False), self._dearest)
        for grown in ways:
            for root in order.tolist():
                if self._grown > _MOST_GROWN:
                    return
                window = grown(root)
                if window is not None and window not in seen:
                    seen.add(window)
                    yield window

    def _kept(self, unit: int) -> list[int]:
        return list(self._weights.row(int(self._group_of[unit])).tolist())

    def _along(self, order: IntArray, forward: bool) -> Callable[[int], Window | None]:
        """Return a function that grows a window along one path from its root.

        The path leads to consumers, or to producers; each step takes the neighbour from which the
        path with the most weight bytes starts.
        """
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
                self._grown += 1
            return Window(root, tuple(edges)) if edges else None

        return grown

    def _dearest(self, root: int) -> Window | None:
        """Grow a window by the most expensive of the tensors that cross its border."""
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
            self._grown += 1
            for edge in self._neighbours[unit]:
                heapq.heappush(border, (*edge, unit))
        return Window(root, tuple(edges)) if edges else None


class _Held:
    """Bytes of weights, each counted once."""

    def __init__(self, sizes: FloatArray, weights: list[int]) -> None:
        self._sizes, self._weights, self.total = sizes, set[int](), 0.0
        self.add(weights)

    def add(self, weights: list[int]) -> None:
        """Add weights."""
        for weight in weights:
            if weight not in self._weights:
                self._weights.add(weight)
                self.total += float(self._sizes[weight])


def subgraph_limits(
    problem: Problem, evaluator: Evaluator, solver: Callable[[float], Any]
) -> Narrowing:
    """Make the `Narrowing` of a problem of execution model `subgraph` or `subgraph-ip`.

    Args:
        problem: its relaxation is `bound_program`, so that the value of a placement may exceed the
            limit.
    """
    arrays = latency_arrays(problem)
    whole, longest = bound_program(problem, arrays), float(arrays.transfer.max(initial=0.0))

    def made(most: float) -> tuple[IntegerProgram, Decode]:
        is_whole = longest <= _LONG * most
        program = whole if is_whole else bound_program(problem, arrays, _LONG * most)
        return program.program, lambda columns: problem.colocation.expand(
            program.classes_on(columns)
        )

    return Narrowing(made, latency_in_turn(arrays), evaluator, solver)


def latency_in_turn(arrays: LatencyArrays) -> float:
    """An upper bound on every placement: slowest units, and each tensor sent to each reader.

    A tensor leaves the piece that makes it once, and enters at most as many others as it has
    readers.
    """
    slowest = np.where(np.isfinite(arrays.seconds), arrays.seconds, 0.0).max(axis=1)
    readers = np.diff(arrays.consumer_ptr)
    return float(slowest.sum() + ((1.0 + readers) * arrays.transfer).sum())
