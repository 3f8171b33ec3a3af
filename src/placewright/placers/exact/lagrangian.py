"""Dynamic program over the items of a narrow chain, whose memory has prices instead of limits.

Items take devices in topological order. A state is the devices of the *open* items: those whose
tensors, or whose shared weights, a later item still needs. A language model has one to three of
them. With prices p >= 0 of the bytes of each limit,

    L(p) = min over placements of (value + sum of p x bytes) - sum of p x limit

is a lower bound of the value of every placement that fits (Geoffrion, Lagrangean relaxation for
integer programming, 1974). The largest one over all prices is found by cutting planes (Kelley,
1960). Items of a *run* have devices of ascending rank, as some engines need them.

A beam search finds placements. A partial placement is judged by its value and by what the rest
costs at least with these prices. Of two with the same open devices and the same bytes the quicker
stays. So only those beyond the width are lost, and the most promising of them bounds them all: a
beam that loses none proves the optimum.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.placers.exact.counted import ItemTensor, TensorType, symmetry_of

_MOST_CELLS = 1 << 16  # of a step's table
_MOST_CUTS = 100
_CLOSE = 1e-5  # relative, between bound and the best that cutting planes promise
_LESS = 0.1  # times the largest price, if sums round by more than that
ROUNDING = 1e-9  # relative, of sums


@dataclass(frozen=True, eq=False)
class ChainStep:
    """One item, with what its device costs beside those of the open items."""

    item: int  # that takes a device
    devices: IntArray  # that it may take
    # of the item and of its arrivals, an axis for each open item, then one for its own device; inf
    # breaks a rule
    seconds: FloatArray
    # that it keeps, as a part of the model, of the same axes; a weight that an open item keeps
    # there, too, is free
    size: FloatArray
    kept: tuple[int, ...]  # axes of items that stay open after it


class Chain:
    """A problem as steps.

    Args:
        problem: under `sequential`.
        run: units, in topological order, whose devices have ascending ranks.
        rank: of each device.

    Raises:
        InputError: too many items are open at once.
    """

    def __init__(self, problem: Problem, run: Sequence[int], rank: Sequence[int]) -> None:
        self.problem = problem
        self.shares, self.limits = _limits(problem)
        self.steps = tuple(_Steps(problem, run, rank).made())

    def towards_end(self, prices: FloatArray) -> list[FloatArray]:
        """Least seconds and priced bytes from each step on, by the devices of open items.

        Args:
            prices: seconds per byte of each limit, times the bytes of the model, (n_limits,).
        """
        found = [np.zeros(())]
        for step in reversed(self.steps):
            with_rest = self._priced(step, prices) + _on_axes(step, found[-1])
            found.append(with_rest.min(axis=-1, initial=np.inf))
        return found[::-1]

    def bound(self, is_over: Callable[[], bool] = lambda: False) -> tuple[float, FloatArray]:
        """The largest lower bound, in seconds, and its prices; inf if the rules exclude all.

        Args:
            is_over: True ends the search with the largest so far, after one at least.
        """
        from scipy.optimize import linprog

        best, prices = -math.inf, np.zeros(len(self.limits))
        best_prices, most = prices, self._most_price()
        constants: list[float] = []
        slopes: list[FloatArray] = []
        for _ in range(_MOST_CUTS):
            rest, priced = self.towards_end(prices), float(prices @ self.limits)
            value, rounding = float(rest[0]) - priced, ROUNDING * (float(rest[0]) + priced)
            if not math.isfinite(value):
                return math.inf, prices
            if value - rounding > best:
                best, best_prices = value - rounding, prices
            if is_over():
                break
            if rounding > _CLOSE * max(abs(value), abs(best)):
                most *= _LESS  # the seconds are lost among priced bytes
            else:
                slopes.append(self._used(prices, rest) - self.limits)
                constants.append(value - float(prices @ slopes[-1]))
            rows = np.column_stack([np.ones(len(slopes)), -np.array(slopes)])
            among = [(None, None), *[(0.0, most)] * len(prices)]
            goal = [-1.0, *[0.0] * len(prices)]
            promised = linprog(goal, A_ub=rows, b_ub=constants, bounds=among)
            if promised.x is None or promised.x[0] - best <= _CLOSE * abs(best):
                break
            prices = np.maximum(promised.x[1:], 0.0)  # a solver's tolerance may be below
        return best, best_prices

    def least_on(self, prices: FloatArray, device: int, free: Sequence[int] = ()) -> float:
        """Lower bound of placements with an item on a device, in seconds; inf if none can be.

        Args:
            prices: see `towards_end`.
            free: items that do not count as on it.
        """
        rest, before = self.towards_end(prices), np.zeros(())
        least = math.inf
        for number, step in enumerate(self.steps):
            so_far = before[..., None] + self._priced(step, prices)
            here = np.flatnonzero(step.devices == device)
            if len(here) and step.item not in free:
                whole = so_far + _on_axes(step, rest[number + 1])
                least = min(least, float(whole[..., here].min(initial=math.inf)))
            closed = tuple(axis for axis in range(so_far.ndim) if axis not in step.kept)
            before = so_far.min(axis=closed, initial=math.inf)
        if not math.isfinite(least):
            return math.inf
        return least * (1.0 - ROUNDING) - float(prices @ self.limits) * (1.0 + ROUNDING)

    def _most_price(self) -> float:
        """Largest price that is tried; any price gives a valid bound."""
        slowest = [float(step.seconds[np.isfinite(step.seconds)].max(initial=0.0))
                   for step in self.steps]  # fmt: skip
        return len(slowest) * math.fsum(slowest)

    def _priced(self, step: ChainStep, prices: FloatArray) -> FloatArray:
        """Sum of a step's seconds and its priced bytes, on its axes."""
        return np.asarray(step.seconds + step.size * (prices @ self.shares)[step.devices])

    def _used(self, prices: FloatArray, rest: Sequence[FloatArray]) -> FloatArray:
        """Part of each limit that the best placement with these prices takes, (n_limits,)."""
        used = np.zeros(len(self.limits))
        at: tuple[int, ...] = ()
        for number, step in enumerate(self.steps):
            size, later = (
                np.broadcast_to(each, step.seconds.shape)[at]  # of the devices of this item
                for each in (step.size, _on_axes(step, rest[number + 1]))
            )
            rates = (prices @ self.shares)[step.devices]
            chosen = int((step.seconds[at] + size * rates + later).argmin())
            where = (*at, chosen)
            used += float(size[chosen]) * self.shares[:, step.devices[chosen]]
            at = tuple(where[axis] for axis in step.kept)
        return used


def _on_axes(step: ChainStep, rest: FloatArray) -> FloatArray:
    """Values by the devices of items that stay open, on the axes of a step."""
    shape = [1] * step.seconds.ndim
    for axis, n in zip(step.kept, rest.shape, strict=True):
        shape[axis] = n
    return rest.reshape(shape)


def _whole(problem: Problem) -> float:
    """Bytes in one unit of memory: all kept bytes, so that prices have the size of values."""
    return max(1.0, problem.kept.total)


def _limits(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """Share of each device's bytes in each finite limit, (n_limits, n_devices), and the limits."""
    cluster, n_devices = problem.cluster, problem.n_devices
    if problem.keeps_everything:
        return np.zeros((0, n_devices)), np.zeros(0)
    shares = np.concatenate([np.eye(n_devices), cluster.pool_shares])
    finite = np.isfinite(cluster.memory_limits)
    return shares[finite], cluster.memory_limits[finite] / _whole(problem)


class _Steps:
    """Makes the steps of a problem."""

    def __init__(self, problem: Problem, run: Sequence[int], rank: Sequence[int]) -> None:
        symmetry = symmetry_of(problem)
        self._symmetry, self._host = symmetry, problem.cluster.host_endpoint
        self._order = symmetry.order.tolist()
        self._position = {item: at for at, item in enumerate(self._order)}
        self._seconds = symmetry.seconds[symmetry.kind_of]
        self._devices = [np.flatnonzero(np.isfinite(row)) for row in self._seconds]
        self._own = symmetry.own_bytes[symmetry.kind_of] / _whole(problem)
        self._rank = np.asarray(rank, dtype=np.int64)
        items = problem.colocation.group_of[list(run)].tolist()
        self._in_turn = [pair for pair in itertools.pairwise(items) if pair[0] != pair[1]]
        self._tied = [
            (size / _whole(problem), np.flatnonzero(np.isin(symmetry.kind_of, kinds)).tolist())
            for size, kinds in symmetry.shared
        ]
        self._types = [symmetry.types[at] for at in symmetry.type_of]
        self._last = self._needed_until()

    def made(self) -> list[ChainStep]:
        """The steps, in topological order."""
        found, is_open = [], list[int]()
        for at, item in enumerate(self._order):
            axes = [*is_open, item]
            cells = math.prod(len(self._devices[axis]) for axis in axes)
            if cells > _MOST_CELLS:
                raise InputError(
                    f"modules of this model hang together too much: {cells} choices of devices at "
                    f"once, {_MOST_CELLS} can be planned; name fewer devices"
                )
            is_open = [axis for axis in axes if self._last[axis] > at]
            kept = tuple(axes.index(axis) for axis in is_open)
            shape = tuple(len(self._devices[axis]) for axis in axes)
            seconds = np.broadcast_to(self._cost(item, axes), shape)
            found.append(
                ChainStep(item, self._devices[item], seconds, self._size(item, axes), kept)
            )
        return found

    def _needed_until(self) -> list[int]:
        """Position of the last item whose cost depends on each item's device."""
        position, last = self._position, [self._position[item] for item in range(len(self._order))]
        groups = [(tensor.source, *tensor.readers) for tensor in self._symmetry.tensors]
        groups += [tuple(items) for _, items in self._tied]
        groups += self._in_turn
        for group in groups:
            end = max((position[item] for item in group if item >= 0), default=0)
            for item in group:
                if item >= 0:
                    last[item] = max(last[item], end)
        return last

    def _cost(self, item: int, axes: list[int]) -> FloatArray:
        """Seconds of an item and of tensors whose two ends are known with it, inf out of a run."""
        here, at = self._devices[item], self._position[item]
        cost = _along(self._seconds[item, here], len(axes) - 1, len(axes))
        for tensor, kind in zip(self._symmetry.tensors, self._types, strict=True):
            ends = [self._position[end] for end in (tensor.source, *tensor.readers) if end >= 0]
            if at not in ends:
                continue
            for reader in tensor.readers:
                known = max(self._position[reader], self._position.get(tensor.source, -1))
                if known == at:
                    cost = cost + self._arrival(tensor, kind, reader, axes)
            if tensor.source == item and tensor.is_output:
                cost = cost + _along(kind.exits[here], len(axes) - 1, len(axes))
        for before, after in self._in_turn:
            if max(self._position[before], self._position[after]) == at:
                ranks = [self._rank[self._devices[end]] for end in (before, after)]
                wrong = np.where(ranks[0][:, None] > ranks[1][None, :], np.inf, 0.0)
                cost = cost + _across(wrong, axes.index(before), axes.index(after), len(axes))
        return np.asarray(cost)

    def _arrival(
        self, tensor: ItemTensor, kind: TensorType, reader: int, axes: list[int]
    ) -> FloatArray:
        """Seconds of a tensor's way to a reader, 0 if an earlier reader is on the same device."""
        there, at = self._devices[reader], axes.index(reader)
        if tensor.source < 0:
            found = _along(kind.arrival[self._host, there], at, len(axes))
        else:
            ways = kind.arrival[np.ix_(self._devices[tensor.source], there)]
            found = _across(ways, axes.index(tensor.source), at, len(axes))
        return self._unless_there(found, tensor.readers, reader, axes)

    def _size(self, item: int, axes: list[int]) -> FloatArray:
        """Memory of an item, less what open items keep on the same device already."""
        found = np.full((1,) * len(axes), self._own[item])
        for size, items in self._tied:
            if item in items:
                whole = np.full((1,) * len(axes), size)
                found = found + self._unless_there(whole, items, item, axes)
        return found

    def _unless_there(
        self, found: FloatArray, others: Sequence[int], item: int, axes: list[int]
    ) -> FloatArray:
        """Set values to 0 where an earlier item of `others` is on the same device."""
        for other in others:
            if self._position[other] < self._position[item]:
                same = self._devices[other][:, None] == self._devices[item][None, :]
                where = _across(same, axes.index(other), axes.index(item), len(axes))
                found = np.where(where, 0.0, found)
        return found


def _along(row: FloatArray, axis: int, n_axes: int) -> FloatArray:
    """A row along one axis of several."""
    return row.reshape([-1 if other == axis else 1 for other in range(n_axes)])


def _across(table: FloatArray | BoolArray, row: int, column: int, n_axes: int) -> FloatArray:
    """A table whose rows lie along one axis of several, and whose columns along another one."""
    shape = [1] * n_axes
    shape[row], shape[column] = table.shape
    turned = table if row < column else table.T
    return np.asarray(turned.reshape(shape), dtype=np.float64)


_GRAIN = 2.0**-40  # of a limit, within which sums of bytes are the same
_FITS = 1.0 + 1e-12  # times a limit, for sums in another order
_MIX = 0x2545F4914F6CDD1D  # odd; its powers mix the numbers of a row into one


@dataclass(frozen=True)
class Found:
    """The end of a beam search.

    Attributes:
        devices: of each item in the best placement; None without one.
        bound: seconds; each placement that fits takes at least the smaller one of this and `under`.
    """

    devices: IntArray | None
    bound: float


def best_in_beam(
    chain: Chain,
    prices: FloatArray,
    width: int,
    under: float = math.inf,
    is_over: Callable[[], bool] = lambda: False,
) -> Found:
    """The best placement that is found, and a bound of all others.

    Args:
        width: partial placements that are kept.
        under: seconds; placements that cannot be quicker are left out.
        is_over: True gives up.
    """
    rest = chain.towards_end(prices)
    if not math.isfinite(float(rest[0])):
        return Found(None, math.inf)
    beam = _Beam(chain, prices)
    for number, step in enumerate(chain.steps):
        if is_over():
            return Found(None, -math.inf)
        if not beam.advance(step, rest[number + 1], width, under):
            return Found(None, beam.lost)
    devices, value = beam.best()
    return Found(devices, min(beam.lost, value))


class _Beam:
    def __init__(self, chain: Chain, prices: FloatArray) -> None:
        self._chain, self._prices = chain, prices
        self._fits = chain.limits * _FITS
        self._grain = np.where(chain.limits > 0, chain.limits, 1.0) * _GRAIN
        self._open = np.zeros((1, 0), dtype=np.int64)  # (kept, open items)
        self._value = np.zeros(1)
        self._used = np.zeros((1, len(chain.limits)))
        # row before, and choice, of each step
        self._history: list[tuple[NDArray[np.int32], NDArray[np.int16]]] = []
        self.lost = math.inf  # least seconds of placements that go on from one beyond the width

    def advance(self, step: ChainStep, rest: FloatArray, width: int, under: float) -> bool:
        """Let all partial placements choose a device of an item; False if none is left."""
        at, n_devices = tuple(self._open.T), len(step.devices)
        priced = float(self._chain.limits @ self._prices)
        rate = (self._prices @ self._chain.shares)[step.devices]
        size = np.broadcast_to(step.size, step.seconds.shape)
        whole = step.seconds + size * rate + _on_axes(step, rest)
        so_far = self._value + self._used @ self._prices
        promise = so_far[:, None] + whole[at].reshape(-1, n_devices)
        rounding = ROUNDING * (abs(under) + priced)
        rows, choices = np.nonzero(promise < under + priced + rounding)
        used = self._used[rows]
        ends = [*(row[rows] for row in at), choices]
        used += size[tuple(ends)][:, None] * self._chain.shares.T[step.devices[choices]]
        good = np.flatnonzero((used <= self._fits).all(axis=1))
        if not len(good):
            return False
        after = np.zeros((len(good), len(step.kept)), dtype=np.int64)
        for column, axis in enumerate(step.kept):
            after[:, column] = ends[axis][good]
        promised = promise[rows[good], choices[good]]
        value = self._value[rows[good]] + step.seconds[tuple(end[good] for end in ends)]
        grains = np.rint(used[good] / self._grain).astype(np.int64)
        keys = np.concatenate([grains, after], axis=1)
        stays, beyond = _most_promising(keys, promised, value, width)
        self.lost = min(self.lost, beyond * (1.0 - ROUNDING) - priced * (1.0 + ROUNDING))
        chosen, self._value = good[stays], value[stays]
        self._open, self._used = after[stays], used[chosen]
        self._history.append((rows[chosen].astype(np.int32), choices[chosen].astype(np.int16)))
        return True

    def best(self) -> tuple[IntArray, float]:
        """Device of each item in the quickest placement, and its seconds."""
        row = int(np.argmin(self._value))
        found = np.zeros(len(self._history), dtype=np.int64)
        for step, (rows, choices) in zip(
            reversed(self._chain.steps), reversed(self._history), strict=True
        ):
            found[step.item] = step.devices[choices[row]]
            row = int(rows[row])
        return found, float(self._value.min())


def _most_promising(
    keys: IntArray, promise: FloatArray, value: FloatArray, width: int
) -> tuple[IntArray, float]:
    """Rows that stay, and the least promise of the others.

    The quickest of those with the same keys stays, if it is within the width.

    Args:
        value: seconds so far, which a promise can lose among priced bytes.
    """
    order = np.argsort(promise, kind="stable")
    for number in (2 * width, len(order)):
        stays = _quickest_of_alike(order[:number], keys, value)
        if len(stays) > width or number >= len(order):
            break
    return stays[:width], float(promise[stays[width:][:1]].min(initial=math.inf))


def _quickest_of_alike(order: IntArray, keys: IntArray, value: FloatArray) -> IntArray:
    """The quickest of all rows with the same open devices and bytes, in their order."""
    keys = keys[order]
    mixed = keys @ np.cumprod(np.full(keys.shape[1], _MIX))  # alike rows become neighbours
    by_mixed = np.lexsort((value[order], mixed))
    keys = keys[by_mixed]
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    return order[np.sort(by_mixed[is_first])]
