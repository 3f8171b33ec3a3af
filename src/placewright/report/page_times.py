"""Charts of a page over time: timeline, causes of idle time, and memory curves.

- The timeline is columns of numbers: units, hops, the reason why each unit waited, critical path.
- An idle stretch ends with the start of a unit. Its cause is the state of that unit's last input
  meanwhile: another device computed it, it waited for a channel, or it was on its way.
- Memory follows rule 8 of docs/reference/simulation.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.core.execution_models import Event
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.simulation.model import Simulator
from placewright.simulation.timeline import Timeline, Transfer

NONE, INPUT_OF_UNIT, INPUT_BY_HOP, STREAM, ORDER = range(5)
CAUSES = ("input", "channel", "transfer", "processor", "other", "no work left")
MOST_POINTS = 600  # of one curve: more than a screen has columns
_DIGITS = 9  # of numbers that are drawn; those that the page computes with are exact


def rounded(values: Iterable[float]) -> list[float]:
    """Numbers with the digits that a picture can show."""
    return [float(f"{value:.{_DIGITS}g}") for value in values]


def timeline_columns(problem: Problem, timeline: Timeline) -> dict[str, Any]:
    """A timeline as parallel lists.

    Returns:
        ``device``, ``start``, ``end``, ``segment``, ``lane``, ``wait`` (one of the constants of
        this module) and ``wait_on`` (a unit, or for INPUT_BY_HOP a hop) have an entry per unit;
        ``hops`` are sorted by start; ``channels`` and ``endpoints`` are names; ``critical`` has
        pairs (is a hop, index).
    """
    kinds, others = _waits(timeline)
    return {
        "device": timeline.device_of.tolist(),
        "start": rounded(timeline.start.tolist()),
        "end": rounded(timeline.end.tolist()),
        "segment": timeline.segment_of.tolist(),
        "lane": _lanes(problem, timeline),
        "wait": kinds,
        "wait_on": others,
        "hops": {
            "tensor": [hop.tensor for hop in timeline.transfers],
            "source": [hop.source for hop in timeline.transfers],
            "target": [hop.destination for hop in timeline.transfers],
            "channel": [hop.channel for hop in timeline.transfers],
            "start": rounded(hop.start for hop in timeline.transfers),
            "end": rounded(hop.end for hop in timeline.transfers),
        },
        "channels": channel_names(problem),
        "endpoints": list(problem.cluster.endpoint_index),
        "critical": [[int(step.is_transfer), step.index] for step in timeline.critical_path],
    }


def _waits(timeline: Timeline) -> tuple[list[int], list[int]]:
    kinds, others = [], []
    for unit in range(len(timeline.start)):
        text, what, index = timeline.last_before(unit)
        word, _, name = text.partition(" ")
        kind = NONE
        if index >= 0 and word == "input":
            kind = INPUT_BY_HOP if what == "transfer" else INPUT_OF_UNIT
        elif index >= 0:
            kind = ORDER if word == "order" else STREAM
            # A unit that takes no time holds it back; the index is that of its own cause.
            index = timeline.problem.unit_graph.op_index[name]
        kinds.append(kind)
        others.append(index)
    return kinds, others


def _lanes(problem: Problem, timeline: Timeline) -> list[int]:
    """A stream for each unit, so that units of a device that overlap are drawn apart."""
    most = problem.n_units  # of a device may run at once, however many streams it has
    free = [[0.0] * min(device.streams, most) for device in problem.cluster.devices]
    lane = [0] * problem.n_units
    for unit in timeline.order.tolist():
        ends = free[int(timeline.device_of[unit])]
        start = float(timeline.start[unit])
        at = next((i for i, end in enumerate(ends) if end <= start), 0)
        ends[at] = float(timeline.end[unit])
        lane[unit] = at
    return lane


def channel_names(problem: Problem, arrow: str = "→") -> list[str]:
    """Names of the channels: their own, or the ends of their link."""
    names = [""] * problem.cluster.n_channels
    index = problem.cluster.endpoint_index
    for link in problem.cluster.links:
        number = int(problem.cluster.link_channel[index[link.source], index[link.destination]])
        names[number] = link.channel or f"{link.source} {arrow} {link.destination}"
    return names


@dataclass(frozen=True)
class DeviceTime:
    """Seconds of one device from time 0 to the makespan."""

    busy: float  # seconds in which at least one unit runs
    # cause -> seconds. ``"input"``: another device computed the last input; ``"channel"``: that
    # waited while the channel carried other tensors; ``"transfer"``: it was on its way;
    # ``"processor"``: that computed for another device; ``"no work left"``: after the device's last
    # unit; ``"other"``: an order held it back
    idle: dict[str, float]
    idle_stretches: tuple[tuple[float, float, str], ...]  # (start, end, cause), sorted by start


def device_times(problem: Problem, timeline: Timeline) -> tuple[DeviceTime, ...]:
    """Busy and idle seconds of each device; they add up to the makespan."""
    by_device: list[list[int]] = [[] for _ in range(problem.n_devices)]
    for unit in timeline.order.tolist():
        by_device[int(timeline.device_of[unit])].append(unit)
    incoming = _Incoming(timeline)
    return tuple(_device_time(timeline, incoming, units) for units in by_device)


def _device_time(timeline: Timeline, incoming: _Incoming, units: list[int]) -> DeviceTime:
    stretches: list[tuple[float, float, str]] = []
    busy, until = 0.0, 0.0
    for unit in sorted(units, key=lambda unit: float(timeline.start[unit])):
        start, end = float(timeline.start[unit]), float(timeline.end[unit])
        if start > until:
            stretches += incoming.causes(unit, until, start)
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    if timeline.value > until:
        stretches.append((until, timeline.value, "no work left"))
    idle = dict.fromkeys(CAUSES, 0.0)
    for start, end, cause in stretches:
        idle[cause] += end - start
    return DeviceTime(busy, idle, tuple(stretches))


class _Incoming:
    """Finds the hops that bring a tensor to an endpoint."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.graph = timeline.problem.unit_graph
        self.to: dict[tuple[int, int], list[Transfer]] = {}
        for hop in timeline.transfers:
            self.to.setdefault((hop.tensor, hop.destination), []).append(hop)

    def causes(self, unit: int, since: float, start: float) -> list[tuple[float, float, str]]:
        """The idle stretch before a unit, split by cause."""
        text, what, index = self.timeline.last_before(unit)
        if index < 0:
            return [(since, start, "other")]
        if what == "unit":
            there, here = self.timeline.device_of[index], self.timeline.device_of[unit]
            if text.startswith("input"):
                return [(since, start, "input" if there != here else "other")]
            holds_processor = self.timeline.problem.cluster.excludes[there, here]
            return [(since, start, "processor" if holds_processor else "other")]
        pieces: list[tuple[float, float, str]] = []
        for begin, end, cause in self._phases(self.timeline.transfers[index]):
            low, high = max(begin, since), min(end, start)
            if high > low:
                pieces.append((low, high, cause))
        covered = max((end for _, end, _ in pieces), default=since)
        if covered < start:  # an order made the device wait after the input arrived
            pieces.append((covered, start, "other"))
        return pieces

    def _phases(self, hop: Transfer) -> list[tuple[float, float, str]]:
        """The states of a tensor from time 0 to its arrival, as (start, end, cause)."""
        made = self._made(hop)
        phases = [(0.0, made, "input")]
        before = self._hop_before(hop)
        if before is not None:
            phases += [(made, before.start, "channel"), (before.start, before.end, "transfer")]
            made = before.end
        return [*phases, (made, hop.start, "channel"), (hop.start, hop.end, "transfer")]

    def _made(self, hop: Transfer) -> float:
        producer = int(self.graph.tensor_producers[hop.tensor])
        return 0.0 if producer < 0 else float(self.timeline.end[producer])

    def _hop_before(self, hop: Transfer) -> Transfer | None:
        """The first hop of a transfer through the host, None for a direct transfer."""
        producer = int(self.graph.tensor_producers[hop.tensor])
        if producer < 0 or hop.source == self.timeline.device_of[producer]:
            return None
        earlier = [h for h in self.to.get((hop.tensor, hop.source), ()) if h.end <= hop.start]
        return max(earlier, key=lambda h: h.end, default=None)


def busy_seconds(problem: Problem, device_of: np.ndarray) -> list[float]:
    """Seconds of the units of each device, for execution models without a timeline."""
    units = np.arange(problem.n_units)
    own = problem.costs.seconds[units, device_of]
    return [float(x) for x in np.bincount(device_of, own, minlength=problem.n_devices)]


def computing_seconds(problem: Problem, placement: Placement) -> list[float]:
    """Seconds in which each device computes: by the timeline if the execution model has one."""
    if not isinstance(problem.execution_model, Event):
        return busy_seconds(problem, placement.device_of)
    times = device_times(problem, Simulator(problem).timeline(placement))
    return [device.busy for device in times]


@dataclass(frozen=True)
class MemoryCurve:
    """Bytes on one device: `bytes[i]` from `times[i]` on, resident bytes included."""

    times: tuple[float, ...]
    bytes: tuple[float, ...]


def memory_curves(problem: Problem, timeline: Timeline) -> tuple[MemoryCurve, ...]:
    """Exact curves, one per device."""
    changes: list[list[tuple[float, float]]] = [[] for _ in range(problem.n_devices)]
    copies = _Copies(problem, timeline)
    for tensor in range(problem.unit_graph.n_tensors):
        for device, start, end in copies.of(tensor):
            if device < problem.n_devices and end > start:
                size = float(problem.unit_graph.tensor_bytes[tensor])
                changes[device] += [(start, size), (end, -size)]
    kept = problem.kept.bytes_by_label(timeline.device_of).tolist()
    resident = [*kept, *[0.0] * (problem.n_devices - len(kept))]  # the last ones may run nothing
    return tuple(_curve(at, resident[device]) for device, at in enumerate(changes))


def thinned(curve: MemoryCurve, value: float, points: int = MOST_POINTS) -> MemoryCurve:
    """Reduce a curve to the largest value of each of `points` slices of time; the peak stays."""
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


def _curve(changes: list[tuple[float, float]], resident: float) -> MemoryCurve:
    times, sizes, used = [0.0], [resident], resident
    for time, size in sorted(changes):  # at equal times, bytes are freed first
        used += size
        if time == times[-1]:
            sizes[-1] = used
        else:
            times.append(time)
            sizes.append(used)
    return MemoryCurve(tuple(times), tuple(sizes))


class _Copies:
    """Finds the interval in which each copy of a tensor takes memory."""

    def __init__(self, problem: Problem, timeline: Timeline) -> None:
        self.graph, self.host = problem.unit_graph, problem.cluster.host_endpoint
        self.linked = problem.cluster.link_channel >= 0
        self.timeline, self.device_of = timeline, timeline.device_of.tolist()
        self.end = timeline.end.tolist()
        self.hops: dict[int, list[Transfer]] = {}
        for hop in timeline.transfers:
            self.hops.setdefault(hop.tensor, []).append(hop)

    def of(self, tensor: int) -> list[tuple[int, float, float]]:
        """(endpoint, start, end) of each copy of a tensor."""
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
        for hop in self._arrivals(tensor, home, hops):
            stays = is_output and hop.destination == self.host
            until = math.inf if stays else last.get(hop.destination, hop.end)
            copies.append((hop.destination, hop.start, min(until, self.timeline.value)))
        return copies

    def _last_readers(self, tensor: int) -> dict[int, float]:
        """Device -> end of its last reader of a tensor."""
        last: dict[int, float] = {}
        for reader in self.graph.tensor_consumers.row(tensor).tolist():
            device = self.device_of[reader]
            last[device] = max(last.get(device, 0.0), self.end[reader])
        return last

    def _arrivals(self, tensor: int, home: int, hops: Sequence[Transfer]) -> list[Transfer]:
        """Hops whose copy is read or is an output, without first hops through the host."""
        to_host = [hop for hop in hops if hop.destination == self.host]
        others = [hop for hop in hops if hop.destination != self.host]
        targets = list(
            dict.fromkeys(self.device_of[r] for r in self.graph.tensor_consumers.row(tensor))
        )
        if self.graph.tensor_is_output[tensor] and self.host not in targets:
            targets.append(self.host)
        ways = [t for t in targets if t != home and (t == self.host or not self.linked[home, t])]
        return others + [hop for hop, t in zip(to_host, ways, strict=False) if t == self.host]
