"""Where the time of each device goes: computing, or idle, and for which cause.

An idle stretch ends with a unit that begins. What that unit's last input was doing meanwhile is
the cause: it was still being computed elsewhere, it waited for a channel, or it was on its way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.core.problem import Problem
from placewright.simulation.timeline import Timeline, Transfer

CAUSES = ("input", "channel", "transfer", "other", "no work left")


@dataclass(frozen=True)
class DeviceTime:
    """Seconds of one device from time 0 to the makespan.

    Attributes:
        busy: at least one unit runs.
        idle: cause -> seconds. ``"input"``: the input that came last was being computed on another
            device; ``"channel"``: it waited while the channel carried others; ``"transfer"``: it
            was on its way; ``"no work left"``: after the device's last unit; ``"other"``: an order
            held it back.
        idle_stretches: (start, end, cause), by start.
    """

    busy: float
    idle: dict[str, float]
    idle_stretches: tuple[tuple[float, float, str], ...]


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
    """The hops that bring a tensor to an endpoint."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.graph = timeline.problem.unit_graph
        self.to: dict[tuple[int, int], list[Transfer]] = {}
        for hop in timeline.transfers:
            self.to.setdefault((hop.tensor, hop.destination), []).append(hop)

    def causes(self, unit: int, since: float, start: float) -> list[tuple[float, float, str]]:
        """The idle stretch before a unit, cut where its cause changes."""
        _, what, index = self.timeline.last_before(unit)
        if index < 0:
            return [(since, start, "other")]
        if what == "unit":
            is_elsewhere = self.timeline.device_of[index] != self.timeline.device_of[unit]
            return [(since, start, "input" if is_elsewhere else "other")]
        pieces: list[tuple[float, float, str]] = []
        for begin, end, cause in self._phases(self.timeline.transfers[index]):
            low, high = max(begin, since), min(end, start)
            if high > low:
                pieces.append((low, high, cause))
        covered = max((end for _, end, _ in pieces), default=since)
        if covered < start:  # an order kept the device waiting after the input had come
            pieces.append((covered, start, "other"))
        return pieces

    def _phases(self, hop: Transfer) -> list[tuple[float, float, str]]:
        """What a tensor did from time 0 until it arrived."""
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
        """The first of two hops through the host."""
        producer = int(self.graph.tensor_producers[hop.tensor])
        if producer < 0 or hop.source == self.timeline.device_of[producer]:
            return None
        earlier = [h for h in self.to.get((hop.tensor, hop.source), ()) if h.end <= hop.start]
        return max(earlier, key=lambda h: h.end, default=None)


def busy_seconds(problem: Problem, device_of: np.ndarray) -> list[float]:
    """Seconds of the units of each device, for models without a timeline."""
    units = np.arange(problem.n_units)
    own = problem.costs.seconds[units, device_of]
    return [float(x) for x in np.bincount(device_of, own, minlength=problem.n_devices)]
