"""Integer program for the latency of a sample on accelerator subgraphs, started from search.

Tarnawski, Phanishayee, Devanur, Mahajan, Nina Paravecino: "Efficient Algorithms for Device
Placement of DNN Graph Operators", NeurIPS 2020, section 4 and appendix A (q subgraphs per
accelerator). HiGHS solves it, and returns incumbent and bound when time ends.

Departures from the paper: the solver starts from the best of the greedy filling, the all-CPU
placement, DPL's split and simulated annealing, whose value replaces the big constant. Before it, a
relaxation is solved whose bound also holds under the `subgraph` execution model, where the pieces
of an accelerator do not wait for each other (see `subgraphs.bound`); there the published program
only proposes placements.

The latency integer program of Tarnawski et al. 2020 (section 4) as rows and columns for HiGHS.

Machine 0 is all CPUs together, with as many as it takes; machines 1 ... are subgraphs, q to an
accelerator, each contiguous. Columns: x[v, m]; in[t, m], out[t, m]; start[m], finish[m];
latency[v]; the total; z[v, m] for contiguity. The big constant (the sum of all CPU times in the
published program) is the value of the best known placement here: no better one is cut off.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.execution_models import MaxLoad, Subgraph, SubgraphIP
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.bases import (
    anytime,
    found_none,
    require_counts,
    require_numbers,
    why_not_time_alone,
)
from placewright.placers.exact.integer_program import IntegerProgram, ProgramBuilder, solve
from placewright.placers.exact.subgraphs.annealing import Moves, anneal, moves_of
from placewright.placers.exact.subgraphs.bound import bound_program, latency_in_turn, program_size
from placewright.placers.legal import failure
from placewright.placers.pipelines.greedy import filled
from placewright.placers.pipelines.ideals.items import items_of
from placewright.placers.pipelines.ideals.load_model import allowed_devices, load_model_of
from placewright.placers.pipelines.ideals.program import solved_in_order, why_not_contiguous
from placewright.simulation.compiled import read_only
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.published.subgraph import LatencyArrays, latency_arrays, pieces

_STEPS_PER_SECOND = 10_000  # of annealing, on a slow core and a graph of a thousand units
_START_SHARE = 0.2  # of the seconds, for the split of a pipeline
_STEPS_PER_ITEM = 1000  # of one round: small problems need no more
_IDLE_ROUNDS = 24  # without an improvement, six at each heat
_HEATS = (0.1, 0.03, 0.01, 0.003)  # first temperatures, relative to the value
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class LatencyIp:
    """Searches, then solves the latency integer program.

    Attributes:
        annealing_share: part of the budget's seconds that annealing takes, in [0, 1].
        annealing_steps: steps of one of the first rounds at most, >= 1.
        annealing_rounds: rounds if the budget has no seconds, >= 0.
        bound_share: part of what is left after annealing that the relaxation takes, in [0, 1].
        max_nodes: branch-and-bound nodes if the budget has no seconds, >= 1.
        max_columns: the program is left out beyond so many columns, >= 0.
    """

    name: ClassVar[str] = "latency-ip"
    paper: ClassVar[str] = "Tarnawski et al., NeurIPS 2020"
    objectives: ClassVar[tuple[str, ...]] = ("latency",)
    needs_training: ClassVar[bool] = False

    annealing_share: float = 0.3
    bound_share: float = 0.7
    annealing_steps: int = 50_000
    annealing_rounds: int = 8
    max_nodes: int = 50
    max_columns: int = 60_000

    def __post_init__(self) -> None:
        require_numbers("latency-ip", self, "in [0, 1]", "annealing_share", "bound_share")
        require_counts("latency-ip", self, "annealing_steps", "max_nodes")
        require_counts("latency-ip", self, "annealing_rounds", "max_columns", least=0)

    def why_not(self, problem: Problem) -> str | None:
        """None for the execution models `subgraph` and `subgraph-ip`."""
        if reason := why_not_time_alone(problem):
            return reason
        if not isinstance(problem.execution_model, Subgraph | SubgraphIP):
            return (
                "it minimises the latency of atomic subgraphs, not "
                f"'{problem.execution_model.name}'; use execution model subgraph or subgraph-ip"
            )
        return None

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Evaluate known placements, anneal the best of them, then solve the integer program."""
        arrays = latency_arrays(problem)
        evaluator.offer_bound(_longest_path(problem, arrays), "longest path")
        best: IntArray | None = None
        value = math.inf
        for start in _starts(problem, arrays, evaluator):
            before = evaluator.best_value
            if (found := evaluator.evaluate(start)) < before:
                best, value = start, found
        if evaluator.is_closed:  # also where nothing takes time, which is no scale for heat
            return evaluator.solution()
        if best is not None:
            best = self._annealed(problem, arrays, (best, value), evaluator, rng)
        elif evaluator.best is not None:  # another search has found it
            best = evaluator.best.device_of
        if evaluator.is_closed:
            return evaluator.solution()
        best = self._bounded(problem, arrays, best, evaluator)
        if evaluator.is_closed:
            return evaluator.solution()
        return self._solved(problem, arrays, best, evaluator)

    def _annealed(
        self,
        problem: Problem,
        arrays: LatencyArrays,
        start: tuple[IntArray, float],
        evaluator: Evaluator,
        rng: np.random.Generator,
    ) -> IntArray:
        """Anneal in rounds at falling heat, each from the best placement.

        Args:
            start: a placement and its value.
        """
        moves: Moves = moves_of(problem, arrays)
        classes = problem.colocation
        best, value = start[0][classes.members.indices[classes.members.indptr[:-1]]], start[1]
        share = self.annealing_share * evaluator.remaining_seconds
        timed, end, done, idle = math.isfinite(share), evaluator.seconds + share, 0, 0
        per_second = _STEPS_PER_SECOND * min(1.0, 1000 / problem.n_units)
        while (evaluator.seconds < end) if timed else (done < self.annealing_rounds):
            steps = min(self.annealing_steps, _STEPS_PER_ITEM * classes.n_groups)
            if timed:
                left = int((end - evaluator.seconds) * per_second) + 10
                steps = min(steps * (1 + done // len(_HEATS)), left)
            heat = _HEATS[done % len(_HEATS)] * value
            candidate = best.copy()
            new = anneal(
                arrays, moves, best.copy(), candidate, value, rng, steps, heat, value * 1e-4
            )
            done, idle = done + 1, idle + 1
            if new < value:
                best, value, idle = candidate, new, 0
                evaluator.evaluate(classes.expand(best))
            if idle == _IDLE_ROUNDS or evaluator.is_closed:  # a value of 0 is no scale for heat
                break
        return classes.expand(best)

    def _bounded(
        self,
        problem: Problem,
        arrays: LatencyArrays,
        best: IntArray | None,
        evaluator: Evaluator,
    ) -> IntArray | None:
        """Solve the relaxation for its bound, and evaluate the placement in its solution."""
        too_large = program_size(problem, arrays) > self.max_columns
        if too_large or evaluator.is_spent or self.bound_share == 0:
            return best
        scaled, scale = _scaled(arrays, best, evaluator)
        program = bound_program(problem, scaled, _horizon(arrays, best, evaluator) * scale)
        result = solve(
            program.program,
            seconds=self.bound_share * evaluator.remaining_seconds,
            max_nodes=self.max_nodes,
            is_over=lambda: evaluator.is_spent,
        )
        bound = result.lower_bound / scale * (1 - _TOLERANCE)
        if math.isfinite(bound):
            evaluator.offer_bound(bound, "paths between accelerators")
        if result.columns is None or evaluator.is_spent:
            return best
        device_of = problem.colocation.expand(program.classes_on(result.columns))
        before = evaluator.best_value
        return device_of if evaluator.evaluate(device_of) < before else best

    def _solved(
        self,
        problem: Problem,
        arrays: LatencyArrays,
        best: IntArray | None,
        evaluator: Evaluator,
    ) -> Solution:
        """Solve the program and return its result as a solution."""
        chosen = problem.execution_model
        is_exact = isinstance(chosen, SubgraphIP)
        q = chosen.per_accelerator if isinstance(chosen, SubgraphIP) else 1
        n_machines = 1 + q * int(arrays.is_atomic.sum())
        size = n_machines * (2 * problem.n_units + 2 * len(arrays.transfer))
        if evaluator.is_spent:
            return evaluator.solution()
        if size > self.max_columns:
            return evaluator.solution(message="search only: the program is too large")
        scaled, scale = _scaled(arrays, best, evaluator)
        horizon = _horizon(arrays, best, evaluator) * scale
        program = latency_program(problem, scaled, q, horizon)
        result = solve(
            program.program,
            start=None if best is None else _start_columns(program, arrays, best, q),
            seconds=evaluator.remaining_seconds * 0.98 - 0.2,
            max_nodes=self.max_nodes,
            is_over=lambda: evaluator.is_spent,
        )
        bound = result.lower_bound / scale * (1 - _TOLERANCE)
        if is_exact and math.isfinite(bound):
            evaluator.offer_bound(bound, "integer program")
        if result.columns is not None and not evaluator.is_spent:
            device_of = program.devices(result.columns)
            evaluator.evaluate(device_of)
            if evaluator.best is None:  # the program takes CPUs as having all memory
                reason = failure(evaluator, device_of)
                return evaluator.solution(message=f"the program's best is infeasible: {reason}")
        if is_exact and result.is_infeasible and best is None:
            return evaluator.solution(message=found_none("placement that keeps all constraints"))
        if result.is_out_of_time:
            return evaluator.cut_short()
        return evaluator.solution()


def _starts(problem: Problem, arrays: LatencyArrays, evaluator: Evaluator) -> list[IntArray]:
    """Greedy filling, all units on a CPU, and DPL's split of the problem as a pipeline."""
    starts: list[IntArray] = []
    greedy = filled(problem)
    if greedy is not None:
        starts.append(greedy)
    cpus = np.flatnonzero(arrays.is_atomic == 0)
    starts += [np.full(problem.n_units, cpu, dtype=np.int64) for cpu in cpus[:1].tolist()]
    pipeline = replace(
        problem, objective="throughput", execution_model=MaxLoad(samples_in_flight=0)
    )
    if why_not_contiguous(pipeline) is None:
        items = items_of(pipeline)
        model = load_model_of(pipeline, items.grouping)
        with evaluator.share(_START_SHARE):
            program = solved_in_order(model, items, is_spent=lambda: evaluator.is_spent)
        if program is not None:
            starts.append(items.grouping.expand(program.devices()))
    return starts


def _longest_path(problem: Problem, arrays: LatencyArrays) -> float:
    """Longest path of the least seconds where the classes fit: a bound on any placement."""
    fits = allowed_devices(problem, problem.colocation)[problem.colocation.group_of]
    least = np.where(fits, arrays.seconds, np.inf).min(axis=1)
    done = np.zeros(problem.n_units)
    predecessors = problem.unit_graph.predecessors
    for unit in arrays.order.tolist():
        done[unit] = least[unit] + done[predecessors.row(unit)].max(initial=0.0)
    return float(done.max())


def _horizon(arrays: LatencyArrays, best: IntArray | None, evaluator: Evaluator) -> float:
    """A value that some placement reaches: the incumbent's, or more than any placement takes."""
    return evaluator.best_value if best is not None else latency_in_turn(arrays)


def _scaled(
    arrays: LatencyArrays, best: IntArray | None, evaluator: Evaluator
) -> tuple[LatencyArrays, float]:
    """Scale times so that the incumbent's value is 1000, and return the factor."""
    horizon = _horizon(arrays, best, evaluator)
    scale = 1000.0 / horizon if horizon > 0 else 1.0
    scaled = arrays._replace(seconds=arrays.seconds * scale, transfer=arrays.transfer * scale)
    return read_only(scaled), scale


def _start_columns(
    program: LatencyProgram, arrays: LatencyArrays, device_of: IntArray, q: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]] | None:
    piece = np.empty(len(device_of), dtype=np.int64)
    pieces(arrays, np.array(device_of), piece)
    return program.start(device_of, piece, q)


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
            if piece[unit] < 0 and not on_cpu:
                return None
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


class _Builder(ProgramBuilder):
    """Numbers the columns block by block and adds the rows."""

    def __init__(self, problem: Problem, arrays: LatencyArrays, q: int, horizon: float) -> None:
        super().__init__()
        self.problem, self.graph, self.arrays = problem, problem.unit_graph, arrays
        self.horizon, self.q = horizon, q
        atomic = np.flatnonzero(arrays.is_atomic).astype(np.int64)
        self.machines = np.concatenate([[-1], np.repeat(atomic, q)]).astype(np.int64)
        self.cpu_of_unit = _cpu_of_units(problem, arrays)
        seconds = np.empty((problem.n_units, len(self.machines)))
        seconds[:, 0] = _least_cpu_seconds(problem, arrays)
        seconds[:, 1:] = arrays.seconds[:, self.machines[1:]]
        self.seconds = seconds
        self.placed = self.columns(np.isfinite(seconds), is_integer=True)

    def build(self) -> LatencyProgram:
        """All blocks in turn."""
        self.latency = [self.column(np.inf) for _ in range(self.problem.n_units)]
        total = self.column(np.inf, 1.0)
        for unit in range(self.problem.n_units):
            columns = self.placed[unit][self.placed[unit] >= 0].tolist()
            self.rows.add(1.0, 1.0, columns, [1.0] * len(columns))
            self.rows.add(0.0, np.inf, [total, self.latency[unit]], [1.0, -1.0])
        self._cpu_times()
        finish = [self._subgraph(machine) for machine in range(1, len(self.machines))]
        self._turns(finish)
        self._memory()
        self._colocation()
        return LatencyProgram(self.program(), self.placed, self.machines, self.cpu_of_unit)

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
        start, finish = self.column(np.inf), self.column(np.inf)
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
        into, out = self.column(1.0), self.column(1.0)
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
        reach = [self.column(1.0) for _ in range(self.problem.n_units)]
        for unit, column in enumerate(self.placed[:, machine].tolist()):
            if column >= 0:
                self.rows.add(0.0, np.inf, [reach[unit], column], [1.0, -1.0])
        for before, after in self._edges():
            here, there = int(self.placed[before, machine]), int(self.placed[after, machine])
            self.rows.add_reach((reach[before], reach[after]), (here, there))

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
            unit = max(limit, 1.0)  # bytes
            columns: list[int] = []
            values: list[float] = []
            for entry, size in enumerate(kept.sizes.tolist()):
                sets = [self.placed[unit, mine] for unit in kept.units.row(entry).tolist()]
                there = [numbers[numbers >= 0].tolist() for numbers in sets]
                if len(there) > 1:
                    held = self.column(1.0)
                    for group in there:
                        self.rows.add(0.0, np.inf, [held, *group], [1.0] + [-1.0] * len(group))
                    there = [[held]]
                for group in there:
                    columns += group
                    values += [size / unit] * len(group)
            self.rows.add(-np.inf, limit / unit, columns, values)

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
    total = classes.sums(arrays.seconds[:, cpus])
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
    may_run = np.isfinite(classes.sums(arrays.seconds[:, cpus]))[classes.group_of]
    least: FloatArray = np.where(may_run, arrays.seconds[:, cpus], np.inf).min(axis=1)
    return least
