"""Explain the device of an op: the value with the op on every other device, and the reason.

A difference of two values is shown as the sum of its parts. Under `event`, the steps of the
critical path follow each other directly or after a wait. The time of a unit is its own seconds, the
addition of contention, and the overheads of its segment. Under `max-load`, the value is the load of
the busiest device or channel.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.execution_models import Event, MaxLoad
from placewright.core.op_patterns import ops_named
from placewright.core.placement import Placement
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.core.quantities import format_bytes, value_text
from placewright.errors import GraphError
from placewright.simulation.model import Simulator
from placewright.simulation.timeline import Timeline

_MOST_DETAILED = 3  # devices whose difference is shown part by part
_SAME = 1e-9  # relative difference of equal values, from rounding
_LEAST_SHOWN = 1e-4  # relative difference
OCCUPANTS = ("", "the sender", "the receiver", "both")  # by the bits of `Cluster.occupied`
PARTS = ("compute", "contention", "dispatch", "cuts", "transfers", "waiting")


@dataclass(frozen=True)
class Elsewhere:
    """The plan with the op on a given device."""

    device: str  # its name
    seconds: float  # of the op's units there, in the problem's time unit; inf if it cannot run
    # of the plan with the op and all units that must share its device there; inf if that is
    # infeasible
    value: float
    crossing: float  # seconds of the transfers of these units, each tensor once per device
    decides: str  # the constraint that forbids the device, or the largest part of the difference
    # parts of the difference from the plan's value, see `parts_of_value`. Empty for the plan
    # itself, if infeasible, and if the execution model has no parts
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class OpExplanation:
    """The reasons for the device of an op."""

    # op, kind, device: name and kind of the op, and its device in the plan
    op: str
    kind: str
    device: str
    moves_with: tuple[str, ...]  # other units that must share its device
    pinned: bool  # a pin keeps it there
    value: float  # of the plan
    waits_for: str  # clause about the wait before it began; empty without a timeline
    is_critical: bool  # it lies on the critical path
    here: Elsewhere  # the plan itself, in the form of the other devices
    elsewhere: tuple[Elsewhere, ...]  # the other devices, best first
    unit: str  # of the values
    time_unit: str  # of the parts of a value, which are times
    # value of what the search found, if the plan holds another placement; else inf
    searched: float = math.inf

    def lines(self) -> list[str]:
        """Lines of text; the verdict first."""
        lines = [f"{self.op} ({self.kind}) is on '{self.device}': {self._verdict()}"]
        if self.moves_with:
            others = ", ".join(self.moves_with[:3])
            more = f" and {len(self.moves_with) - 3} more" if len(self.moves_with) > 3 else ""
            lines.append(f"it must share a device with {others}{more}")
        if self.waits_for:
            where = "on" if self.is_critical else "not on"
            lines.append(f"it is {where} the critical path; before it began it {self.waits_for}")
        lines += [self._difference(row) for row in self.elsewhere[:_MOST_DETAILED] if row.parts]
        return lines

    def _difference(self, row: Elsewhere) -> str:
        """The difference of another device, part by part, the largest first."""
        parts = sorted(row.parts.items(), key=lambda part: -abs(part[1]))
        texts = [f"{name} {_signed(seconds, self.time_unit)}" for name, seconds in parts if seconds]
        whole = _signed(row.value - self.value, self.unit)
        return f"on '{row.device}' the plan takes {whole}: {', '.join(texts) or 'no part changes'}"

    def rows(self) -> list[list[str]]:
        """A row per device: own time, transfers, value, reason."""
        return [
            [
                row.device,
                value_text(row.seconds, self.time_unit),
                value_text(row.crossing, self.time_unit),
                value_text(row.value, self.unit),
                row.decides,
            ]
            for row in (self.here, *self.elsewhere)
        ]

    def data(self) -> dict[str, Any]:
        """The explanation as a JSON document."""
        return {
            "op": self.op,
            "kind": self.kind,
            "device": self.device,
            "unit": self.unit,
            "time_unit": self.time_unit,
            "value": self.value,
            "pinned": self.pinned,
            "moves_with": list(self.moves_with),
            "waits_for": self.waits_for,
            "on_critical_path": self.is_critical,
            "devices": [vars(row) for row in (self.here, *self.elsewhere)],
        }

    def _verdict(self) -> str:
        if self.pinned:
            return "a pin keeps it there"
        if not self.elsewhere:
            return "there is no other device"
        best = self.elsewhere[0]
        if math.isinf(best.value):
            return "no other device can take it"
        text = value_text(best.value, self.unit)
        share = best.value / self.value - 1.0 if self.value > 0 else 0.0
        change = f"{share:+.2%}" if abs(share) >= _LEAST_SHOWN else "a change of less than 0.01%"
        change = change if self.value > 0 else "instead of nothing"
        if best.value < self.value * (1.0 - _SAME):
            is_found = self.searched <= best.value * (1.0 + _SAME)
            found = "the search found a placement as good, which argument `searched` takes"
            advice = found if is_found else "search longer"
            return f"'{best.device}' would be better ({text}, {change}); {advice}"
        if best.value <= self.value * (1.0 + _SAME):
            return f"'{best.device}' would be as good"
        return f"the next best, '{best.device}', gives {text} ({change})"


def explain(
    plan: Plan,
    op: str,
    simulator: Simulator | None = None,
    *,
    without: Collection[int] = (),
) -> OpExplanation:
    """Simulate the plan with an op, or with all ops of a module, on every other device.

    Args:
        op: name of an op of the model, or path of a module that the plan has on one device.
        simulator: of the plan's problem, if the caller has one.
        without: indices of devices that are no choice, and left out unless the op is there.

    Raises:
        GraphError: there is no such op or module, and the message lists near names; or the plan
            divides the module.
    """
    problem = plan.problem
    simulator = simulator or Simulator(problem)
    units = _units_of(plan, op)
    classes = np.unique(problem.colocation.group_of[units])
    members = np.concatenate([problem.colocation.members.row(at) for at in classes.tolist()])
    here = int(plan.placement.device_of[units[0]])
    is_time = problem.value_unit == problem.time_unit
    now = parts_of_value(problem, simulator, plan.placement) if is_time else None
    rows = [
        _on_device(problem, simulator, plan, (units, members), device, now)
        for device in range(problem.n_devices)
    ]
    others = sorted(
        (row for at, row in enumerate(rows) if at != here and at not in without),
        key=lambda row: row.value,
    )
    waits_for, is_critical = _waiting(plan, simulator, int(units[0]))
    graph = problem.unit_graph
    kind = graph.op_kinds[units[0]] if len(units) == 1 else f"module, {len(units)} units"
    return OpExplanation(
        op=op,
        kind=kind,
        device=problem.cluster.device_names[here],
        moves_with=tuple(graph.op_names[at] for at in np.setdiff1d(members, units).tolist()),
        pinned=bool((problem.pinned_device[members] >= 0).any()),
        value=simulator.value(plan.placement),
        waits_for=waits_for,
        is_critical=is_critical,
        here=rows[here],
        elsewhere=tuple(others),
        unit=problem.value_unit,
        time_unit=problem.time_unit,
        searched=math.inf if plan.searched is None else plan.searched.value,
    )


def _units_of(plan: Plan, name: str) -> IntArray:
    """Units of an op or of a module on one device, in topological order."""
    problem = plan.problem
    ops = ops_named(problem.graph, name)
    chosen = np.unique(problem.units.group_of[ops])
    devices = np.unique(plan.placement.device_of[chosen]).tolist()
    if len(devices) > 1:
        names = ", ".join(f"'{problem.cluster.device_names[at]}'" for at in devices)
        shown = ", ".join(f"'{problem.graph.op_names[op]}'" for op in ops[:3])
        raise GraphError(
            f"module '{name}' has ops on {names}; name one of its {len(ops)} ops, such as {shown}"
        )
    order = problem.unit_graph.topological_order
    return order[np.isin(order, chosen)]


def _on_device(
    problem: Problem,
    simulator: Simulator,
    plan: Plan,
    what: tuple[IntArray, IntArray],
    device: int,
    now: Mapping[str, float] | None,
) -> Elsewhere:
    units, members = what
    before = plan.placement.device_of
    device_of = before.copy()
    device_of[members] = device
    placement = Placement.of(device_of, plan.placement.order)
    value = simulator.value(placement)
    name = problem.cluster.device_names[device]
    own = float(problem.costs.seconds[units, device].sum())
    crossing = _transfers(problem, device_of, members)
    seconds = sum(crossing.values())
    if device == int(before[units[0]]):
        return Elsewhere(name, own, value, seconds, "here now")
    if math.isinf(value):
        violation = simulator.violation(placement)
        return Elsewhere(
            name, own, value, seconds, violation.message if violation else "infeasible"
        )
    if problem.value_unit != problem.time_unit:  # times are no part of joules or of a price
        change = value - plan.value
        is_same = abs(change) <= _SAME * max(value, plan.value)
        text = "as much" if is_same else _more(change, problem.value_unit)
        return Elsewhere(name, own, value, seconds, f"the plan takes {text}")
    then = None if now is None else parts_of_value(problem, simulator, placement)
    parts = _changes(now, then) if now and then else {}
    decides = _what_decides(problem, (before, device_of), members, crossing, parts)
    return Elsewhere(name, own, value, seconds, decides, parts)


def _changes(now: Mapping[str, float], then: Mapping[str, float]) -> dict[str, float]:
    """Differences of parts; one that is only the error of adding floats is 0."""
    least = _SAME * max(sum(now.values()), sum(then.values()))
    changes = {part: then[part] - now[part] for part in now}
    return {part: 0.0 if abs(change) <= least else change for part, change in changes.items()}


def _what_decides(
    problem: Problem,
    devices: tuple[IntArray, IntArray],
    members: IntArray,
    crossing: dict[tuple[int, int, int], float],
    parts: Mapping[str, float],
) -> str:
    """Name the largest part of the difference, with the cause if it is compute or transfers.

    A cause goes in the direction of its part: more compute is no transfer, and a saved transfer
    takes no time. Without parts, the largest of these: the change of own time, a new transfer, a
    saved transfer.
    """
    largest = max(parts, key=lambda part: abs(parts[part]), default="")
    change, time = parts.get(largest, 0.0), problem.time_unit
    before, after = devices
    costs, rows = problem.costs.seconds, np.asarray(members)
    own = float(costs[rows, after[rows]].sum() - costs[rows, before[rows]].sum())
    old = _transfers(problem, before, members)
    new = {way: seconds for way, seconds in crossing.items() if way not in old}
    gone = {way: seconds for way, seconds in old.items() if way not in crossing}
    causes = []
    if not change or (largest == "compute" and own * change > 0):
        causes.append((abs(own), f"its own time: {_more(own, time)}"))
    for word, ways, sign in (("new", new, 1), ("saved", gone, -1)):
        if ways and (not change or (largest == "transfers" and sign * change > 0)):
            way = max(ways, key=lambda at: ways[at])
            causes.append((ways[way], _transfer_text(problem, way, ways[way], word)))
    return max(causes)[1] if causes else f"{largest}: {_more(change, time)}"


def _signed(seconds: float, unit: str) -> str:
    return f"{'-' if seconds < 0 else '+'}{value_text(abs(seconds), unit)}"


def _more(seconds: float, unit: str) -> str:
    return f"{value_text(abs(seconds), unit)} {'more' if seconds > 0 else 'less'} there"


def _transfer_text(problem: Problem, way: tuple[int, int, int], seconds: float, word: str) -> str:
    tensor, source, target = way
    graph, ends = problem.unit_graph, list(problem.cluster.endpoint_index)
    producer = int(graph.tensor_producers[tensor])
    what = "a graph input" if producer < 0 else f"'{graph.op_names[producer]}'"
    size = format_bytes(float(graph.tensor_bytes[tensor]))
    occupied = OCCUPANTS[int(problem.cluster.occupied[source, target])]
    return (
        f"{word} transfer of {what} from {ends[source]} to {ends[target]} "
        f"({size}, {value_text(seconds, problem.time_unit)}"
        f"{f', occupies {occupied}' if occupied else ''})"
    )


def _transfers(
    problem: Problem, device_of: IntArray, members: IntArray
) -> dict[tuple[int, int, int], float]:
    """(tensor, from, to) -> seconds of the transfers of the tensors that units read or make."""
    graph, host = problem.unit_graph, problem.cluster.host_endpoint
    rows = [rows.row(unit) for unit in members for rows in (graph.op_inputs, graph.op_outputs)]
    tensors = np.unique(np.concatenate(rows))
    seconds: dict[tuple[int, int, int], float] = {}
    for tensor in tensors.tolist():
        producer = int(graph.tensor_producers[tensor])
        source = host if producer < 0 else int(device_of[producer])
        targets = device_of[graph.tensor_consumers.row(tensor)].tolist()
        targets += [host] if graph.tensor_is_output[tensor] else []
        for target in targets:
            if target != source:
                seconds[tensor, source, target] = _seconds(problem, tensor, source, target)
    return seconds


def _seconds(problem: Problem, tensor: int, source: int, target: int) -> float:
    """Seconds of all hops of a tensor; inf without a link."""
    cluster, host = problem.cluster, problem.cluster.host_endpoint
    is_linked = cluster.link_channel[source, target] >= 0
    ways = [(source, target)] if is_linked else [(source, host), (host, target)]
    own = problem.unit_transfer_seconds
    if own is not None:
        return float(own[tensor]) * len(ways)
    size = float(problem.unit_graph.tensor_bytes[tensor])
    return float(
        sum(cluster.link_latency[w] + size * cluster.link_seconds_per_byte[w] for w in ways)
    )


def _waiting(plan: Plan, simulator: Simulator, unit: int) -> tuple[str, bool]:
    """A clause about what the unit waited for, and whether it is on the critical path."""
    if not isinstance(plan.problem.execution_model, Event):
        return "", False
    timeline = simulator.timeline(plan.placement)
    text, what, index = timeline.last_before(unit)
    is_critical = any(
        step.index == unit and not step.is_transfer for step in timeline.critical_path
    )
    if index < 0:
        return "waited for nothing", is_critical
    kind, _, other = text.partition(" ")
    if kind == "input" and what == "transfer":
        hop = timeline.transfers[index]
        ends = list(plan.problem.cluster.endpoint_index)
        seconds = value_text(hop.end - hop.start, plan.problem.time_unit)
        way = f"{ends[hop.source]} to {ends[hop.destination]}"
        return f"waited for the transfer of {other} from {way} ({seconds})", is_critical
    words = {
        "input": "waited for its input from",
        "order": "stood in the order behind",
        "processor": "waited for its processor, which ran",
    }
    return f"{words.get(kind, 'waited for its device, which ran')} {other}", is_critical


def parts_of_value(
    problem: Problem, simulator: Simulator, placement: Placement
) -> dict[str, float] | None:
    """Name of each of `PARTS` -> seconds, which add up to the value.

    Args:
        placement: a feasible placement.

    Returns:
        None if the execution model has no such parts.
    """
    if isinstance(problem.execution_model, Event):
        return _of_path(problem, simulator.timeline(placement))
    if isinstance(problem.execution_model, MaxLoad) and not problem.execution_model.split_phases:
        return _of_load(problem, simulator, placement)
    return None


def _of_path(problem: Problem, timeline: Timeline) -> dict[str, float]:
    parts = dict.fromkeys(PARTS, 0.0)
    factors = _factors(problem, timeline)
    begins = {int(timeline.segment_of[unit]): unit for unit in reversed(timeline.order.tolist())}
    until = 0.0
    for step in timeline.critical_path:
        parts["waiting"] += step.start - until
        until = step.end
        if step.is_transfer:
            parts["transfers"] += step.end - step.start
            continue
        device = int(timeline.device_of[step.index])
        own = float(problem.costs.seconds[step.index, device])
        slower = own * (factors[device] - 1.0)
        is_first = begins[int(timeline.segment_of[step.index])] == step.index
        dispatch = problem.cluster.devices[device].dispatch_seconds if is_first else 0.0
        parts["compute"] += own
        parts["contention"] += slower
        parts["dispatch"] += dispatch
        parts["cuts"] += step.end - step.start - own - slower - dispatch
    parts["waiting"] += timeline.value - until
    return parts


def _factors(problem: Problem, timeline: Timeline) -> list[float]:
    """Contention factor of each device."""
    cluster = problem.cluster
    used = np.unique(timeline.device_of).tolist()
    domains = [device.memory_domain for device in cluster.devices]
    factors = []
    for domain in domains:
        shared = cluster.contention.get(domain or "", (1.0,))
        sharing = sum(domains[device] == domain for device in used)
        factors.append(shared[min(max(sharing, 1), len(shared)) - 1])
    return factors


def _of_load(problem: Problem, simulator: Simulator, placement: Placement) -> dict[str, float]:
    """Parts of the load of the busiest device, channel or shared processor."""
    loads = simulator.loads(placement.device_of).sum(axis=0)
    busiest = int(np.argmax(loads))
    parts = dict.fromkeys(PARTS, 0.0)
    cluster = problem.cluster
    users: list[tuple[int, ...]] = [(device,) for device in range(problem.n_devices)]
    users.extend(() for _ in range(cluster.n_channels))
    users.extend(cluster.shared_processors.values())
    if users[busiest]:
        units = np.flatnonzero(np.isin(placement.device_of, users[busiest]))
        device_of = placement.device_of[units]
        own = float(
            (problem.costs.seconds[units, device_of] / cluster.concurrency[device_of]).sum()
        )
        # If transfers overlap with units, the load is the longer of both.
        parts["compute"] = min(own, float(loads[busiest]))
    parts["transfers"] = float(loads[busiest]) - parts["compute"]
    return parts
