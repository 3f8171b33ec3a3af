"""List schedulers and repair in plain Python: the side that the kernels are held against.

The schedule grows unit by unit: when could this unit start there, and is it legal? These are the
methods as they were before they were compiled; they read the problem and nothing that a kernel
has made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.simulation.layout import DIRECT, LOCAL, VIA_HOST, ProblemArrays, problem_arrays

Proposal = tuple[IntArray, IntArray | None]


class ResidentMemory:
    """Weight bytes that each device keeps while classes are placed one by one.

    Args:
        problem: what is placed.
        limits: bytes that each device may keep, then those of each pool, shape (n_devices +
            n_pools,).
    """

    def __init__(self, problem: Problem, limits: FloatArray | None = None) -> None:
        graph, classes, cluster = problem.unit_graph, problem.colocation, problem.cluster
        self.free = np.array(cluster.memory_limits if limits is None else limits)
        pools = [len(cluster.devices) + at for at in range(len(cluster.shared_pools))]
        at_pool = dict(zip(cluster.shared_pools, pools, strict=True))
        # Places of what a device takes from, its own limit and those of its pools, with shares.
        self._takes_from, self._shares = [], []
        for at, device in enumerate(cluster.devices):
            pools_of = {n: part for n, part in device.pool_shares.items() if n in at_pool}
            self._takes_from.append([at, *(at_pool[name] for name in pools_of)])
            self._shares.append(np.array([1.0, *pools_of.values()]))
        self._sizes = graph.weight_bytes
        self._held = np.zeros((len(self._sizes), problem.n_devices), dtype=np.int64)
        self._weights: list[IntArray] = []
        for group in range(classes.n_groups):
            units = classes.members.row(group).tolist()
            rows = [graph.op_weights.row(unit) for unit in units]
            self._weights.append(np.unique(np.concatenate(rows)))

    def bytes_of(self, group: int) -> float:
        """Bytes of the class' weights."""
        return float(self._sizes[self._weights[group]].sum())

    def needed(self, group: int, device: int) -> float:
        """Bytes that the class would add to the device."""
        weights = self._weights[group]
        return float(self._sizes[weights[self._held[weights, device] == 0]].sum())

    def fits(self, group: int, device: int) -> bool:
        """True when the class' weights fit beside those that the device keeps."""
        needed = self.needed(group, device) * self._shares[device]
        return bool((needed <= self.free[self._takes_from[device]]).all())

    def add(self, group: int, device: int) -> None:
        """Keep the class' weights on the device."""
        needed = self.needed(group, device) * self._shares[device]
        self.free[self._takes_from[device]] -= needed
        self._held[self._weights[group], device] += 1

    def add_first(self, group: int, turns: Sequence[int], allowed: BoolArray) -> int:
        """Keep the class on the first device that has room for it.

        Args:
            group: the class.
            turns: every device, in the order in which they are asked.
            allowed: devices that may run it, shape (n_devices,); one of them takes it all the same
                where none has room.

        Returns:
            The device.
        """
        usable = [device for device in turns if allowed[device]]
        device = next((device for device in usable if self.fits(group, device)), usable[0])
        self.add(group, device)
        return device

    def remove(self, group: int, device: int) -> None:
        """Take the class off the device."""
        self._held[self._weights[group], device] -= 1
        self.free[self._takes_from[device]] += self.needed(group, device)


def classes_in_order(problem: Problem) -> IntArray:
    """Colocation classes by their first unit in topological order, (colocation.n_groups,)."""
    groups = problem.colocation.group_of[problem.unit_graph.topological_order]
    _, first = np.unique(groups, return_index=True)
    return np.asarray(groups[np.sort(first)], dtype=np.int64)


def repaired(problem: Problem, device_of: IntArray, limits: FloatArray | None = None) -> IntArray:
    """The nearest legal placement that a greedy pass finds.

    Each colocation class goes to the allowed device where most of its seconds were, then classes
    leave devices whose resident bytes exceed `limits`: the one with most bytes per second first, to
    the fastest device where it fits.

    Args:
        problem: what is placed.
        device_of: device of each unit, shape (n_units,); -1 where a method has no wish.
        limits: resident bytes of each device, shape (n_devices,); default the devices' memory.

    Returns:
        Shape (n_units,). Pins, support and colocation hold; memory where the pass succeeded.
    """
    classes, allowed = problem.colocation, problem.allowed_by_class
    seconds = np.zeros((classes.n_groups, problem.n_devices))
    np.add.at(seconds, classes.group_of, np.where(problem.allowed, problem.costs.seconds, 0.0))
    wish = np.zeros((classes.n_groups, problem.n_devices))
    wanted = np.flatnonzero(device_of >= 0)
    weight = np.where(problem.allowed, problem.costs.seconds, 0.0).max(axis=1) + 1e-300
    np.add.at(wish, (classes.group_of[wanted], device_of[wanted]), weight[wanted])
    score = np.where(allowed, wish - seconds / (1.0 + seconds.sum()) * 1e-300, -np.inf)
    device_of_class = score.argmax(axis=1)
    memory = ResidentMemory(problem, limits)
    for group, device in enumerate(device_of_class.tolist()):
        memory.add(group, device)
    for device in range(problem.n_devices):
        _unload(device, device_of_class, memory, np.where(allowed, seconds, np.inf))
    return np.asarray(device_of_class[classes.group_of], dtype=np.int64)


def _unload(
    device: int, device_of_class: IntArray, memory: ResidentMemory, seconds: FloatArray
) -> None:
    """Move classes off one device until what it keeps fits."""
    if memory.free[device] >= 0:
        return
    members = np.flatnonzero(device_of_class == device).tolist()
    density = {g: memory.bytes_of(g) / (1e-12 + seconds[g, device]) for g in members}
    for group in sorted(members, key=lambda g: (-density[g], g)):
        if memory.free[device] >= 0:
            return
        for target in np.argsort(seconds[group], kind="stable").tolist():
            usable = target != device and np.isfinite(seconds[group, target])
            if usable and memory.fits(group, target):
                memory.remove(group, device)
                memory.add(group, target)
                device_of_class[group] = target
                break


@dataclass
class _Stream:
    """Busy intervals of one stream in time order."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def earliest(self, ready: float, seconds: float, *, insertion: bool) -> float:
        """First start >= ready where the unit fits: in an idle gap, or after the last one."""
        if not insertion or not self.ends:
            return max(ready, max(self.ends, default=0.0))
        before = 0.0
        for start, end in zip(self.starts, self.ends, strict=True):
            begin = max(ready, before)
            if begin + seconds <= start:
                return begin
            before = max(before, end)
        return max(ready, before)

    def add(self, start: float, end: float) -> None:
        """Keep an interval."""
        at = len(self.starts)
        while at > 0 and (self.starts[at - 1], self.ends[at - 1]) > (start, end):
            at -= 1
        self.starts.insert(at, start)
        self.ends.insert(at, end)


class ListSchedule:
    """Units with start times, as list schedulers see them: links never wait for each other.

    Args:
        problem: what is placed.
        limits: resident bytes that each device may keep, shape (n_devices,).
    """

    def __init__(self, problem: Problem, limits: FloatArray | None = None) -> None:
        self.problem = problem
        self.memory = ResidentMemory(problem, limits)
        self.device_of = np.full(problem.n_units, -1, dtype=np.int64)
        self.start = np.zeros(problem.n_units)
        self.end = np.zeros(problem.n_units)
        self._arrays = problem_arrays(problem)
        self._group_of = problem.colocation.group_of
        self._allowed = problem.allowed_by_class
        self._device_of_class = np.full(problem.colocation.n_groups, -1, dtype=np.int64)
        devices = problem.cluster.devices
        self._streams = [[_Stream() for _ in range(d.streams)] for d in devices]
        processors = [set(d.processors or (d.name,)) for d in devices]
        # Devices with a common processor, each with itself: a unit of one keeps all of them busy.
        self.in_turn = [
            [at for at, others in enumerate(processors) if mine & others] for mine in processors
        ]

    def candidates(self, unit: int) -> list[int]:
        """Devices that may run the unit now: class, pins, support, resident memory.

        Where memory leaves none, the allowed device with most room (the simulator then tells).
        """
        group = int(self._group_of[unit])
        if self._device_of_class[group] >= 0:
            return [int(self._device_of_class[group])]
        allowed = np.flatnonzero(self._allowed[group]).tolist()
        fitting = [device for device in allowed if self.memory.fits(group, device)]
        return fitting or [max(allowed, key=lambda device: (self.memory.free[device], -device))]

    def seconds(self, unit: int, device: int) -> float:
        """Seconds of the unit on the device."""
        return float(self.problem.costs.seconds[unit, device])

    def arrival(self, unit: int, device: int) -> float:
        """When all inputs of the unit are on the device."""
        graph, latest = self.problem.unit_graph, 0.0
        for tensor in graph.op_inputs.row(unit).tolist():
            producer = int(graph.tensor_producers[tensor])
            source = self._arrays.host if producer < 0 else int(self.device_of[producer])
            made = 0.0 if producer < 0 else float(self.end[producer])
            latest = max(latest, made + self.transfer(tensor, source, device))
        return latest

    def transfer(self, tensor: int, source: int, target: int) -> float:
        """Seconds of a tensor from one endpoint to another; inf without a route."""
        route = self._arrays.route[source, target]
        if route == LOCAL:
            return 0.0
        if route == DIRECT:
            return self._hop(tensor, source, target)
        if route == VIA_HOST:
            host = self._arrays.host
            return self._hop(tensor, source, host) + self._hop(tensor, host, target)
        return float("inf")

    def earliest_start(self, unit: int, device: int, *, insertion: bool) -> float:
        """When the unit could start on the device's best stream."""
        ready, seconds = self.arrival(unit, device), self.seconds(unit, device)
        return min(
            stream.earliest(ready, seconds, insertion=insertion) for stream in self._streams[device]
        )

    def free_at(self, device: int) -> float:
        """When the device's first stream has nothing more to do."""
        return min(max(stream.ends, default=0.0) for stream in self._streams[device])

    def place(self, unit: int, device: int, *, insertion: bool) -> None:
        """Put the unit at its earliest start on the device."""
        group = int(self._group_of[unit])
        if self._device_of_class[group] < 0:
            self._device_of_class[group] = device
            self.memory.add(group, device)
        ready, seconds = self.arrival(unit, device), self.seconds(unit, device)
        starts = [s.earliest(ready, seconds, insertion=insertion) for s in self._streams[device]]
        best = int(np.argmin(starts))
        for other in self.in_turn[device]:
            self._streams[other][best].add(starts[best], starts[best] + seconds)
        self.device_of[unit] = device
        self.start[unit], self.end[unit] = starts[best], starts[best] + seconds

    def order(self) -> IntArray:
        """All units by start time, producers before consumers, shape (n_units,)."""
        position = np.empty(self.problem.n_units, dtype=np.int64)
        position[self.problem.unit_graph.topological_order] = np.arange(self.problem.n_units)
        return np.asarray(np.lexsort((position, self.start)), dtype=np.int64)

    def _hop(self, tensor: int, source: int, target: int) -> float:
        arrays = self._arrays
        if len(arrays.own_transfer):
            return float(arrays.own_transfer[tensor])
        per_byte = arrays.seconds_per_byte[source, target]
        return float(arrays.latency[source, target] + arrays.tensor_bytes[tensor] * per_byte)


class ReadyUnits:
    """Units all of whose producers are placed."""

    def __init__(self, problem: Problem) -> None:
        self._graph = problem.unit_graph
        self._missing = np.diff(self._graph.predecessors.indptr).copy()
        self.units: dict[int, None] = dict.fromkeys(np.flatnonzero(self._missing == 0).tolist())

    def done(self, unit: int) -> list[int]:
        """Take a placed unit out; returns the units that became ready."""
        del self.units[unit]
        fresh = []
        for successor in self._graph.successors.row(unit).tolist():
            self._missing[successor] -= 1
            if self._missing[successor] == 0:
                self.units[successor] = None
                fresh.append(successor)
        return fresh


def mean_costs(problem: Problem) -> FloatArray:
    """Mean seconds of each unit over the devices that may run it, shape (n_units,)."""
    allowed = problem.allowed
    total = np.where(allowed, problem.costs.seconds, 0.0).sum(axis=1)
    return np.asarray(total / np.maximum(1, allowed.sum(axis=1)))


def mean_transfer_seconds(problem: Problem) -> FloatArray:
    """Mean seconds of each unit tensor over all ordered pairs of distinct devices.

    Pairs without a route are left out; shape (unit_graph.n_tensors,).
    """
    arrays = problem_arrays(problem)
    n_devices = problem.n_devices
    total = np.zeros(problem.unit_graph.n_tensors)
    pairs = 0
    for source in range(n_devices):
        for target in range(n_devices):
            if source != target and arrays.route[source, target] > 0:
                total += _way_seconds(arrays, source, target)
                pairs += 1
    return total / max(1, pairs)


def _way_seconds(arrays: ProblemArrays, source: int, target: int) -> FloatArray:
    """Seconds of every tensor between two different endpoints that have a route."""
    if arrays.route[source, target] == VIA_HOST:
        first = _link_seconds(arrays, source, arrays.host)
        return first + _link_seconds(arrays, arrays.host, target)
    return _link_seconds(arrays, source, target)


def _link_seconds(arrays: ProblemArrays, source: int, target: int) -> FloatArray:
    if len(arrays.own_transfer):
        return arrays.own_transfer
    per_byte = arrays.seconds_per_byte[source, target]
    return np.asarray(arrays.latency[source, target] + arrays.tensor_bytes * per_byte)


def mean_upward_ranks(problem: Problem) -> FloatArray:
    """Upward ranks with mean costs and mean transfers, as HEFT uses them, shape (n_units,)."""
    graph = problem.unit_graph
    costs, transfers = mean_costs(problem), mean_transfer_seconds(problem)
    rank = np.zeros(problem.n_units)
    for unit in graph.topological_order[::-1].tolist():
        longest = 0.0
        for tensor in graph.op_outputs.row(unit).tolist():
            for consumer in graph.tensor_consumers.row(tensor).tolist():
                longest = max(longest, float(transfers[tensor] + rank[consumer]))
        rank[unit] = costs[unit] + longest
    return rank


def by_rank(problem: Problem, rank: FloatArray) -> IntArray:
    """Units by decreasing rank; equal ones in topological order."""
    position = np.empty(problem.n_units, dtype=np.int64)
    position[problem.unit_graph.topological_order] = np.arange(problem.n_units)
    # Sums in another order differ in the last digit; that must not decide between equal ranks.
    steps = np.round(rank / max(float(rank.max()), 1e-300) * 1e12)
    return np.asarray(np.lexsort((position, -steps)), dtype=np.int64)


def heft(problem: Problem, limits: FloatArray) -> Proposal:
    priority = by_rank(problem, mean_upward_ranks(problem))
    schedule = ListSchedule(problem, limits)
    for unit in priority.tolist():
        finish = {
            device: schedule.earliest_start(unit, device, insertion=True)
            + schedule.seconds(unit, device)
            for device in schedule.candidates(unit)
        }
        schedule.place(unit, min(finish, key=lambda d: (finish[d], d)), insertion=True)
    return schedule.device_of, schedule.order()


def optimistic_costs(problem: Problem) -> FloatArray:
    """OCT: seconds from a unit's end to the end of the program, each successor at its best device.

    Returns:
        Shape (n_units, n_devices).
    """
    graph, n_devices = problem.unit_graph, problem.n_devices
    transfers = mean_transfer_seconds(problem)
    seconds = np.where(problem.allowed, problem.costs.seconds, np.inf)
    elsewhere = 1.0 - np.eye(n_devices)  # (here, there)
    table = np.zeros((problem.n_units, n_devices))
    for unit in graph.topological_order[::-1].tolist():
        for tensor in graph.op_outputs.row(unit).tolist():
            for successor in graph.tensor_consumers.row(tensor).tolist():
                onward = (table[successor] + seconds[successor])[None, :]
                best = (onward + transfers[tensor] * elsewhere).min(axis=1)
                np.maximum(table[unit], best, out=table[unit])
    return table


def peft(problem: Problem, limits: FloatArray) -> Proposal:
    table, allowed = optimistic_costs(problem), problem.allowed
    rank = np.where(allowed, table, 0.0).sum(axis=1) / np.maximum(1, allowed.sum(axis=1))
    schedule, ready = ListSchedule(problem, limits), ReadyUnits(problem)
    while ready.units:
        unit = min(ready.units, key=lambda u: (-rank[u], u))
        score = {
            device: schedule.earliest_start(unit, device, insertion=True)
            + schedule.seconds(unit, device)
            + float(table[unit, device])
            for device in schedule.candidates(unit)
        }
        schedule.place(unit, min(score, key=lambda d: (score[d], d)), insertion=True)
        ready.done(unit)
    return schedule.device_of, schedule.order()


def mean_downward_ranks(problem: Problem) -> FloatArray:
    """Longest path from a source to each unit, itself excluded (equation 9), shape (n_units,)."""
    graph = problem.unit_graph
    costs, transfers = mean_costs(problem), mean_transfer_seconds(problem)
    rank = np.zeros(problem.n_units)
    for unit in graph.topological_order.tolist():
        for tensor in graph.op_outputs.row(unit).tolist():
            for consumer in graph.tensor_consumers.row(tensor).tolist():
                path = rank[unit] + costs[unit] + transfers[tensor]
                rank[consumer] = max(rank[consumer], path)
    return rank


def critical_path(problem: Problem, priority: FloatArray) -> IntArray:
    """Units of one longest path: from the source of highest priority, each time the next highest.

    Returns:
        Ascending along the path, shape (length,).
    """
    graph = problem.unit_graph
    sources = np.flatnonzero(np.diff(graph.predecessors.indptr) == 0)
    path = [int(sources[np.argmax(priority[sources])])]
    while len(graph.successors.row(path[-1])):
        after = graph.successors.row(path[-1])
        path.append(int(after[np.argmax(priority[after])]))
    return np.array(path, dtype=np.int64)


def critical_device(problem: Problem, path: IntArray) -> int:
    """The device that can run most of the path, in the fewest seconds."""
    allowed = problem.allowed[path]
    missing = (~allowed).sum(axis=0)
    seconds = np.where(allowed, problem.costs.seconds[path], 0.0).sum(axis=0)
    return int(np.lexsort((np.arange(problem.n_devices), seconds, missing))[0])


def cpop(problem: Problem, limits: FloatArray) -> Proposal:
    priority = mean_upward_ranks(problem) + mean_downward_ranks(problem)
    path = critical_path(problem, priority)
    device_of_path = critical_device(problem, path)
    is_critical = np.zeros(problem.n_units, dtype=np.bool_)
    is_critical[path] = True
    schedule, ready = ListSchedule(problem, limits), ReadyUnits(problem)
    while ready.units:
        unit = min(ready.units, key=lambda u: (-priority[u], u))
        devices = schedule.candidates(unit)
        if is_critical[unit] and device_of_path in devices:
            devices = [device_of_path]
        finish = {
            device: schedule.earliest_start(unit, device, insertion=True)
            + schedule.seconds(unit, device)
            for device in devices
        }
        schedule.place(unit, min(finish, key=lambda d: (finish[d], d)), insertion=True)
        ready.done(unit)
    return schedule.device_of, schedule.order()


def unit_bytes(problem: Problem) -> FloatArray:
    """Weights and outputs of each unit (mean seconds in a graph without bytes), (n_units,)."""
    graph = problem.unit_graph
    outputs = graph.op_outputs
    sizes = np.array(graph.op_weight_bytes)
    np.add.at(sizes, outputs.row_of_each(), graph.tensor_bytes[outputs.indices])
    return sizes if sizes.any() else mean_costs(problem)


def m_topo(problem: Problem, limits: FloatArray) -> Proposal:
    classes, allowed = problem.colocation, problem.allowed_by_class
    sizes = np.bincount(classes.group_of, unit_bytes(problem), minlength=classes.n_groups)
    kinds = [device.kind for device in problem.cluster.devices]
    filling = [d for d, kind in enumerate(kinds) if kind != "cpu"] or list(range(len(kinds)))
    filling = _one_for_each_processor(problem, filling)
    others = [d for d in range(len(kinds)) if d not in filling]
    turns = [[*filling[at:], *filling[:at], *others] for at in range(len(filling))]
    share = sizes.sum() / len(filling) + sizes.max()
    filled = np.zeros(problem.n_devices)
    memory = ResidentMemory(problem, limits)
    device_of_class = np.full(classes.n_groups, -1, dtype=np.int64)
    current = 0
    for group in classes_in_order(problem).tolist():
        while current < len(filling) - 1 and filled[filling[current]] + sizes[group] > share:
            current += 1
        device = memory.add_first(group, turns[current], allowed[group])
        filled[device] += sizes[group]
        device_of_class[group] = device
    return classes.expand(device_of_class), None


def _one_for_each_processor(problem: Problem, devices: list[int]) -> list[int]:
    """Those of few processors first; a device that can run nothing is the last choice."""
    names = [set(d.processors or (d.name,)) for d in problem.cluster.devices]
    able = problem.allowed.any(axis=0)
    taken: set[str] = set()
    chosen = []
    for device in sorted(devices, key=lambda d: (not able[d], len(names[d]))):
        if not taken & names[device]:
            taken |= names[device]
            chosen.append(device)
    return sorted(chosen)


class _EarliestFirst:
    def __init__(self, problem: Problem, limits: FloatArray, favourite: Mapping[int, int]) -> None:
        self.problem = problem
        self.schedule = ListSchedule(problem, limits)
        self.ready = ReadyUnits(problem)
        self.rank = mean_upward_ranks(problem)
        self.favourite = favourite
        self.last = np.full(problem.n_devices, -1, dtype=np.int64)
        self.arrival = np.full((problem.n_units, problem.n_devices), np.inf)
        for unit in self.ready.units:
            self._note_arrivals(unit)

    def run(self) -> Proposal:
        while self.ready.units:
            unit, device = self._next_pair()
            self.schedule.place(unit, device, insertion=False)
            self.last[self.schedule.in_turn[device]] = unit
            for fresh in self.ready.done(unit):
                self._note_arrivals(fresh)
        return self.schedule.device_of, self.schedule.order()

    def _note_arrivals(self, unit: int) -> None:
        for device in range(self.problem.n_devices):
            if self.problem.allowed[unit, device]:
                self.arrival[unit, device] = self.schedule.arrival(unit, device)

    def _next_pair(self) -> tuple[int, int]:
        free = [self.schedule.free_at(device) for device in range(self.problem.n_devices)]
        best: tuple[tuple[float, float, int], int] | None = None
        for unit in self.ready.units:
            starts = {
                device: self._start(unit, device, free[device])
                for device in self.schedule.candidates(unit)
            }
            device = min(starts, key=lambda d: (starts[d] + self.schedule.seconds(unit, d), d))
            key = (starts[device], -float(self.rank[unit]), unit)
            if best is None or key < best[0]:
                best = (key, device)
        assert best is not None
        return best[0][2], best[1]

    def _start(self, unit: int, device: int, free: float) -> float:
        """Earliest start; later where the device waits for the favourite child of its last unit."""
        start = max(free, float(self.arrival[unit, device]))
        last = int(self.last[device])
        child = self.favourite.get(last, -1)
        if child < 0 or child == unit or self.schedule.device_of[child] >= 0:
            return start
        allowed = np.flatnonzero(self.problem.allowed[unit])
        if self.arrival[unit, allowed].max() <= start:
            return start  # urgent
        return max(start, self._awake_until(last, child))

    def _awake_until(self, last: int, child: int) -> float:
        graph = self.problem.unit_graph
        shared = [
            tensor
            for tensor in graph.op_outputs.row(last).tolist()
            if child in graph.tensor_consumers.row(tensor)
        ]
        source = int(self.schedule.device_of[last])
        others = [d for d in range(self.problem.n_devices) if d != source]
        seconds = [self.schedule.transfer(t, source, other) for t in shared for other in others]
        finite = [value for value in seconds if np.isfinite(value)]
        return float(self.schedule.end[last]) + max(finite, default=0.0)


def earliest_first(
    problem: Problem, limits: FloatArray, favourite: Mapping[int, int] | None = None
) -> Proposal:
    return _EarliestFirst(problem, limits, favourite or {}).run()
