"""The constraint program (OR-tools CP-SAT) of execution model `event`: placement and schedule.

Time is counted in ticks. Every duration is rounded down, and a schedule stays one when something
in it gets shorter, so that no placement in any order is faster than the program's bound.

Exactly as in the event model: streams; shared processors; one transfer at a time on a channel, also
through the host, first come first served where a channel has at most about a hundred transfers;
tensors sent once per destination; graph inputs from and graph outputs to the host; contention;
pins, support, colocation and resident bytes. Relaxed, which keeps the bound valid: of the costs of
segments only those count that a unit pays in any case, because it reads a tensor of another device;
live tensors do not count as memory; copies that occupy devices take no time; limits on segments do
not count. Energy, price and limits on them count by `core.charges`.

Implied inequalities, which every schedule satisfies and the solver does not derive itself.

The rows of the program decide case by case whether a transfer takes place, so that their linear
relaxation is weak. With x[u, d] the literal of unit u on device d, and all ways in ticks, add:

- head[u, d], the least start of u on d, over all devices of its ancestors, and rest[u, d], the
  least time from the end of u on d to the end of all, as `parts.bound` defines them:
  start[u] >= sum over d of head[u, d] x[u, d],  makespan >= end[u] + sum of rest[u, d] x[u, d].
- for each tensor that u makes and v reads, and each device d, with w the least way of the tensor
  from d to another device: start[v] >= end[u] + w (x[u, d] - x[v, d]).

Measured on five parts of Inception-V3, of 30 and 33 units, on two GPUs with two threads: all were
solved, in 1 to 16 core-seconds. Without these rows, two were not solved in that time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray, positions_in
from placewright.core.charges import CHARGED, LIMIT_ROUNDING, Charges
from placewright.core.problem import Problem
from placewright.placers.exact.schedule_program.transfers import (
    ChannelUse,
    Ticks,
    Variables,
    add_transfers,
    serve_in_turn,
)
from placewright.simulation.layout import DIRECT, VIA_HOST, hop_seconds

_UNITS = 2.0**50  # of the amount of energy or price that matters
_MOST_UNITS = 2.0**60  # of the largest amount, for the solver's integers of 63 bits
_LARGEST = 2**62  # that the solver takes as a row's right side
_CONFLICTS = 20_000  # of the search, for each second of the solver's own measure of work


def new_solver() -> Any:
    """Make a `CpSolver` that loses no solution.

    One step of presolve compares rows that include each other. In OR-tools 9.15 it calls programs
    infeasible that have solutions (``tests/data/lost_by_presolve.json`` is one; 9.14 solves it).
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.presolve_inclusion_work_limit = 0  # leaves the step out
    return solver


def limit_work(solver: Any, seconds: float) -> None:
    """Limit the work of a `CpSolver`, alike on every machine.

    A bound that rises by a tick at a time counts next to nothing in the solver's own measure, so
    that conflicts are limited, too.

    Args:
        seconds: in the solver's own measure of work.
    """
    solver.parameters.max_deterministic_time = seconds
    solver.parameters.max_number_of_conflicts = max(1, int(_CONFLICTS * seconds))


def used_work(solver: Any) -> float:
    """The work of a `CpSolver` in its search, as `limit_work` limits it."""
    seconds: float = solver.response_proto.deterministic_time
    conflicts: int = solver.num_conflicts
    return max(seconds, conflicts / _CONFLICTS)


class ScheduleProgram(Variables):
    """The program of one problem.

    Attributes:
        minimised: the makespan, or an amount of `core.charges`, in whole steps.
        unit: seconds, joules or price of one step.
        float_error: of the solver's bounds of it, in steps.
    """

    def __init__(
        self,
        problem: Problem,
        ticks: Ticks,
        horizon: int,
        in_order: BoolArray | None = None,
        most: float = math.inf,
    ) -> None:
        """Write all rows.

        Args:
            problem: of execution model `event`.
            ticks: of time.
            horizon: ticks within which some schedule ends.
            in_order: tensors whose readers here are the first that `event` serves, in its order,
                shape (n_tensors,); None for all.
            most: a value that some placement has, which sets the precision of amounts.
        """
        super().__init__(problem, ticks, horizon)
        self._found: list[tuple[int, ...]] = []
        self._run_units()
        self._keep_memory()
        add_transfers(self)
        for transfers in self.channels.values():
            self.model.add_no_overlap([self._sent(transfer) for transfer in transfers])
            serve_in_turn(self, transfers, in_order)
        self.minimised, self.unit, self.float_error = self.makespan, ticks.seconds, 0.0
        rents = self._rents()
        for quantity, charges in problem.charges.items():
            limit = problem.limits.get(quantity, math.inf)
            is_minimised = quantity == problem.objective and quantity in CHARGED
            matters = min(limit, most) if is_minimised else limit
            amount, unit, error = self._amount(charges, rents, matters)
            if limit < unit * _LARGEST:  # no amount is as large
                self.model.add(amount <= math.ceil(limit / unit * (1.0 + 2.0 * LIMIT_ROUNDING)))
            if is_minimised:
                self.minimised, self.unit, self.float_error = amount, unit, error
        self.model.minimize(self.minimised)

    def hint(self, device_of: IntArray, start: FloatArray, end: FloatArray) -> None:
        """Start the search from a schedule, in seconds."""
        for group, literals in enumerate(self.x):
            unit = int(self.problem.colocation.members.row(group)[0])
            for device, literal in literals.items():
                self.model.add_hint(literal, bool(device == device_of[unit]))
        for unit in range(self.problem.n_units):
            self.model.add_hint(self.start[unit], self.ticks.down(float(start[unit])))
            self.model.add_hint(self.end[unit], self.ticks.down(float(end[unit])))

    def forbid_found(self) -> None:
        """Exclude the placements that `decoded` has returned, with any order."""
        for groups in self._found:
            chosen = [row[device] for row, device in zip(self.x, groups, strict=True)]
            self.model.add_bool_or([literal.negated() for literal in chosen])
        self._found.clear()
        self.model.clear_hints()

    def stay_below(self, value: float) -> None:
        """Require a value of at most so much."""
        self.model.add(self.minimised <= Ticks(self.unit).down(value))

    def _rents(self) -> list[Any]:
        """Ticks of paid time of each processor: at least the makespan if it is used."""
        charges = next(iter(self.problem.charges.values()), None)
        if charges is None:
            return []
        rents = [self.time() for _ in charges.used]
        if "price" in self.problem.charges:
            for row in self.x:
                for device, literal in row.items():
                    for processor in np.flatnonzero(charges.users[:, device]).tolist():
                        rent = self.model.add(rents[processor] >= self.makespan)
                        rent.only_enforce_if(literal)
        return rents

    def _amount(
        self, charges: Charges, rents: list[Any], matters: float
    ) -> tuple[Any, float, float]:
        """A quantity of `core.charges` in whole steps, rounded down, and the size of a step.

        The third number is how far rounding can move the solver's bounds, in steps: it computes
        them as floats, from terms as large as the largest amount.

        Args:
            charges: of the quantity.
            rents: see `_rents`.
            matters: amounts above need no precision; inf if all do.
        """
        by_class = self.problem.colocation.sums(charges.own)
        rates = np.append(charges.used, charges.always) * self.ticks.seconds
        largest = by_class.max(axis=1).sum() + rates.sum() * self.horizon
        unit = max(min(matters, largest) / _UNITS, largest / _MOST_UNITS) if largest > 0 else 1.0
        size = Ticks(unit)
        terms = [
            literal * size.down(float(by_class[group, device]))
            for group, row in enumerate(self.x)
            for device, literal in row.items()
        ]
        terms += [
            time * size.down(float(rate))
            for time, rate in zip((*rents, self.makespan), rates.tolist(), strict=True)
        ]
        return sum(terms), unit, largest / unit * 2.0**-51

    def decoded(self, value: Any) -> tuple[IntArray, IntArray]:
        """Device of each unit, and the units by start; `value` returns that of a variable."""
        groups = np.array(
            [next(d for d, literal in row.items() if value(literal)) for row in self.x],
            dtype=np.int64,
        )
        place = positions_in(self.arrays.topological)
        starts = np.array([value(start) for start in self.start], dtype=np.int64)
        order = np.lexsort((place, starts))
        self._found.append(tuple(groups.tolist()))
        return self.problem.colocation.expand(groups), np.asarray(order, dtype=np.int64)

    def _run_units(self) -> None:
        """Durations, streams, producers before consumers, and the load of each device."""
        busy: list[list[Any]] = [[] for _ in range(self.problem.n_devices)]
        loads: list[list[Any]] = [[] for _ in range(self.problem.n_devices)]
        extra = Extra(self)
        for unit in range(self.problem.n_units):
            seconds = self.arrays.seconds[unit]
            literals = self.x[int(self.group_of[unit])]
            plain = {device: self.ticks.down(float(seconds[device])) for device in literals}
            duration = sum(literals[device] * ticks for device, ticks in plain.items())
            size = extra.duration(unit, plain) if extra.is_needed else duration
            self.model.add(self.end[unit] == self.start[unit] + size)
            self.model.add(self.makespan >= self.end[unit])
            for device, literal in literals.items():
                if plain[device] == 0 and not extra.is_needed:
                    continue
                loads[device].append(literal * plain[device])
                busy[device].append(self._interval(unit, size, plain[device], literal, extra))
        for before, after in self._edges():
            self.model.add(self.start[after] >= self.end[before])
        most = self.problem.n_units  # more streams would only exceed the solver's integers
        for device, streams in enumerate(np.minimum(self.arrays.streams, most).tolist()):
            if streams == 1:
                self.model.add_no_overlap(busy[device])
            else:
                self.model.add_cumulative(busy[device], [1] * len(busy[device]), streams)
            self.model.add(sum(loads[device]) <= streams * self.makespan)
        for users in self.problem.cluster.shared_processors.values():
            self.model.add_no_overlap([interval for device in users for interval in busy[device]])
            self.model.add(sum(sum(loads[device]) for device in users) <= self.makespan)

    def _interval(self, unit: int, size: Any, plain: int, literal: Any, extra: Extra) -> Any:
        start, end = self.start[unit], self.end[unit]
        if extra.is_needed:
            return self.model.new_optional_interval_var(start, size, end, literal, "")
        return self.model.new_optional_fixed_size_interval_var(start, plain, literal, "")

    def _sent(self, transfer: ChannelUse) -> Any:
        return self.model.new_optional_fixed_size_interval_var(
            transfer.start, transfer.size, transfer.is_sent, ""
        )

    def _edges(self) -> list[tuple[int, int]]:
        graph = self.problem.unit_graph
        return [
            (before, unit)
            for unit in range(self.problem.n_units)
            for before in graph.predecessors.row(unit).tolist()
        ]

    def _keep_memory(self) -> None:
        """Resident bytes of each device and shared pool, a shared weight once per device."""
        arrays = self.arrays
        of_pools: list[list[Any]] = [[] for _ in arrays.pool_bytes]
        for device in np.flatnonzero(np.isfinite(arrays.memory)).tolist():
            kept = self._kept_on(device)
            if kept:
                terms = [keeper * int(size) for keeper, size in kept]
                self.model.add(sum(terms) <= min(int(arrays.memory[device]), _LARGEST))
            for pool in np.flatnonzero(arrays.pool_shares[:, device]).tolist():
                share = float(arrays.pool_shares[pool, device])
                of_pools[pool] += [keeper * int(size * share) for keeper, size in kept]
        for terms, size in zip(of_pools, arrays.pool_bytes.tolist(), strict=True):
            if terms:
                self.model.add(sum(terms) <= min(int(size), _LARGEST))

    def _kept_on(self, device: int) -> list[tuple[Any, float]]:
        """Literal and bytes of each entry that a device may keep."""
        arrays = self.arrays
        terms = []
        for weight, size in enumerate(arrays.kept_bytes.tolist()):
            first, stop = arrays.kept_ptr[weight], arrays.kept_ptr[weight + 1]
            groups = np.unique(self.group_of[arrays.kept_units[first:stop]]).tolist()
            keepers = [self.x[g][device] for g in groups if device in self.x[g]]
            if len(keepers) > 1:
                is_kept = self.literal()
                for keeper in keepers:
                    self.model.add_implication(keeper, is_kept)
                keepers = [is_kept]
            terms += [(keeper, size) for keeper in keepers]
        return terms


class Extra:
    """Additional time of units: overheads of segments, and contention."""

    def __init__(self, program: Variables) -> None:
        self._program = program
        arrays = program.arrays
        self._has_overheads = bool(arrays.dispatch.any() or arrays.has_cuts)
        self._crowds = self._crowded()
        self.is_needed = self._has_overheads or bool(self._crowds)

    def duration(self, unit: int, plain: dict[int, int]) -> Any:
        """A variable that is at least the duration of the unit on its device."""
        program = self._program
        literals = program.x[int(program.group_of[unit])]
        duration = program.time()
        program.model.add(duration >= sum(literals[d] * ticks for d, ticks in plain.items()))
        remote = self._reads_remote(unit) if self._has_overheads else None
        overhead = {device: self._overhead_seconds(unit, device) for device in literals}
        if remote is not None:
            longer = [
                literals[device] * (ticks + program.ticks.down(overhead[device]))
                for device, ticks in plain.items()
            ]
            program.model.add(duration >= sum(longer)).only_enforce_if(remote)
        for domain, factor, is_crowded in self._crowds:
            own = {
                device: float(program.arrays.seconds[unit, device]) * factor
                for device in literals
                if program.arrays.domain[device] == domain
            }
            slower = [literals[d] * program.ticks.down(seconds) for d, seconds in own.items()]
            program.model.add(duration >= sum(slower)).only_enforce_if(is_crowded)
            if remote is not None:
                both = [
                    literals[d] * program.ticks.down(seconds + overhead[d])
                    for d, seconds in own.items()
                ]
                program.model.add(duration >= sum(both)).only_enforce_if([is_crowded, remote])
        return duration

    def _reads_remote(self, unit: int) -> Any | None:
        """A literal that is true if a producer is on another device; None if none can be."""
        program = self._program
        producers = program.problem.unit_graph.predecessors.row(unit)
        groups = np.unique(program.group_of[producers]).tolist()
        own = int(program.group_of[unit])
        if not [group for group in groups if group != own]:
            return None
        is_remote = program.literal()
        for group in groups:
            for device, there in program.x[group].items():
                here = program.x[own].get(device)
                rest = [here] if here is not None else []
                program.model.add_bool_or([there.negated(), *rest, is_remote])
        return is_remote

    def _overhead_seconds(self, unit: int, device: int) -> float:
        """Overhead of a segment that begins with the unit: dispatch, and each entering tensor."""
        arrays, graph = self._program.arrays, self._program.problem.unit_graph
        tensors = graph.op_inputs.row(unit)
        made = tensors[arrays.producer[tensors] >= 0]
        made = np.unique(made)
        sizes = arrays.tensor_bytes[made]
        computed = sizes[arrays.has_layout[made]]
        cuts = len(sizes) * arrays.cut[device] + sizes.sum() * arrays.cut_per_byte[device]
        cuts += len(computed) * arrays.layout[device]
        cuts += computed.sum() * arrays.layout_per_byte[device]
        return float(arrays.dispatch[device] + cuts)

    def _crowded(self) -> list[tuple[int, float, Any]]:
        """(memory domain, factor, literal): true if the number of used devices has that factor."""
        program, crowds = self._program, []
        for domain, factors in enumerate(program.arrays.factors):
            devices = np.flatnonzero(program.arrays.domain == domain).tolist()
            used = {device: program.literal() for device in devices}
            for row in program.x:
                for device in devices:
                    if device in row:
                        program.model.add_implication(row[device], used[device])
            for count in range(1, len(devices) + 1):
                # The least factor from this count on, should factors ever fall.
                factor = float(factors[count : len(devices) + 1].min())
                if factor > 1.0:
                    is_crowded = program.literal()
                    program.model.add(sum(used.values()) <= count - 1).only_enforce_if(
                        is_crowded.negated()
                    )
                    crowds.append((domain, factor, is_crowded))
        return crowds


_FAR = 2**60  # ticks where there is no route, or no device


def add_implied(program: Variables) -> None:
    """Add the inequalities of the module."""
    ways = _ways(program)
    seconds = _seconds(program)
    _add_heads(program, _heads(program, ways, seconds))
    _add_rests(program, _rests(program, ways, seconds))
    _add_ways(program, ways)


def _ways(program: Variables) -> IntArray:
    """Ticks of each tensor from each device to each; the host comes last where it is no device.

    Returns:
        Shape (n_tensors, n_endpoints, n_endpoints); rounded down hop by hop, as the program does.
    """
    arrays, graph = program.arrays, program.problem.unit_graph
    n_ends, host = arrays.route.shape[0], arrays.host
    ways = np.full((graph.n_tensors, n_ends, n_ends), _FAR, dtype=np.int64)
    for tensor in range(graph.n_tensors):
        for source in range(n_ends):
            for target in range(n_ends):
                kind = arrays.route[source, target]
                if source == target:
                    ways[tensor, source, target] = 0
                elif kind == DIRECT:
                    ways[tensor, source, target] = _hop(program, tensor, source, target)
                elif kind == VIA_HOST:
                    to_host = _hop(program, tensor, source, host)
                    ways[tensor, source, target] = to_host + _hop(program, tensor, host, target)
    return ways


def _hop(program: Variables, tensor: int, source: int, target: int) -> int:
    return program.ticks.down(float(hop_seconds(program.arrays, tensor, source, target)))


def _seconds(program: Variables) -> IntArray:
    """Ticks of each unit on each device, (n_units, n_devices); far where it may not run."""
    seconds = program.arrays.seconds
    ticks = np.full(seconds.shape, _FAR, dtype=np.int64)
    for unit in range(len(seconds)):
        for device in program.x[int(program.group_of[unit])]:
            ticks[unit, device] = program.ticks.down(float(seconds[unit, device]))
    return ticks


def _heads(program: Variables, ways: IntArray, seconds: IntArray) -> IntArray:
    arrays, graph = program.arrays, program.problem.unit_graph
    n_devices = seconds.shape[1]
    heads = np.zeros(seconds.shape, dtype=np.int64)
    for unit in arrays.topological.tolist():
        for tensor in graph.op_inputs.row(unit).tolist():
            producer, way = int(arrays.producer[tensor]), ways[tensor]
            if producer < 0:
                there = way[arrays.host, :n_devices]
            else:
                ends = heads[producer] + seconds[producer]
                there = (ends[:, None] + way[:n_devices, :n_devices]).min(axis=0)
            heads[unit] = np.minimum(np.maximum(heads[unit], there), _FAR)
    return heads


def _rests(program: Variables, ways: IntArray, seconds: IntArray) -> IntArray:
    arrays, graph = program.arrays, program.problem.unit_graph
    n_devices = seconds.shape[1]
    rests = np.zeros(seconds.shape, dtype=np.int64)
    for unit in arrays.topological[::-1].tolist():
        for tensor in graph.op_outputs.row(unit).tolist():
            way = ways[tensor]
            if arrays.is_output[tensor]:
                rests[unit] = np.maximum(rests[unit], way[:n_devices, arrays.host])
            for reader in graph.tensor_consumers.row(tensor).tolist():
                after = seconds[reader] + rests[reader]
                left = (way[:n_devices, :n_devices] + after[None, :]).min(axis=1)
                rests[unit] = np.maximum(rests[unit], left)
            rests[unit] = np.minimum(rests[unit], _FAR)
    return rests


def _add_heads(program: Variables, heads: IntArray) -> None:
    for unit, row in enumerate(heads):
        if terms := _chosen(program, unit, row):
            program.model.add(program.start[unit] >= sum(terms))


def _add_rests(program: Variables, rests: IntArray) -> None:
    for unit, row in enumerate(rests):
        if terms := _chosen(program, unit, row):
            program.model.add(program.makespan >= program.end[unit] + sum(terms))


def _chosen(program: Variables, unit: int, ticks: IntArray) -> list[Any]:
    """Terms whose sum is the ticks of a unit on its device, from those on each device."""
    literals = program.x[int(program.group_of[unit])]
    return [int(ticks[d]) * x for d, x in literals.items() if 0 < ticks[d] < _FAR]


def _add_ways(program: Variables, ways: IntArray) -> None:
    arrays, graph = program.arrays, program.problem.unit_graph
    for tensor in np.flatnonzero(arrays.producer >= 0).tolist():
        producer = int(arrays.producer[tensor])
        here = program.x[int(program.group_of[producer])]
        for reader in np.unique(graph.tensor_consumers.row(tensor)).tolist():
            there = program.x[int(program.group_of[reader])]
            if program.group_of[producer] == program.group_of[reader]:
                continue
            for device, made in here.items():
                others = [int(ways[tensor, device, other]) for other in there if other != device]
                least = min(others, default=0)
                if 0 < least < _FAR:
                    stays = least * there[device] if device in there else 0
                    program.model.add(
                        program.start[reader] >= program.end[producer] + least * made - stays
                    )
