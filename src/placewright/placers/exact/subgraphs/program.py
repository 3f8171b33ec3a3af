"""The latency integer program of Tarnawski et al. 2020 (section 4) as rows and columns for HiGHS.

Machine 0 is all CPUs together, with as many as it takes; machines 1 ... are subgraphs, q to an
accelerator, each contiguous. Columns: x[v, m]; in[t, m], out[t, m]; start[m], finish[m];
latency[v]; the total; z[v, m] for contiguity. The big constant (the sum of all CPU times in the
published program) is the value of the best known placement here: no better one is cut off.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.placers.exact.integer_program.program import IntegerProgram, Rows
from placewright.simulation.published.subgraph import LatencyArrays


@dataclass(frozen=True, eq=False)
class LatencyProgram:
    """The published program."""

    program: IntegerProgram  # rows and columns
    placed: IntArray  # column of x[v, m], -1 if the unit may not be; shape (n_units, n_machines)
    device_of_machine: IntArray  # shape (n_machines,), -1 for machine 0
    cpu_of_unit: IntArray  # the CPU behind machine 0 for each unit, shape (n_units,)

    def devices(self, columns: FloatArray) -> IntArray:
        """Device of each unit in a solution, shape (n_units,)."""
        values = np.where(self.placed >= 0, columns[self.placed], -1.0)
        machine = values.argmax(axis=1)
        device = self.device_of_machine[machine]
        return np.where(device >= 0, device, self.cpu_of_unit)

    def start(self, device_of: IntArray, piece: IntArray, q: int) -> FloatArray | None:
        """The x columns of a placement whose units lie in the given pieces, nan elsewhere.

        None if an accelerator has more than q pieces or a unit is on another CPU.
        """
        if int(piece.max(initial=-1)) >= q:
            return None
        first = {int(d): m for m, d in reversed(list(enumerate(self.device_of_machine.tolist())))}
        columns = np.full(self.program.n_columns, np.nan)
        used = self.placed >= 0
        columns[self.placed[used]] = 0.0
        for unit, device in enumerate(device_of.tolist()):
            on_cpu = device == self.cpu_of_unit[unit]
            machine = 0 if on_cpu else first.get(device, 0) + int(piece[unit])
            column = int(self.placed[unit, machine])
            if column < 0 or (machine == 0 and not on_cpu):
                return None
            columns[column] = 1.0
        return columns


def latency_program(
    problem: Problem, arrays: LatencyArrays, q: int, horizon: float
) -> LatencyProgram:
    """Build the program for q subgraphs per accelerator.

    Args:
        q: subgraphs per accelerator, >= 1.
        horizon: only solutions with a latency up to this are of interest.
    """
    return _Builder(problem, arrays, q, horizon).build()


class _Builder:
    """Numbers the columns block by block and adds the rows."""

    def __init__(self, problem: Problem, arrays: LatencyArrays, q: int, horizon: float) -> None:
        self.problem, self.graph, self.arrays = problem, problem.unit_graph, arrays
        self.horizon, self.q = horizon, q
        atomic = np.flatnonzero(arrays.is_atomic).astype(np.int64)
        self.machines = np.concatenate([[-1], np.repeat(atomic, q)]).astype(np.int64)
        self.cpu_of_unit = _cpu_of_units(problem, arrays)
        self.rows = Rows()
        self.upper: list[float] = []
        seconds = np.empty((problem.n_units, len(self.machines)))
        seconds[:, 0] = _least_cpu_seconds(problem, arrays)
        seconds[:, 1:] = arrays.seconds[:, self.machines[1:]]
        self.seconds = seconds
        self.placed = self._columns(np.isfinite(seconds), 1.0)
        self.n_integer = len(self.upper)

    def build(self) -> LatencyProgram:
        """All blocks in turn."""
        self.latency = [self._column(np.inf) for _ in range(self.problem.n_units)]
        total = self._column(np.inf)
        for unit in range(self.problem.n_units):
            columns = self.placed[unit][self.placed[unit] >= 0].tolist()
            self.rows.add(1.0, 1.0, columns, [1.0] * len(columns))
            self.rows.add(0.0, np.inf, [total, self.latency[unit]], [1.0, -1.0])
        self._cpu_times()
        finish = [self._subgraph(machine) for machine in range(1, len(self.machines))]
        self._turns(finish)
        self._memory()
        self._colocation()
        cost = np.zeros(len(self.upper))
        cost[total] = 1.0
        is_integer = np.arange(len(self.upper)) < self.n_integer
        program = IntegerProgram(self.rows, np.array(self.upper), is_integer, cost)
        return LatencyProgram(program, self.placed, self.machines, self.cpu_of_unit)

    def _column(self, upper: float) -> int:
        self.upper.append(upper)
        return len(self.upper) - 1

    def _columns(self, wanted: BoolArray, upper: float) -> IntArray:
        numbers = np.full(wanted.shape, -1, dtype=np.int64)
        n_new = int(np.count_nonzero(wanted))
        numbers[wanted] = len(self.upper) + np.arange(n_new)
        self.upper += [upper] * n_new
        return numbers

    def _edges(self) -> list[tuple[int, int]]:
        """(producer, consumer) of all edges, each once."""
        successors = self.graph.successors
        return list(
            zip(successors.row_of_each().tolist(), successors.indices.tolist(), strict=True)
        )

    def _cpu_times(self) -> None:
        """latency[v] >= p_cpu x[v, 0] (+ latency[u] for each edge)."""
        for unit in range(self.problem.n_units):
            column = int(self.placed[unit, 0])
            if column >= 0:
                self.rows.add(
                    0.0, np.inf, [self.latency[unit], column], [1.0, -self.seconds[unit, 0]]
                )
        for before, after in self._edges():
            columns, values = [self.latency[after], self.latency[before]], [1.0, -1.0]
            column = int(self.placed[after, 0])
            if column >= 0:
                columns, values = [*columns, column], [*values, -self.seconds[after, 0]]
            self.rows.add(0.0, np.inf, columns, values)

    def _subgraph(self, machine: int) -> tuple[int, int]:
        """Start, finish, transfers and contiguity of one subgraph; its two columns."""
        start, finish = self._column(np.inf), self._column(np.inf)
        columns, values = [finish, start], [1.0, -1.0]
        for unit in range(self.problem.n_units):
            column = int(self.placed[unit, machine])
            if column < 0:
                continue
            columns.append(column)
            values.append(-self.seconds[unit, machine])
            self.rows.add(
                -self.horizon,
                np.inf,
                [self.latency[unit], finish, column],
                [1.0, -1.0, -self.horizon],
            )
        for tensor, producer in enumerate(self.graph.tensor_producers.tolist()):
            if producer >= 0:
                flags = self._transfer(tensor, producer, machine, start)
                columns += flags
                values += [-float(self.arrays.transfer[tensor])] * len(flags)
        self.rows.add(0.0, 0.0, columns, values)
        self._contiguity(machine)
        return start, finish

    def _transfer(self, tensor: int, producer: int, machine: int, start: int) -> list[int]:
        """Add flags of a tensor that enters or leaves a subgraph, which waits for its inputs."""
        into, out = self._column(1.0), self._column(1.0)
        home = int(self.placed[producer, machine])
        for consumer in self.graph.tensor_consumers.row(tensor).tolist():
            there = int(self.placed[consumer, machine])
            for flag, plus, minus in ((into, there, home), (out, home, there)):
                if plus >= 0:
                    tail = [minus] if minus >= 0 else []
                    self.rows.add(0.0, np.inf, [flag, plus, *tail], [1.0, -1.0] + [1.0] * len(tail))
        self.rows.add(
            -self.horizon,
            np.inf,
            [start, self.latency[producer], into],
            [1.0, -1.0, -self.horizon],
        )
        return [into, out]

    def _contiguity(self, machine: int) -> None:
        reach = [self._column(1.0) for _ in range(self.problem.n_units)]
        for unit, column in enumerate(self.placed[:, machine].tolist()):
            if column >= 0:
                self.rows.add(0.0, np.inf, [reach[unit], column], [1.0, -1.0])
        for before, after in self._edges():
            here, there = int(self.placed[before, machine]), int(self.placed[after, machine])
            self.rows.add(0.0, np.inf, [reach[before], reach[after]], [1.0, -1.0])
            columns, values = [reach[after]], [1.0]
            if here >= 0:
                columns, values = [*columns, here], [*values, 1.0]
            if there >= 0:
                columns, values = [*columns, there], [*values, -1.0]
            self.rows.add(-np.inf, 1.0, columns, values)

    def _turns(self, times: list[tuple[int, int]]) -> None:
        """The j-th subgraph of an accelerator starts when the previous one is finished."""
        for index in range(1, len(times)):
            if index % self.q:
                self.rows.add(0.0, np.inf, [times[index][0], times[index - 1][1]], [1.0, -1.0])

    def _memory(self) -> None:
        """Resident bytes of an accelerator's subgraphs fit, a shared weight once."""
        kept = self.problem.kept
        for device in sorted(set(self.machines[1:].tolist())):
            limit = float(self.problem.cluster.memory_bytes[device])
            if not np.isfinite(limit) or kept.total <= limit:
                continue
            mine = np.flatnonzero(self.machines == device)
            columns: list[int] = []
            values: list[float] = []
            for entry, size in enumerate(kept.sizes.tolist()):
                sets = [self.placed[unit, mine] for unit in kept.units.row(entry).tolist()]
                there = [numbers[numbers >= 0].tolist() for numbers in sets]
                if len(there) > 1:
                    held = self._column(1.0)
                    for group in there:
                        self.rows.add(0.0, np.inf, [held, *group], [1.0] + [-1.0] * len(group))
                    there = [[held]]
                for group in there:
                    columns += group
                    values += [size / limit] * len(group)
            self.rows.add(-np.inf, 1.0, columns, values)

    def _colocation(self) -> None:
        """Units of one class are on the same device, whichever its subgraphs."""
        members = self.problem.colocation.members
        blocks = [np.array([0])] + [
            np.flatnonzero(self.machines == device)
            for device in sorted(set(self.machines[1:].tolist()))
        ]
        for row in range(members.n_rows):
            units = members.row(row).tolist()
            for unit, other in itertools.pairwise(units):
                for block in blocks:
                    plus, minus = self.placed[unit, block], self.placed[other, block]
                    columns = [*plus[plus >= 0].tolist(), *minus[minus >= 0].tolist()]
                    values = [1.0] * int((plus >= 0).sum()) + [-1.0] * int((minus >= 0).sum())
                    if columns:
                        self.rows.add(0.0, 0.0, columns, values)


def _cpu_of_units(problem: Problem, arrays: LatencyArrays) -> IntArray:
    """The CPU on which each unit's class takes least time, -1 if none may run it."""
    classes = problem.colocation
    cpus = np.flatnonzero(arrays.is_atomic == 0)
    if len(cpus) == 0:
        return np.full(problem.n_units, -1, dtype=np.int64)
    total = np.zeros((classes.n_groups, len(cpus)))
    np.add.at(total, classes.group_of, arrays.seconds[:, cpus])
    best = np.where(np.isfinite(total.min(axis=1)), cpus[total.argmin(axis=1)], -1)
    return classes.expand(best)


def _least_cpu_seconds(problem: Problem, arrays: LatencyArrays) -> FloatArray:
    """Least seconds of each unit on a CPU that may run its class; inf if none may.

    Units of one class share a CPU, but which one is best depends on the paths through them, not
    on the sum of their seconds. Each unit takes its own least, so that no solution is lost.
    """
    classes = problem.colocation
    cpus = np.flatnonzero(arrays.is_atomic == 0)
    if len(cpus) == 0:
        return np.full(problem.n_units, np.inf)
    total = np.zeros((classes.n_groups, len(cpus)))
    np.add.at(total, classes.group_of, arrays.seconds[:, cpus])
    may_run = np.isfinite(total)[classes.group_of]
    least: FloatArray = np.where(may_run, arrays.seconds[:, cpus], np.inf).min(axis=1)
    return least
