"""Bytes on each device over time, as docs/reference/simulation.md (rule 7) counts them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewright.core.problem import Problem
from placewright.simulation.timeline import Timeline, Transfer

MOST_POINTS = 600  # of one curve: more than a screen has columns


@dataclass(frozen=True)
class MemoryCurve:
    """Bytes of one device: `bytes[i]` from `times[i]` on; kept bytes are in all of them."""

    times: tuple[float, ...]
    bytes: tuple[float, ...]

    @property
    def peak(self) -> float:
        """The most at one time."""
        return max(self.bytes)


def memory_curves(problem: Problem, timeline: Timeline) -> tuple[MemoryCurve, ...]:
    """Exact curves, one per device."""
    changes: list[list[tuple[float, float]]] = [[] for _ in range(problem.n_devices)]
    copies = _Copies(problem, timeline)
    for tensor in range(problem.unit_graph.n_tensors):
        for device, start, end in copies.of(tensor):
            if device < problem.n_devices and end > start:
                size = float(problem.unit_graph.tensor_bytes[tensor])
                changes[device] += [(start, size), (end, -size)]
    kept = _kept(problem, timeline)
    return tuple(_curve(at, kept[device]) for device, at in enumerate(changes))


def thinned(curve: MemoryCurve, value: float, points: int = MOST_POINTS) -> MemoryCurve:
    """The largest value of each of so many slices of time; the peak stays what it is."""
    if len(curve.times) <= points or value <= 0:
        return curve
    slices = np.minimum((np.array(curve.times) / value * points).astype(int), points - 1)
    most = np.full(points, -math.inf)
    np.maximum.at(most, slices, np.array(curve.bytes))
    last = {int(at): size for at, size in zip(slices, curve.bytes, strict=True)}
    sizes, before = [], 0.0
    for at in range(points):
        sizes.append(max(before, float(most[at])))
        before = last.get(at, before)
    return MemoryCurve(tuple(at * value / points for at in range(points)), tuple(sizes))


def _curve(changes: list[tuple[float, float]], kept: float) -> MemoryCurve:
    times, sizes, used = [0.0], [kept], kept
    for time, size in sorted(changes):  # at one time what ends comes before what begins
        used += size
        if time == times[-1]:
            sizes[-1] = used
        else:
            times.append(time)
            sizes.append(used)
    return MemoryCurve(tuple(times), tuple(sizes))


def _kept(problem: Problem, timeline: Timeline) -> list[float]:
    kept = problem.kept
    entries, device = kept.of_units.indices, timeline.device_of[kept.of_units.row_of_each()]
    keys = np.unique(device * max(1, len(kept.sizes)) + entries)
    rows, columns = keys // max(1, len(kept.sizes)), keys % max(1, len(kept.sizes))
    return [float(x) for x in np.bincount(rows, kept.sizes[columns], problem.n_devices)]


class _Copies:
    """When each copy of a tensor comes and goes."""

    def __init__(self, problem: Problem, timeline: Timeline) -> None:
        self.graph, self.host = problem.unit_graph, problem.cluster.host_endpoint
        self.linked = problem.cluster.link_channel >= 0
        self.timeline, self.device_of = timeline, timeline.device_of.tolist()
        self.end = timeline.end.tolist()
        self.hops: dict[int, list[Transfer]] = {}
        for hop in timeline.transfers:
            self.hops.setdefault(hop.tensor, []).append(hop)

    def of(self, tensor: int) -> list[tuple[int, float, float]]:
        """(endpoint, start, end) of each copy."""
        producer = int(self.graph.tensor_producers[tensor])
        home = self.host if producer < 0 else self.device_of[producer]
        hops = self.hops.get(tensor, [])
        is_output = bool(self.graph.tensor_is_output[tensor])
        last = self._last_readers(tensor)
        if producer < 0:
            begin, made = 0.0, 0.0
        else:
            begin, made = float(self.timeline.start[producer]), self.end[producer]
        sent = [hop.end for hop in hops if hop.source == home]
        end = math.inf if is_output else max([made, last.get(home, made), *sent])
        copies = [(home, begin, min(end, self.timeline.value))]
        for hop in self._arrivals(tensor, home, hops, last):
            stays = is_output and hop.destination == self.host
            until = math.inf if stays else last.get(hop.destination, hop.end)
            copies.append((hop.destination, hop.start, min(until, self.timeline.value)))
        return copies

    def _last_readers(self, tensor: int) -> dict[int, float]:
        """Device -> when its last reader of a tensor ends."""
        last: dict[int, float] = {}
        for reader in self.graph.tensor_consumers.row(tensor).tolist():
            device = self.device_of[reader]
            last[device] = max(last.get(device, 0.0), self.end[reader])
        return last

    def _arrivals(
        self, tensor: int, home: int, hops: Sequence[Transfer], last: dict[int, float]
    ) -> list[Transfer]:
        """Hops that end where the tensor is read or leaves; those that only pass are left out."""
        to_host = [hop for hop in hops if hop.destination == self.host]
        others = [hop for hop in hops if hop.destination != self.host]
        targets = list(
            dict.fromkeys(self.device_of[r] for r in self.graph.tensor_consumers.row(tensor))
        )
        if self.graph.tensor_is_output[tensor] and self.host not in targets:
            targets.append(self.host)
        ways = [t for t in targets if t != home and (t == self.host or not self.linked[home, t])]
        return others + [hop for hop, t in zip(to_host, ways, strict=False) if t == self.host]
