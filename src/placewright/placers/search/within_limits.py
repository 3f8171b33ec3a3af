"""A placement within all limits, by annealing of what placements exceed them by.

S. Kirkpatrick, C. D. Gelatt, M. P. Vecchi, "Optimization by Simulated Annealing", Science 220,
1983. The cost is the shortage of a placement with its order (`simulation.legality.Shortage`). The
search begins from packings, contiguous splits and single devices. It then anneals in rounds of
equal length, each from another start or from the best placement so far.

Half of the moves take units off what exceeds its limit, as many as are expected to be enough, to
devices with room, or swap two classes. The others are those of local search. Under `event`, where
orders decide which tensors live at the same time, moves also change the order: to one that frees
bytes early, or by one unit.

A search does not depend on its budget but for its length: what a short one finds, a longer one
finds, too. Whoever names a limit with it (`placers.advice`) names one that `auto` keeps.
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.execution_models import Event
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.errors import BudgetSpent
from placewright.placers.baselines.simple import contiguous_split, random_placements
from placewright.placers.bases import FOUND_NOTHING
from placewright.placers.packing import packings
from placewright.placers.repair import repaired
from placewright.placers.search.neighbourhood import (
    Moves,
    branch_by_branch_order,
    moves_of,
    shifted,
)
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.legality import Shortage

ROUND = 300  # evaluations from one start
_MOST_ROUNDS = 12
# Of a placer that needs a first placement: its share of what is left, and rounds at most.
_FIRST_SHARE, _FIRST_ROUNDS = 0.5, 4
_MOST_KINDS = 4  # of devices that take what is left by a packing
# Worsening that is accepted with probability 1/e: in shortages of now plus those of a mean class.
_WARMEST, _COLDEST = 0.1, 0.002
_CLASSES = 5.0
_GUIDED = 0.5  # of moves of units
_SWAPS = 0.4  # of guided moves
_ANYWHERE = 0.2  # of guided moves: to any device, whatever room it has
_MOST_ROOM = 1e30  # bytes, of devices without a limit
_ORDERS = 0.3  # of all moves, where orders matter
_NEW_ORDERS = 0.05  # of moves of orders


@dataclass(frozen=True, eq=False)
class _State:
    """A placement and what it exceeds."""

    device_of: IntArray
    order: IntArray | None
    shortage: Shortage

    @property
    def total(self) -> float:
        return self.shortage.total


def placement_within_limits(
    problem: Problem, budget: Budget, rounds: int = _MOST_ROUNDS
) -> Placement | None:
    """A placement that keeps all limits; None if none was found.

    Args:
        problem: any.
        budget: of the search.
        rounds: of annealing, at most; 0 tries the starts alone.
    """
    evaluator = Evaluator(problem, budget)
    search_within_limits(evaluator, rounds=rounds)
    return evaluator.best


def search_within_limits(
    evaluator: Evaluator, *, seed: int = 0, rounds: int = _MOST_ROUNDS
) -> Solution:
    """Search until a placement keeps all limits, and is the evaluator's incumbent.

    Args:
        evaluator: whose budget ends the search, too; with an incumbent nothing is searched.
        seed: of all choices, apart from those of the placer that searches.
        rounds: of annealing, at most.

    Returns:
        The incumbent; without one, the message says what the closest placement breaks.
    """
    search = _Annealing(evaluator, np.random.default_rng(seed))
    with contextlib.suppress(BudgetSpent):
        search.run(rounds)
    if evaluator.best is not None or search.closest is None:
        return evaluator.solution()
    broken = evaluator.simulator.violation(search.closest)
    reason = "" if broken is None else f"; of those tried, the closest to it: {broken.message}"
    return evaluator.solution(message=f"{FOUND_NOTHING}{reason}")


def look_for_first(evaluator: Evaluator) -> None:
    """Search in a part of what is left of a placer's budget, if it has no incumbent yet."""
    if evaluator.best is None:
        with evaluator.share(_FIRST_SHARE):
            search_within_limits(evaluator, rounds=_FIRST_ROUNDS)


class _Annealing:
    """Moves and rounds on one problem."""

    def __init__(self, evaluator: Evaluator, rng: np.random.Generator) -> None:
        self.problem, self._evaluator, self._rng = evaluator.problem, evaluator, rng
        self._cluster, self._classes = self.problem.cluster, self.problem.colocation
        self._first_member = self._classes.members.indices[self._classes.members.indptr[:-1]]
        self._allowed = self.problem.allowed_by_class
        self._movable = self._allowed.sum(axis=1) > 1
        self._bytes = _class_bytes(self.problem)
        self._has_orders = isinstance(self.problem.execution_model, Event)
        self._mean_class = float(self._bytes.mean()) / evaluator.simulator.limited_bytes
        self._best: _State | None = None

    @cached_property
    def moves(self) -> Moves:
        """The moves of local search, which take long to lay out: most starts need none."""
        return moves_of(self.problem)

    @property
    def closest(self) -> Placement | None:
        """The placement with the least shortage."""
        best = self._best
        return None if best is None else Placement.of(best.device_of, best.order)

    @property
    def _is_over(self) -> bool:
        """True if somebody has found a placement that keeps all limits."""
        return self._evaluator.best is not None

    def run(self, rounds: int) -> None:
        """Anneal from the best state so far, and in turn from another start or at random.

        Raises:
            BudgetSpent: the budget ended first.
        """
        if self._is_over:
            return
        starts = sorted(self.starts(), key=lambda state: state.total)
        for done in range(rounds):
            if self._is_over or (self.moves.is_empty and not self._has_orders):
                return
            at = (done + 1) // 2
            assert self._best is not None
            if done % 2 == 0:
                self._anneal(self._best)
            else:
                self._anneal(starts[at] if at < len(starts) else self._random())

    def starts(self) -> Iterator[_State]:
        """Yield placements to begin from, until one keeps all limits."""
        for device_of in self._first_placements():
            state = self._rated(device_of, None)
            yield state
            if self._is_over:
                return
        known: list[_State] = []

        def peaks_of(device_of: IntArray) -> FloatArray | None:
            state = self._rated(device_of, None)
            known.append(state)
            has_bytes = state.total == 0 or state.shortage.over.any()
            return state.shortage.peaks if has_bytes else None

        for device in _kinds(self.problem):
            for _ in packings(self.problem, device, peaks_of):
                if self._is_over:
                    break
            yield min(known, key=lambda one: one.total)
            if self._is_over:
                return
            known.clear()

    def _first_placements(self) -> Iterator[IntArray]:
        problem = self.problem
        for share in ("memory", "speed", "work"):
            yield repaired(problem, contiguous_split(problem, share))
        for device in range(problem.n_devices):
            yield repaired(problem, np.full(problem.n_units, device, dtype=np.int64))
        for row in random_placements(problem, self._rng, 2):
            yield repaired(problem, row)

    def _anneal(self, state: _State) -> None:
        """One round from a state."""
        for step in range(ROUND):
            if self._is_over:
                return
            warmth = _WARMEST * (_COLDEST / _WARMEST) ** (step / ROUND)
            neighbour = self._neighbour(state)
            if neighbour is not None and self._accepts(state.total, neighbour.total, warmth):
                state = neighbour

    def _random(self) -> _State:
        """A random placement, with an order that frees bytes early where orders matter."""
        device_of = random_placements(self.problem, self._rng, 1)[0]
        order = order_that_frees(self.problem, device_of) if self._has_orders else None
        return self._rated(device_of, order)

    def _accepts(self, before: float, after: float, warmth: float) -> bool:
        if after <= before:
            return True
        if math.isinf(after):
            return False
        accepted = warmth * (before + _CLASSES * self._mean_class)
        return bool(after < before + accepted * self._rng.exponential())

    def _rated(self, device_of: IntArray, order: IntArray | None) -> _State:
        shortage = self._evaluator.evaluate_shortage(device_of, order)
        state = _State(np.asarray(device_of, dtype=np.int64), order, shortage)
        if self._best is None or state.total < self._best.total:
            self._best = state
        return state

    def _neighbour(self, state: _State) -> _State | None:
        """A random neighbour; None if the move changes nothing."""
        rng = self._rng
        if self._has_orders and (self.moves.is_empty or rng.random() < _ORDERS):
            return self._rated(state.device_of, self._other_order(state))
        if rng.random() < _GUIDED and state.shortage.over.any():
            device_of = self._relieved(state)
        else:
            device_of = self.moves.neighbour(state.device_of, rng)
        if np.array_equal(device_of, state.device_of):
            return None
        return self._rated(device_of, state.order)

    def _other_order(self, state: _State) -> IntArray | None:
        rng = self._rng
        if state.order is None or rng.random() < _NEW_ORDERS:
            kind = rng.random()
            if kind < 0.7:
                return order_that_frees(self.problem, state.device_of)
            return branch_by_branch_order(self.problem) if kind < 0.9 else None
        return shifted(self.problem, state.order, rng)

    def _relieved(self, state: _State) -> IntArray:
        """Move classes off a device that exceeds its limit or its pool's."""
        rng, over = self._rng, state.shortage.over
        at = int(np.searchsorted(np.cumsum(over), rng.random() * over.sum(), side="right"))
        at = min(at, len(over) - 1)
        of_class = state.device_of[self._first_member]
        is_crowded = of_class == at
        if at >= self.problem.n_devices:
            is_crowded = self._cluster.pool_shares[at - self.problem.n_devices][of_class] > 0
        leaving = np.flatnonzero(is_crowded & self._movable)
        if not len(leaving):
            return state.device_of
        group = int(leaving[rng.integers(len(leaving))])
        home = int(of_class[group])
        target = self._target(state, group, home)
        moved = np.array(of_class)
        moved[group] = target
        if rng.random() < _SWAPS:
            here = np.flatnonzero((of_class == target) & self._movable & self._allowed[:, home])
            if len(here):
                moved[here[rng.integers(len(here))]] = home
        else:  # with further classes on the same way, for shortages of many classes
            missing = rng.random() * float(over[at]) - self._bytes[group]
            others = leaving[(of_class[leaving] == home) & (leaving > group)]
            others = others[self._allowed[others, target]]
            moved[others[np.cumsum(self._bytes[others]) <= missing]] = target
        return np.asarray(moved[self._classes.group_of], dtype=np.int64)

    def _target(self, state: _State, group: int, home: int) -> int:
        """Another device that may run the class, mostly one with room."""
        cluster, rng, peaks = self._cluster, self._rng, state.shortage.peaks
        usable = np.flatnonzero(self._allowed[group])
        usable = usable[usable != home]
        free = np.minimum(cluster.memory_bytes - peaks, _MOST_ROOM)
        spare = cluster.pool_bytes - cluster.pooled(peaks)
        for shares, left in zip(cluster.pool_shares, spare.tolist(), strict=True):
            free[shares > 0] = np.minimum(free[shares > 0], left / shares[shares > 0])
        room = np.cumsum(np.maximum(free[usable], 0.0))
        if rng.random() < _ANYWHERE or not room[-1] > 0:
            return int(usable[rng.integers(len(usable))])
        at = int(np.searchsorted(room, rng.random() * room[-1], side="right"))
        return int(usable[min(at, len(usable) - 1)])


def _class_bytes(problem: Problem) -> FloatArray:
    """Kept bytes and outputs of each class, shape (n_classes,)."""
    graph, classes = problem.unit_graph, problem.colocation
    outputs = graph.op_outputs
    sizes = np.array(problem.kept.unit_bytes)
    np.add.at(sizes, outputs.row_of_each(), graph.tensor_bytes[outputs.indices])
    total = np.bincount(classes.group_of, sizes, minlength=classes.n_groups)
    return np.asarray(total, dtype=np.float64)


def _kinds(problem: Problem) -> list[int]:
    """The roomiest devices, one of each set with the same memory, pool and costs."""
    memory = problem.cluster.memory_bytes
    kinds = sorted(distinct_devices(problem), key=lambda device: -float(memory[device]))
    return kinds[:_MOST_KINDS]


def distinct_devices(problem: Problem) -> list[int]:
    """The first of each set of devices with the same memory, pool, costs and pins."""
    known: dict[tuple[float, object, bytes, bytes], int] = {}
    for device in range(problem.n_devices):
        costs = np.ascontiguousarray(problem.costs.seconds[:, device]).tobytes()
        pool = frozenset(problem.cluster.devices[device].pool_shares.items())
        allowed = np.ascontiguousarray(problem.allowed[:, device]).tobytes()
        memory = float(problem.cluster.memory_bytes[device])
        known.setdefault((memory, pool, costs, allowed), device)
    return list(known.values())


def order_that_frees(problem: Problem, device_of: IntArray) -> IntArray:
    """A topological order that takes the ready unit which adds fewest bytes, shape (n_units,).

    A unit adds its outputs, and frees inputs of which it is the last reader on its device.
    """
    graph = problem.unit_graph
    size, where = graph.tensor_bytes.tolist(), device_of.tolist()
    readers_left: dict[tuple[int, int], int] = {}
    for tensor, unit in zip(
        graph.tensor_consumers.row_of_each().tolist(),
        graph.tensor_consumers.indices.tolist(),
        strict=True,
    ):
        key = tensor, where[unit]
        readers_left[key] = readers_left.get(key, 0) + 1
    stays = graph.tensor_is_output.tolist()
    inputs = [graph.op_inputs.row(unit).tolist() for unit in range(graph.n_ops)]
    outputs = [graph.op_outputs.row(unit).tolist() for unit in range(graph.n_ops)]

    def added(unit: int) -> float:
        freed = sum(
            size[tensor]
            for tensor in inputs[unit]
            if readers_left[tensor, where[unit]] == 1 and not stays[tensor]
        )
        return float(sum(size[tensor] for tensor in outputs[unit]) - freed)

    missing = np.diff(graph.predecessors.indptr).tolist()
    ready = [(added(unit), unit) for unit in range(graph.n_ops) if missing[unit] == 0]
    heapq.heapify(ready)
    order: list[int] = []
    is_done = [False] * graph.n_ops
    while ready:
        unit = heapq.heappop(ready)[1]
        if is_done[unit]:  # an entry of when it freed less
            continue
        order.append(unit)
        is_done[unit] = True
        frees: list[int] = []  # the last readers of what this unit has read
        for tensor in inputs[unit]:
            readers_left[tensor, where[unit]] -= 1
            if readers_left[tensor, where[unit]] == 1:
                frees += graph.tensor_consumers.row(tensor).tolist()
        for reader in graph.successors.row(unit).tolist():
            missing[reader] -= 1
        for reader in (*graph.successors.row(unit).tolist(), *frees):
            if missing[reader] == 0 and not is_done[reader]:
                heapq.heappush(ready, (added(reader), reader))
    return np.array(order, dtype=np.int64)
