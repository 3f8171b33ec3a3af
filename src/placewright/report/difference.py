"""The difference between two plans: the units that moved, and what each move gains."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.charges import CHARGED
from placewright.core.cluster import Cluster, Link
from placewright.core.placement import Placement
from placewright.core.plan import Plan, search_text
from placewright.core.problem import Problem
from placewright.core.quantities import counted, format_bytes, format_duration, value_text
from placewright.report.page_times import computing_seconds
from placewright.simulation.model import Simulator

_SAME = 1e-9  # relative difference of equal values, from rounding
_LEAST_SHOWN = 1e-4  # relative difference
_MOST_GROUPS = 40  # of moved units that are tried alone, those with most work first
_MOST_EVENTS = 4_000_000  # units times groups: about a second of simulation
DEVICE_COLUMNS = ("device", "units", "busy", "memory", "units then", "busy then", "memory then")
GROUP_COLUMNS = ("units", "from", "to", "moved alone", "all but it")


@dataclass(frozen=True)
class Moved:
    """Neighbours in the graph that moved from one device to another."""

    names: tuple[str, ...]  # of the units
    # source, target: device names
    source: str
    target: str
    units: tuple[int, ...]  # numbers in the first plan's problem
    # value of the first plan with only these moved; None if it was not tried
    alone: float | None = None
    # value of the other plan with these moved back; None if it was not tried
    without: float | None = None


@dataclass(frozen=True)
class Difference:
    """Two plans side by side."""

    # first, other: the plans
    first: Plan
    other: Plan
    n_common: int  # number of ops in both plans; n_moved of them are on different devices
    n_moved: int
    # only_first, only_other: number of ops in only one plan
    only_first: int
    only_other: int
    moves: tuple[tuple[str, str, int], ...]  # (from, to, number of ops), the most frequent first
    # groups of moved units, those with most work first; empty if the units differ
    groups: tuple[Moved, ...]
    same_problem: bool  # units, costs and devices are equal, so that values can be compared
    # value of the other plan's placement, with the numbers of the first plan's links, devices and
    # objective if these differ; pins and limits of the first plan do not bind it
    other_value: float
    noise: str = ""  # clause about numbers of links and devices that differ, or ""
    other_objective: str = ""  # of the other plan, if that is another, or ""

    def lines(self) -> list[str]:
        """Lines of text; the verdict first."""
        first, other = (plan.problem for plan in (self.first, self.other))
        unit = (first if self.same_problem else other).value_unit
        value = value_text(self.first.value, first.value_unit)
        lines = [f"{self._verdict()}: {value} and {value_text(self.other_value, unit)}"]
        if not self.same_problem:
            lines.append("the problems differ (model, costs or devices): values do not compare")
        if self.other_objective:
            lines.append(
                f"the other minimises {self.other_objective}: both values are {first.objective}"
            )
        if self.noise:
            lines.append(f"warning: {self.noise}; both values are by the first plan's numbers")
        searches = [search_text(plan.placer) for plan in (self.first, self.other)]
        both = f"found by {searches[0]}"
        lines.append(both if len(set(searches)) == 1 else f"{both}; the other by {searches[1]}")
        lines.append(f"{self.n_moved} of {self.n_common} ops are on another device")
        if self.only_first or self.only_other:
            mine = counted(self.only_first, "op")
            lines.append(f"{mine} only in the first, {self.only_other} in the other")
        one, two = (crossing(plan) for plan in (self.first, self.other))
        lines.append(
            f"transfers between devices: {one[0]} with {format_bytes(one[1])}, then {two[0]} with "
            f"{format_bytes(two[1])}"
        )
        return lines

    def _verdict(self) -> str:
        if self.n_moved == 0 and not (self.only_first or self.only_other):
            close = math.isclose(self.first.value, self.other_value, rel_tol=_SAME)
            if close or not self.same_problem:
                return "the placements are the same"
            return "the devices are the same, and the orders differ"
        if not self.same_problem or self.first.value <= 0:
            return "two plans"
        if math.isinf(self.other_value):
            return "the other breaks a constraint of the first"
        change, is_time = self.other_value / self.first.value - 1.0, self._is_time
        if abs(change) <= _SAME:
            return f"the placements differ and {'are equally fast' if is_time else 'take as much'}"
        amount = f"{abs(change):.2%}" if abs(change) >= _LEAST_SHOWN else "less than 0.01%"
        if is_time:
            return f"the other is {amount} {'slower' if change > 0 else 'faster'}"
        return f"the other takes {amount} {'more' if change > 0 else 'less'}"

    @property
    def _is_time(self) -> bool:
        return self.first.problem.objective not in CHARGED

    def device_rows(self) -> list[list[str]]:
        """A row per device: units, busy time and memory, in the first plan and in the other."""
        plans = (self.first, self.other)
        names = dict.fromkeys(name for plan in plans for name in _names(plan))
        busy = [computing_seconds(plan.problem, plan.placement) for plan in plans]
        return [
            [
                name,
                *(
                    text
                    for plan, seconds in zip(plans, busy, strict=True)
                    for text in _device_cells(plan, name, seconds)
                ),
            ]
            for name in names
        ]

    def group_rows(self) -> list[list[str]]:
        """A row per group of moved units, with `GROUP_COLUMNS`."""
        unit = self.first.problem.value_unit
        return [
            [
                group.names[0] + (f" and {len(group.names) - 1} more" if group.names[1:] else ""),
                group.source,
                group.target,
                value_text(group.alone, unit),
                value_text(group.without, unit),
            ]
            for group in self.groups
        ]

    def data(self) -> dict[str, Any]:
        """The difference as a JSON document."""
        return {
            "unit": self.first.problem.value_unit,
            "values": [self.first.value, self.other_value],
            "same_problem": self.same_problem,
            "noise": self.noise,
            "other_objective": self.other_objective,
            "common_ops": self.n_common,
            "moved_ops": self.n_moved,
            "only_first": self.only_first,
            "only_other": self.only_other,
            "moves": [
                {"from": source, "to": target, "ops": count} for source, target, count in self.moves
            ],
            "groups": [
                {
                    "units": list(group.names),
                    "from": group.source,
                    "to": group.target,
                    "alone": group.alone,
                    "all_but_it": group.without,
                }
                for group in self.groups
            ],
        }


def difference_of(first: Plan, other: Plan) -> Difference:
    """Compare two plans op by op."""
    one, two = _device_of_op(first), _device_of_op(other)
    common = [name for name in one if name in two]
    moves = Counter((one[name], two[name]) for name in common if one[name] != two[name])
    same_units = has_same_units(first.problem, other.problem)
    same = same_units and _has_same_costs(first.problem, other.problem)
    noise = _noise(first.problem.cluster, other.problem.cluster) if same else ""
    objective = other.problem.objective
    other_objective = objective if same and objective != first.problem.objective else ""
    other_value = other.value
    if noise or other_objective:  # the first plan's pins and limits do not bind the other
        free = replace(first.problem, pins={}, limits={})
        other_value = Simulator(free).value(other.placement)
    return Difference(
        first,
        other,
        n_common=len(common),
        n_moved=sum(moves.values()),
        only_first=len(one) - len(common),
        only_other=len(two) - len(common),
        moves=tuple((a, b, count) for (a, b), count in moves.most_common()),
        groups=_groups(first, other, tries=same) if same_units else (),
        same_problem=same,
        other_value=other_value,
        noise=noise,
        other_objective=other_objective,
    )


def has_same_units(one: Problem, other: Problem) -> bool:
    """True if both problems have the same units and devices."""
    return (
        one.graph.op_names == other.graph.op_names
        and np.array_equal(one.units.group_of, other.units.group_of)
        and one.cluster.device_names == other.cluster.device_names
    )


def _has_same_costs(one: Problem, other: Problem) -> bool:
    return (
        np.array_equal(one.costs.seconds, other.costs.seconds)
        and _has_same_tensors(one, other)
        and one.time_unit == other.time_unit
        and (one.cluster.host, dict(one.cluster.pools))
        == (other.cluster.host, dict(other.cluster.pools))
        and one.execution_model == other.execution_model
        and one.cluster.without_overheads.devices == other.cluster.without_overheads.devices
        and list(map(_ways, one.cluster.links)) == list(map(_ways, other.cluster.links))
    )


def _has_same_tensors(one: Problem, other: Problem) -> bool:
    """True if both problems move the same bytes between the same ops, and keep the same."""
    a, b = one.unit_graph, other.unit_graph
    columns = [
        (a.tensor_bytes, b.tensor_bytes),
        (a.tensor_producers, b.tensor_producers),
        (a.tensor_consumers.indptr, b.tensor_consumers.indptr),
        (a.tensor_consumers.indices, b.tensor_consumers.indices),
        (a.tensor_is_output, b.tensor_is_output),
        (a.weight_bytes, b.weight_bytes),
        (a.op_weights.indices, b.op_weights.indices),
        (one.unit_transfer_seconds, other.unit_transfer_seconds),
        (one.op_joules, other.op_joules),
    ]
    return all(
        mine is None and theirs is None
        if mine is None or theirs is None
        else np.array_equal(mine, theirs)
        for mine, theirs in columns
    )


def _ways(link: Link) -> tuple[object, ...]:
    """A link without its speed; whether bytes are free is not noise."""
    free = link.bandwidth == math.inf
    return link.source, link.destination, link.channel, link.queues, free


def _noise(one: Cluster, other: Cluster) -> str:
    """Clause about numbers that differ between equal devices and links."""
    what = []
    if one.links != other.links:
        pairs = zip(one.links, other.links, strict=True)
        latency = max(abs(a.latency_seconds - b.latency_seconds) for a, b in pairs)
        what.append(f"speeds of links differ (latencies by up to {format_duration(latency)})")
    if one.devices != other.devices or one.contention != other.contention:
        what.append("calibrations of devices differ")
    return " and ".join(what)


def crossing(plan: Plan) -> tuple[int, float]:
    """Number and bytes of the tensors that go to another device, counted once per device."""
    graph, device_of = plan.problem.unit_graph, plan.placement.device_of
    tensors = graph.tensor_consumers.row_of_each()
    producers = graph.tensor_producers[tensors]
    targets = device_of[graph.tensor_consumers.indices]
    crosses = (producers >= 0) & (device_of[np.maximum(producers, 0)] != targets)
    n = max(1, plan.problem.n_devices)
    keys = np.unique(tensors[crosses] * n + targets[crosses])
    return len(keys), float(graph.tensor_bytes[keys // n].sum())


def _groups(first: Plan, other: Plan, *, tries: bool) -> tuple[Moved, ...]:
    problem = first.problem
    before, after = first.placement.device_of, other.placement.device_of
    moved = np.flatnonzero(before != after)
    parts = _connected(problem, moved, before, after)
    seconds = np.where(np.isfinite(problem.costs.seconds), problem.costs.seconds, 0.0).max(axis=1)
    parts.sort(key=lambda units: (-float(seconds[units].sum()), units[0]))
    n_tried = min(_MOST_GROUPS, _MOST_EVENTS // max(1, problem.n_units)) if tries else 0
    simulator = Simulator(problem) if n_tried else None
    names = problem.cluster.device_names
    groups = []
    for number, units in enumerate(parts):
        alone = without = None
        if simulator is not None and number < n_tried:
            alone = _value_with(simulator, first, other, units)
            without = _value_with(simulator, other, first, units)
        groups.append(
            Moved(
                tuple(problem.unit_graph.op_names[unit] for unit in units),
                names[int(before[units[0]])],
                names[int(after[units[0]])],
                tuple(units),
                alone,
                without,
            )
        )
    return tuple(groups)


def _value_with(simulator: Simulator, base: Plan, source: Plan, units: list[int]) -> float:
    """Value of the base placement with some units on the devices of another placement."""
    device_of = base.placement.device_of.copy()
    device_of[units] = source.placement.device_of[units]
    return simulator.value(Placement.of(device_of, base.placement.order))


def _connected(
    problem: Problem, moved: IntArray, before: IntArray, after: IntArray
) -> list[list[int]]:
    """Group moved units that are neighbours and move between the same two devices, ascending."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    successors = problem.unit_graph.successors
    one, other = successors.row_of_each(), successors.indices
    together = (before[one] == before[other]) & (after[one] == after[other])
    together &= before[one] != after[one]
    edges = (one[together], other[together])
    n_units = problem.n_units
    matrix = coo_array((np.ones(len(edges[0])), edges), shape=(n_units, n_units))
    _, part_of = connected_components(matrix, directed=False)
    parts: dict[int, list[int]] = {}
    for unit in moved.tolist():
        parts.setdefault(int(part_of[unit]), []).append(unit)
    return list(parts.values())


def _device_of_op(plan: Plan) -> dict[str, str]:
    devices = plan.problem.device_of_ops(plan.placement.device_of).tolist()
    names = plan.problem.cluster.device_names
    return {
        op: names[device] for op, device in zip(plan.problem.graph.op_names, devices, strict=True)
    }


def _names(plan: Plan) -> tuple[str, ...]:
    return plan.problem.cluster.device_names


def _device_cells(plan: Plan, name: str, busy: Sequence[float]) -> list[str]:
    problem = plan.problem
    if name not in problem.cluster.device_index:
        return ["-", "-", "-"]
    device = problem.cluster.device_index[name]
    return [
        str(np.count_nonzero(plan.placement.device_of == device)),
        value_text(busy[device], problem.time_unit),
        format_bytes(plan.memory.get(name, 0.0)),
    ]
