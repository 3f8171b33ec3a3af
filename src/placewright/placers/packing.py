"""Packings: placements that fill the memory of one device after the other.

Each device takes consecutive units up to its memory limit, and a given device takes the rest. One
simulation without memory limits gives the peak bytes of a placement on all devices, and so tells
which limits it keeps. The number of simulations does not grow with the problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray, positions_in
from placewright.core.cluster import Cluster
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.simulation.model import Simulator

_ROUNDS = 8  # of filling, simulating, and correcting what the tensors took


# Peak bytes of devices (n_devices,) for a placement (n_units,); None if it breaks
# another constraint than memory
Peaks = Callable[[IntArray], FloatArray | None]


@dataclass(frozen=True)
class Packing:
    """A placement within all memory limits but perhaps that of the device that takes the rest."""

    placement: Placement
    peak: float  # bytes on the device that takes the rest


def tightest_packing(problem: Problem, device: int) -> Packing | None:
    """The packing of `packings` with the smallest peak on `device`; None if there is none."""
    simulator = Simulator(replace(problem, cluster=problem.cluster.without_memory_limits))

    def peaks_of(device_of: IntArray) -> FloatArray | None:
        value, peaks = simulator.value_and_peaks(Placement.of(device_of))
        return peaks if math.isfinite(value) else None

    return min(packings(problem, device, peaks_of), key=lambda one: one.peak, default=None)


def packings(problem: Problem, device: int, peaks_of: Peaks) -> Iterator[Packing]:
    """Yield packings; at most 32 placements are simulated, and those within the limits are yielded.

    Colocation classes are taken in the topological order and in the model's own, from either end.
    Each other device, the largest first, takes a run of them that fills its memory limit; `device`
    takes the rest. If tensors raise a device's peak above its limit, it gets less in the next
    round.

    Args:
        problem: with memory limits; that of `device` is ignored.
        device: takes the rest.
        peaks_of: simulates a placement, see `Peaks`.
    """
    limits = np.array(problem.cluster.memory_bytes)
    limits[device] = math.inf
    others = [other for other in range(problem.n_devices) if other != device]
    others.sort(key=lambda other: -limits[other])
    for items in _orders(problem):
        yield from _rounds(items, peaks_of, limits, others, problem.cluster)


def _rounds(
    items: _Items, peaks_of: Peaks, limits: FloatArray, others: Sequence[int], cluster: Cluster
) -> Iterator[Packing]:
    """Yield packings of one order; the peaks of a round correct the capacities of the next."""
    device = next(at for at in range(cluster.n_devices) if at not in others)
    capacities = np.where(np.isfinite(limits), limits, items.total)
    known: set[bytes] = set()
    for number in range(_ROUNDS):
        device_of = items.filled(capacities, others, device)
        if device_of.tobytes() in known:
            return
        known.add(device_of.tobytes())
        peaks = peaks_of(device_of)
        if peaks is None:  # no route, or no partition into subgraphs
            capacities[others] *= 0.5
            continue
        over = np.maximum(peaks - limits, 0.0)
        is_full = cluster.pooled(peaks) > cluster.pool_bytes
        if is_full.any():
            shrinks = np.asarray((cluster.pool_shares[is_full] > 0).any(axis=0))
            shrinks[device] = False
            capacities[shrinks] *= 0.5
            continue
        if not over.any():
            yield Packing(Placement.of(device_of), float(peaks[device]))
            spare = np.where(np.isfinite(limits), limits - peaks, 0.0)
            capacities += spare / 2
            continue
        is_late = number >= _ROUNDS // 2  # the memory of tensors does not shrink with the run
        capacities = np.maximum(capacities - over, 0.0)
        if is_late:
            capacities[over > 0] *= 0.5 if number < _ROUNDS - 2 else 0.0


def _orders(problem: Problem) -> Iterator[_Items]:
    own = np.arange(problem.n_units)
    topological = np.asarray(problem.unit_graph.topological_order, dtype=np.int64)
    orders = [topological]
    if not np.array_equal(own, topological):
        orders.append(own)
    for order in orders:
        yield _Items(problem, order)
        yield _Items(problem, order[::-1])


class _Items:
    """Colocation classes in an order, with the bytes that a device keeps for each.

    These are its weights and, under `max-load`, its tensors of samples in flight (`Problem.kept`).
    """

    def __init__(self, problem: Problem, order: IntArray) -> None:
        classes, kept = problem.colocation, problem.kept
        rank = positions_in(order)
        first = np.full(classes.n_groups, problem.n_units)
        np.minimum.at(first, classes.group_of, rank)
        by_rank = np.argsort(first, kind="stable")
        position = positions_in(by_rank)
        self.position_of_unit = position[classes.group_of]
        self.allowed: BoolArray = problem.allowed_by_class[by_rank]
        self.total = kept.total
        n_entries = max(1, len(kept.sizes))
        pairs = np.unique(
            self.position_of_unit[kept.of_units.row_of_each()] * n_entries + kept.of_units.indices
        )
        self.position, entry = pairs // n_entries, pairs % n_entries
        self.size = kept.sizes[entry]
        self.own = np.bincount(self.position, self.size, minlength=classes.n_groups)
        # Of each pair: the last earlier item that keeps the same entry, -1 for none.
        by_entry = np.lexsort((self.position, entry))
        self.before = np.full(len(pairs), -1)
        same = entry[by_entry[1:]] == entry[by_entry[:-1]]
        self.before[by_entry[1:][same]] = self.position[by_entry[:-1][same]]

    def filled(self, capacities: FloatArray, others: Sequence[int], rest: int) -> IntArray:
        """Fill devices in turn with consecutive classes that they may run; the rest goes to `rest`.

        Args:
            capacities: bytes that each device may keep, shape (n_devices,).
            others: devices to fill, in this order.
            rest: a device; classes that may not run there go to the lowest-numbered device of the
                cluster that may run them, even beyond its capacity.

        Returns:
            Device of each unit, shape (n_units,).
        """
        n_items, start = len(self.own), 0
        device_of = np.full(n_items, rest)
        for device in others:
            takes = self.allowed[:, device] & (self.own <= capacities[device])
            at = int(np.searchsorted(self.position, start))
            position = self.position[at:]
            more = self.size[at:] * ((self.before[at:] < start) & takes[position])
            end = int(np.searchsorted(np.cumsum(more), capacities[device], side="right"))
            stop = int(position[end]) if end < len(position) else n_items
            if capacities[device] > 0:
                device_of[start:stop][takes[start:stop]] = device
                start = stop
        may_stay = self.allowed[np.arange(n_items), device_of]
        device_of = np.where(may_stay, device_of, np.argmax(self.allowed, axis=1))
        return np.asarray(device_of[self.position_of_unit], dtype=np.int64)
