"""Placements that need little memory on one device: the others are filled first.

One simulation without limits gives the peaks of a placement on all devices, so that no search is
needed to know with which limits it fits. The time is bounded by a number of simulations that does
not grow with the problem.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.simulation.model import Simulator

_ROUNDS = 8  # of filling, simulating, and correcting what the tensors took


@dataclass(frozen=True)
class Packing:
    """A placement with all devices but one within their limits, and the peak of that one."""

    placement: Placement
    peak: float


def tightest_packing(problem: Problem, device: int, enough: float = 0.0) -> Packing | None:
    """The packing with the smallest peak on one device, of at most 32 that are simulated.

    Units are taken in the topological order and in the model's own, from either end. Each other
    device takes a run of them that fills its limit; one device takes the rest. Where a device's
    peak breaks its limit, because of the tensors, it gets less in the next round.

    Args:
        problem: with limits; that of `device` does not count.
        device: takes what is left.
        enough: bytes; the first packing with a peak of at most as many is returned.
    """
    limits = np.array(problem.cluster.memory_bytes)
    limits[device] = math.inf
    roomy = tuple(replace(one, memory_bytes=math.inf) for one in problem.cluster.devices)
    simulator = Simulator(replace(problem, cluster=replace(problem.cluster, devices=roomy)))
    others = [other for other in range(problem.n_devices) if other != device]
    others.sort(key=lambda other: -limits[other])
    best: Packing | None = None
    for items in _orders(problem):
        for found in _rounds(items, simulator, limits, others, device):
            if best is None or found.peak < best.peak:
                best = found
            if best.peak <= enough:
                return best
    return best


def _rounds(
    items: _Items, simulator: Simulator, limits: FloatArray, others: Sequence[int], device: int
) -> Iterator[Packing]:
    """Packings within the limits; the peaks of one round correct the capacities of the next."""
    capacities = np.where(np.isfinite(limits), limits, items.total)
    known: set[bytes] = set()
    for number in range(_ROUNDS):
        device_of = items.filled(capacities, others, device)
        if device_of.tobytes() in known:
            return
        known.add(device_of.tobytes())
        placement = Placement.of(device_of)
        value, peaks = simulator.value_and_peaks(placement)
        if not math.isfinite(value):  # no route, or no partition into subgraphs
            capacities[others] *= 0.5
            continue
        over = np.maximum(peaks - limits, 0.0)
        if not over.any():
            yield Packing(placement, float(peaks[device]))
            spare = np.where(np.isfinite(limits), limits - peaks, 0.0)
            capacities += spare / 2
            continue
        is_late = number >= _ROUNDS // 2  # what the tensors take does not shrink with the run
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
    """Sets of units that share a device, in an order, with the bytes that devices keep for them."""

    def __init__(self, problem: Problem, order: IntArray) -> None:
        classes, kept = problem.colocation, problem.kept
        rank = np.empty(problem.n_units, dtype=np.int64)
        rank[order] = np.arange(problem.n_units)
        first = np.full(classes.n_groups, problem.n_units)
        np.minimum.at(first, classes.group_of, rank)
        position = np.empty(classes.n_groups, dtype=np.int64)
        by_rank = np.argsort(first, kind="stable")
        position[by_rank] = np.arange(classes.n_groups)
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
        """Runs of items up to each device's capacity, in turn; one device takes what is left."""
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
