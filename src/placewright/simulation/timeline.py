"""Timelines: start and end of units and transfers, reasons for waiting, critical path."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.simulation.layout import ProblemArrays


@dataclass(frozen=True, eq=False)
class Recording:
    """The record of one simulated placement."""

    # start, end: seconds, shape (n_units,)
    start: FloatArray
    end: FloatArray
    segment: IntArray  # of each unit, numbered in the order of dispatch, shape (n_units,)
    memory_peaks: FloatArray  # bytes, shape (n_devices,)
    # hop_tensor, hop_source, hop_target: of each hop, in the order of sending, shape (n_hops,)
    hop_tensor: IntArray
    hop_source: IntArray
    hop_target: IntArray
    # hop_start, hop_end: seconds, shape (n_hops,)
    hop_start: FloatArray
    hop_end: FloatArray


@dataclass(frozen=True, eq=False)
class Transfer:
    """One hop of a tensor: endpoints by number, seconds."""

    tensor: int
    source: int
    destination: int
    channel: int
    start: float
    end: float


@dataclass(frozen=True)
class Step:
    """One step of the critical path: a unit or a transfer, and the reason why it began then."""

    what: str
    index: int  # of the unit or of the transfer
    start: float
    end: float
    reason: str
    is_transfer: bool


@dataclass(frozen=True, eq=False)
class Timeline:
    """A placement through time."""

    value: float  # makespan, seconds
    device_of: IntArray  # device of each unit, shape (n_units,)
    # start, end: seconds, shape (n_units,)
    start: FloatArray
    end: FloatArray
    # segment of each unit, numbered in the order of dispatch, shape (n_units,)
    segment_of: IntArray
    order: IntArray  # all units by start, a topological order that repeats this timeline
    transfers: tuple[Transfer, ...]  # all hops by start
    memory_peaks: FloatArray  # bytes, shape (n_devices,)
    has_order: bool  # True when the placement gave the order
    problem: Problem = field(repr=False)  # the problem that was placed

    # Both are computed on first use: callers that need start times only make many timelines.
    @cached_property
    def critical_path(self) -> tuple[Step, ...]:
        """Steps from time 0 to the makespan, without a gap unless all devices and channels idle."""
        return self._reasons.critical_path(self.value)

    @cached_property
    def waits(self) -> tuple[str, ...]:
        """The reason why each unit did not begin earlier.

        ``"none"``, ``"input T"`` (the tensor of op T), ``"stream U"`` (U held the last free
        stream), ``"processor U"`` (U was on a device that shares a processor with that of the
        unit), or ``"order U"`` (U comes before it in the given order).
        """
        return tuple(self._reasons.wait(unit)[0] for unit in range(len(self.start)))

    def last_before(self, unit: int) -> tuple[str, str, int]:
        """The entry of `waits` for one unit, and the unit or transfer that ended right before.

        Returns:
            The text, ``"unit"``, ``"transfer"`` (of `transfers`) or ``""``, and its index or -1.
        """
        return self._reasons.wait(unit)

    @cached_property
    def _reasons(self) -> _Reasons:
        return _Reasons(self)


def timeline_of(
    problem: Problem, arrays: ProblemArrays, placement: Placement, state: Recording
) -> Timeline:
    """Make the timeline of a recording."""
    transfers = _transfers(arrays, state)
    ends = [hop.end for hop in transfers]
    return Timeline(
        value=max([float(state.end.max()), *ends]),
        device_of=placement.device_of,
        start=state.start,
        end=state.end,
        segment_of=state.segment,
        order=_order(problem, placement, state),
        transfers=transfers,
        memory_peaks=state.memory_peaks,
        has_order=placement.order is not None,
        problem=problem,
    )


def _transfers(arrays: ProblemArrays, state: Recording) -> tuple[Transfer, ...]:
    transfers = []
    columns = (state.hop_tensor, state.hop_source, state.hop_target, state.hop_start, state.hop_end)
    for tensor, source, target, start, end in zip(*(c.tolist() for c in columns), strict=True):
        channel = int(arrays.channel[source, target])
        transfers.append(Transfer(tensor, source, target, channel, start, end))
    return tuple(sorted(transfers, key=lambda hop: (hop.start, hop.tensor, hop.destination)))


def _order(problem: Problem, placement: Placement, state: Recording) -> IntArray:
    """Units by (start, topological position), which keeps producers of zero seconds first."""
    if placement.order is not None:
        return placement.order
    position = np.empty(problem.n_units, dtype=np.int64)
    position[problem.unit_graph.topological_order] = np.arange(problem.n_units)
    if not problem.cluster.shared_processors:
        return np.lexsort((position, state.end, state.segment, state.start))
    # On one processor, the last of those that begin together is the one that takes time.
    takes_time = state.end > state.start
    return np.lexsort((position, state.end, state.segment, takes_time, state.start))


class _Reasons:
    """Lookups that explain why each unit and transfer began when it did."""

    def __init__(self, timeline: Timeline) -> None:
        self.graph = timeline.problem.unit_graph
        self.device_of = timeline.device_of.tolist()
        self.start, self.end = timeline.start.tolist(), timeline.end.tolist()
        self.transfers = timeline.transfers
        # More than one hop if a tensor goes to the host and also through it.
        self.arrivals: dict[tuple[int, int], list[int]] = {}
        for index, hop in enumerate(self.transfers):
            self.arrivals.setdefault((hop.tensor, hop.destination), []).append(index)
        self.has_order = timeline.has_order
        self.streams = [device.streams for device in timeline.problem.cluster.devices]
        # What ended on a device, or on a channel, at an instant, having taken time.
        self.ended: dict[tuple[int, float], int] = {}
        self.sent: dict[tuple[int, float], int] = {}
        self.before: dict[int, int] = {}
        last: dict[int, int] = {}
        place: dict[int, int] = {}
        excludes = timeline.problem.cluster.excludes
        # Devices that take turns with each device, which comes first.
        in_turn = [[d, *np.flatnonzero(row).tolist()] for d, row in enumerate(excludes)]
        for unit in timeline.order.tolist():
            device = self.device_of[unit]
            earlier = [last[other] for other in in_turn[device] if other in last]
            if earlier:
                self.before[unit] = max(earlier, key=lambda at: place[at])
            last[device] = unit
            place[unit] = len(place)
        for unit in place:
            if self.end[unit] > self.start[unit]:
                for other in in_turn[self.device_of[unit]]:
                    self.ended[other, self.end[unit]] = unit
        for index, hop in enumerate(self.transfers):
            if hop.end > hop.start:
                self.sent[hop.channel, hop.end] = index

    def wait(self, unit: int) -> tuple[str, str, int]:
        """The reason as text; kind and index of the unit or transfer that ended last before."""
        start, device = self.start[unit], self.device_of[unit]
        if start == 0:
            return ("none", "", -1)
        best = self._last_input(unit, device)
        if best[0] >= start:
            return best[1:]
        # With one stream and an order both hold a unit back; users can change the order.
        word = "order" if self.has_order and self.streams[device] == 1 else "stream"
        ended = self.ended.get((device, start), -1)
        if ended >= 0 and self.device_of[ended] != device and not self.has_order:
            word = "processor"
        if ended >= 0:
            return (f"{word} {self.graph.op_names[ended]}", "unit", ended)
        # Units before it took no time, or the order made it begin no earlier than one of them.
        at = self.before.get(unit, -1)
        while at >= 0 and self.start[at] == start:
            cause = self._last_input(at, self.device_of[at])
            if cause[0] >= start:
                held_by = self.graph.op_names[self.before[unit]]
                return (f"{'order' if self.has_order else word} {held_by}", *cause[2:])
            ended = self.ended.get((self.device_of[at], start), -1)
            if ended >= 0:
                held_by = self.graph.op_names[self.before[unit]]
                return (f"{'order' if self.has_order else word} {held_by}", "unit", ended)
            at = self.before.get(at, -1)
        return best[1:]

    def _last_input(self, unit: int, device: int) -> tuple[float, str, str, int]:
        best: tuple[float, str, str, int] = (-1.0, "none", "", -1)
        for tensor in self.graph.op_inputs.row(unit).tolist():
            producer = int(self.graph.tensor_producers[tensor])
            hop = self._arrival(tensor, device, self.start[unit])
            if hop >= 0:
                cause = (self.transfers[hop].end, f"input {self._name(tensor)}", "transfer", hop)
            elif producer >= 0:
                cause = (self.end[producer], f"input {self._name(tensor)}", "unit", producer)
            else:
                continue
            if cause[0] > best[0]:
                best = cause
        return best

    def critical_path(self, value: float) -> tuple[Step, ...]:
        """Walk back from the last end, each time to the step that ended right before."""
        steps: list[Step] = []
        kind, index = self._last(value)
        while index >= 0 and len(steps) <= len(self.device_of) + len(self.transfers):
            if kind == "unit":
                reason, before, at = self.wait(index)
                start, end = self.start[index], self.end[index]
                what = self.graph.op_names[index]
            else:
                hop = self.transfers[index]
                reason, before, at = self._before_hop(index)
                start, end, what = hop.start, hop.end, f"transfer of {self._name(hop.tensor)}"
            steps.append(Step(what, index, start, end, reason, kind == "transfer"))
            kind, index = before, at
        return tuple(reversed(steps))

    def _last(self, value: float) -> tuple[str, int]:
        for index, hop in enumerate(self.transfers):
            if hop.end == value:
                return "transfer", index
        return "unit", int(np.argmax(self.end))

    def _before_hop(self, index: int) -> tuple[str, str, int]:
        """Find what a hop waited for: its tensor, or another transfer of its channel."""
        hop = self.transfers[index]
        producer = int(self.graph.tensor_producers[hop.tensor])
        if hop.start == 0:
            return ("none", "", -1)
        first = self._arrival(hop.tensor, hop.source, hop.start)
        if first not in (-1, index) and self.transfers[first].end == hop.start:
            return (f"input {self._name(hop.tensor)}", "transfer", first)
        if producer >= 0 and self.end[producer] == hop.start:
            return (f"input {self._name(hop.tensor)}", "unit", producer)
        earlier = self.sent.get((hop.channel, hop.start), index)
        if earlier == index:
            return ("none", "", -1)
        return (f"channel {self._name(self.transfers[earlier].tensor)}", "transfer", earlier)

    def _arrival(self, tensor: int, endpoint: int, time: float) -> int:
        """The last hop that brought a tensor to an endpoint by `time`, -1 for none."""
        hops = self.arrivals.get((tensor, endpoint), ())
        return max(
            (index for index in hops if self.transfers[index].end <= time),
            key=lambda index: self.transfers[index].end,
            default=-1,
        )

    def _name(self, tensor: int) -> str:
        producer = int(self.graph.tensor_producers[tensor])
        return f"graph input {tensor}" if producer < 0 else self.graph.op_names[producer]
