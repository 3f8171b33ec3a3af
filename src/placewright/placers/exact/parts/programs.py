"""The constraint programs of parts between articulation units, and their bounds and solutions.

A part and the devices of its two ends make a problem of its own. It keeps the articulation units at
both ends, each pinned to its device, the units between them, and the tensors that these make for
each other. The first end takes no time, since a part is counted from its end. Inputs from before
are there at once; in the first part graph inputs come from the host, in the last part graph outputs
go there. Memory, overheads and contention are left out.

Proof that the least makespan over all placements, orders and orders of transfers is a bound: take
any schedule of the whole with the ends on these devices, and of it the units of the part and the
transfers of the tensors that are kept. They lie between the end of the first unit and the end of
the last one, run on the same streams, processors and channels one at a time, and take as long or
longer. What is shorter in the problem of the part can be shortened where it is. Transfers that are
kept leave in the order in which they came, whatever else is on their channel, and the first readers
of a tensor are the same where `Part.in_order` says so. `schedule_program.transfers` shows that the
program has a solution with these times rounded down, which is no longer than the part of the
schedule.

`Twins` finds parts and pairs of devices that share a program, so that it is solved once: the layers
of a transformer repeat one part, and identical devices may be exchanged. The bounds of the programs
go into a table, from which a dynamic program takes the cheapest devices of all articulation units.

A search by parts raises the bounds. The dynamic program of `parts.bound` finds the cheapest devices
of the articulation units for the present bounds of all parts and pairs of devices. Only the pairs
that it chose can raise the sum, so that only they are solved. This repeats until all chosen pairs
are solved or the time is up. A program that is not solved to its end gives its own bound, and gets
more time when it is chosen again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray, frozen_floats, positions_in
from placewright.core.builder import GraphBuilder
from placewright.core.charges import CHARGED
from placewright.core.cluster import Cluster
from placewright.core.costs import CostTable
from placewright.core.execution_models import Event
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.core.replicas import alike_devices
from placewright.placers.exact.parts.bound import (
    articulation_units,
    is_too_large,
    least_of_parts,
    least_sum,
    parts_bound,
)
from placewright.placers.exact.schedule_program.model import (
    ScheduleProgram,
    add_implied,
    limit_work,
    new_solver,
)
from placewright.placers.exact.schedule_program.transfers import Ticks
from placewright.placers.repair import repaired
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.interruptible import interruptible
from placewright.simulation.layout import problem_arrays

Pair = tuple[int, int]
_MOST_COMPARED = 1000  # parts; comparing one takes a millisecond or two
_MOST_UNITS = 300  # larger parts are not solved


@dataclass(frozen=True)
class Part:
    """A part as a problem of its own."""

    problem: Problem  # its units are the earlier articulation unit, if any, then those of the part
    # tensors whose first readers in the whole are those in the part, in the same order, shape
    # (n_tensors,)
    in_order: BoolArray


def part_problem(
    problem: Problem, units: IntArray, before: tuple[int, int] | None, after: int | None
) -> Part:
    """Build the problem of one part.

    Args:
        problem: the whole, of execution model `event`.
        units: of the part in topological order, the later articulation unit last where there is
            one, shape (n,).
        before: the earlier articulation unit and its device; None in the first part.
        after: device of the last unit; None in the last part.
    """
    graph = problem.unit_graph
    kept = ([] if before is None else [before[0]]) + units.tolist()
    number = {unit: at for at, unit in enumerate(kept)}
    builder, tensors, behind = GraphBuilder(), dict[int, int](), list[int]()
    for unit in kept:
        read = graph.op_inputs.row(unit).tolist() if before is None or unit != before[0] else []
        for tensor in read:
            if before is None and graph.tensor_producers[tensor] < 0 and tensor not in tensors:
                tensors[tensor] = builder.add_input(float(graph.tensor_bytes[tensor]))
                behind.append(tensor)
        op = builder.add_op(
            str(unit),
            "Op",
            inputs=[tensors[tensor] for tensor in read if tensor in tensors],
            colocation=int(problem.colocation.group_of[unit]),
        )
        for tensor in graph.op_outputs.row(unit).tolist():
            goes_home = after is None and bool(graph.tensor_is_output[tensor])
            readers = graph.tensor_consumers.row(tensor).tolist()
            if goes_home or any(reader in number for reader in readers):
                tensors[tensor] = builder.add_tensor(
                    op, float(graph.tensor_bytes[tensor]), is_output=goes_home
                )
                behind.append(tensor)
    allowed = problem.allowed_by_class[problem.colocation.group_of[kept]]
    seconds = np.where(allowed, problem.costs.seconds[kept], math.inf)
    pins = {}
    if before is not None:
        seconds[0], pins[0] = 0.0, before[1]
    if after is not None:
        pins[len(kept) - 1] = after
    own = problem.unit_transfer_seconds
    built = builder.build()
    alone = Problem(
        built,
        _bare(problem.cluster),
        CostTable(frozen_floats(seconds)),
        Grouping.identity(len(kept)),
        pins=pins,
        transfer_seconds=None if own is None else frozen_floats(own[behind]),
    )
    in_order, units_kept = np.zeros(built.n_tensors, dtype=np.bool_), np.array(kept)
    for tensor, whole in enumerate(behind):
        readers = units_kept[built.tensor_consumers.row(tensor)]
        first = graph.tensor_consumers.row(whole)[: len(readers)]
        in_order[tensor] = np.array_equal(readers, first)
    return Part(alone, in_order)


def _bare(cluster: Cluster) -> Cluster:
    """The cluster without limits, overheads and contention."""
    plain = cluster.without_overheads.without_memory_limits.without_segment_limits
    return replace(plain, devices=tuple(replace(x, memory_domain=None) for x in plain.devices))


class Twins:
    """Equal parts, and pairs of devices (before, after) that identical devices make equal."""

    def __init__(self, problem: Problem, cuts: IntArray, parts: list[IntArray]) -> None:
        """Compare the parts of several units that may be solved, unless there are too many.

        Args:
            problem: the whole, of execution model `event`.
            cuts: articulation units in topological order, shape (n_parts - 1,).
            parts: units of each part in topological order, the later articulation unit last.
        """
        self._n_parts = len(parts)
        self._pool = alike_devices(problem).group_of
        self._first = list(range(len(parts)))
        compared = [at for at, units in enumerate(parts) if 1 < len(units) <= _MOST_UNITS]
        if len(compared) <= _MOST_COMPARED:
            firsts: dict[bytes, int] = {}
            for at in compared:
                before = None if at == 0 else int(cuts[at - 1])
                content = _content(problem, parts[at], before, at == len(parts) - 1)
                self._first[at] = firsts.setdefault(content, at)
        self._alike: dict[int, list[int]] = {}
        for at, first in enumerate(self._first):
            self._alike.setdefault(first, []).append(at)

    def program(self, part: int, pair: Pair) -> tuple[int, Pair]:
        """Part and pair whose program represents this part and pair."""
        return self._first[part], self._standing(part, pair)

    def alike(self, part: int, pair: Pair) -> list[tuple[int, Pair]]:
        """All parts and pairs that share the program of this one."""
        befores = [0] if part == 0 else self._members(pair[0])
        afters = [0] if self._is_last(part) else self._members(pair[1])
        standing = self._standing(part, pair)
        pairs = [(before, after) for before in befores for after in afters]
        pairs = [candidate for candidate in pairs if self._standing(part, candidate) == standing]
        return [
            (other, candidate) for other in self._alike[self._first[part]] for candidate in pairs
        ]

    def exchanged(self, device_of: IntArray, part: int, pair: Pair) -> IntArray:
        """Devices of a solution of `program(part, pair)`, exchanged to fit the pair."""
        image = np.arange(len(self._pool))
        has_end = (part > 0, not self._is_last(part))
        for is_end, device, wanted in zip(has_end, self._standing(part, pair), pair, strict=True):
            if is_end:
                at = int(np.flatnonzero(image == wanted)[0])
                image[[device, at]] = image[[at, device]]
        return np.asarray(image[device_of])

    def _standing(self, part: int, pair: Pair) -> Pair:
        before = 0 if part == 0 else self._members(pair[0])[0]
        if self._is_last(part):
            return before, 0
        members = self._members(pair[1])
        is_other = part > 0 and self._pool[pair[0]] == self._pool[pair[1]] and pair[0] != pair[1]
        return before, members[1] if is_other else members[0]

    def _members(self, device: int) -> list[int]:
        return [int(member) for member in np.flatnonzero(self._pool == self._pool[device])]

    def _is_last(self, part: int) -> bool:
        return part == self._n_parts - 1


def _content(problem: Problem, units: IntArray, before: int | None, is_last: bool) -> bytes:
    """All inputs of a part's program as bytes, units and tensors in the order of the part."""
    ends = [] if before is None else [before]
    if not is_last:
        ends.append(int(units[-1]))
    allowed = problem.allowed_by_class[problem.colocation.group_of[ends]]
    devices = allowed.argmax(axis=1).tolist()
    cut = None if before is None else (before, devices[0])
    after = None if is_last else devices[-1]
    part = part_problem(problem, units, cut, after)
    arrays = problem_arrays(part.problem)
    digest = hashlib.sha256(repr((before is None, is_last)).encode())
    for array in (allowed, part.in_order, *arrays):
        digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(b";")
    return digest.digest()


_TICKS = 10**7  # per horizon of a part
_FIRST_SECONDS = 1.0  # limit of the first run of a program


@dataclass
class Known:
    """Bound and best schedule of one part with one pair of devices."""

    bound: float
    is_solved: bool = False
    seconds: float = _FIRST_SECONDS
    tries: int = 0
    value: float = math.inf
    device_of: IntArray | None = None
    start: FloatArray | None = None


def part_programs(problem: Problem) -> PartPrograms | None:
    """Programs of the parts; None without articulation units, or if the table is too large.

    Args:
        problem: another execution model than `event` has none.
    """
    if not isinstance(problem.execution_model, Event) or is_too_large(problem):
        return None
    cuts = articulation_units(problem)
    return PartPrograms(problem, cuts) if len(cuts) else None


class PartPrograms:
    """All parts of a problem with all pairs of devices at their ends."""

    def __init__(self, problem: Problem, cuts: IntArray) -> None:
        self.problem, self.cuts = problem, cuts
        order = problem.unit_graph.topological_order
        self._position = positions_in(order)
        self._stops = [*(self._position[cuts] + 1).tolist(), problem.n_units]
        self._firsts = [0, *self._stops[:-1]]
        self._order = order
        self._least = least_of_parts(problem)  # (n_parts, before, after)
        self._twins = Twins(problem, cuts, [self._units(at) for at in range(len(self._stops))])
        self._known: dict[tuple[int, Pair], Known] = {}

    def cheapest(self) -> tuple[float, list[tuple[int, int]]]:
        """The least sum of bounds, and its devices before and after each part (0 for none)."""
        return least_sum(self._least)

    def known(self, part: int, pair: Pair) -> Known:
        """Bound and best schedule of a part with a pair of devices, shared by its twins."""
        key = self._twins.program(part, pair)
        if key not in self._known:
            self._known[key] = self._at_first(*key)
        return self._known[key]

    def solve(
        self,
        part: int,
        pair: Pair,
        seconds: float,
        threads: int,
        repeats: bool,
        is_over: Callable[[], bool],
    ) -> bool:
        """Solve a program for some seconds; its bound holds for all twins.

        Args:
            part, pair: whose program.
            seconds: at most.
            repeats: seconds are the solver's own measure of work.
            is_over: asked while the solver runs.

        Returns:
            Whether it has a better schedule now.
        """
        known = self.known(part, pair)
        first, (before, after) = self._twins.program(part, pair)
        cut = None if first == 0 else (int(self.cuts[first - 1]), before)
        whole = part_problem(
            self.problem, self._units(first), cut, None if self._is_last(first) else after
        )
        solver = _solver(seconds, threads, repeats)
        solver.parameters.random_seed = known.tries
        before_value = known.value
        _solve(whole, known, solver, 0 if cut is None else 1, is_over)
        known.seconds *= 4.0
        known.tries += 1
        for other, (before, after) in self._twins.alike(part, pair):
            least = self._least[other, before, after]
            self._least[other, before, after] = max(least, known.bound)
        return known.value < before_value

    def together(self, chosen: list[Pair]) -> tuple[IntArray, IntArray] | None:
        """Placement and order from the solutions of the parts; None if a part has none."""
        device_of = np.full(self.problem.n_units, -1, dtype=np.int64)
        start = np.zeros(self.problem.n_units)
        for part, pair in enumerate(chosen):
            known, units = self.known(part, pair), self._units(part)
            if known.device_of is None or known.start is None:
                return None
            device_of[units] = self._twins.exchanged(known.device_of, part, pair)
            start[units] = known.start
        part_of = np.searchsorted(np.array(self._stops), self._position, side="right")
        order = np.lexsort((self._position, start, part_of)).astype(np.int64)
        return device_of, order

    def size(self, part: int) -> int:
        """Number of units of a part, with its later articulation unit."""
        return int(self._stops[part] - self._firsts[part])

    def _units(self, part: int) -> IntArray:
        return np.asarray(self._order[self._firsts[part] : self._stops[part]])

    def _at_first(self, part: int, pair: Pair) -> Known:
        """Enter the single units between two others, beside which nothing runs, as solved.

        Nor is there anything to solve where the table says that no placement has this pair.
        """
        known, units = Known(float(self._least[(part, *pair)])), self._units(part)
        if math.isinf(known.bound):
            known.is_solved = True
            return known
        if len(units) == 0 or self._is_single(part, units):
            known.is_solved = True
            known.device_of, known.start = np.full(len(units), pair[1]), np.zeros(len(units))
        return known

    def _is_single(self, part: int, units: IntArray) -> bool:
        if len(units) > 1 or part == 0 or self._is_last(part):
            return False
        graph = self.problem.unit_graph
        made = graph.op_outputs.row(int(self.cuts[part - 1]))
        read = np.isin(made, graph.op_inputs.row(int(units[0])))
        return int(read.sum()) <= 1  # several tensors wait for each other on their way

    def _is_last(self, part: int) -> bool:
        return part == len(self._stops) - 1


def _solver(seconds: float, threads: int, deterministic: bool) -> Any:
    solver = new_solver()
    solver.parameters.num_workers = threads
    if deterministic:
        limit_work(solver, seconds)
    else:
        solver.parameters.max_time_in_seconds = max(0.01, seconds)
    return solver


def _solve(
    part: Part, known: Known, solver: Any, n_before: int, is_over: Callable[[], bool]
) -> None:
    """Solve the program of the part; store its bound and its best schedule."""
    from ortools.sat.python import cp_model

    horizon = _in_turn(part.problem)
    ticks = Ticks(horizon / _TICKS if horizon > 0 else 1.0)
    program = ScheduleProgram(part.problem, ticks, ticks.up(horizon) + 1, part.in_order)
    add_implied(program)
    if known.device_of is not None:
        _hint(program, known, n_before)
    program.model.add(program.makespan >= ticks.down(known.bound * (1.0 - 1e-9)))
    solver.parameters.catch_sigint_signal = False  # the interpreter handles Ctrl-C
    status = interruptible(
        lambda: solver.solve(program.model), stop=solver.stop_search, is_over=is_over
    )
    assert status != cp_model.MODEL_INVALID, program.model.validate()
    if status == cp_model.INFEASIBLE:
        known.bound, known.is_solved = math.inf, True
        return
    proven = max(0.0, solver.best_objective_bound) * ticks.seconds * (1.0 - 1e-9)
    known.bound = max(known.bound, proven)
    known.is_solved = status == cp_model.OPTIMAL
    value = solver.objective_value * ticks.seconds
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) and value < known.value:
        device_of, _ = program.decoded(solver.value)
        starts = np.array([solver.value(variable) for variable in program.start], dtype=np.float64)
        known.value, known.device_of, known.start = value, device_of[n_before:], starts[n_before:]


def _hint(program: ScheduleProgram, known: Known, n_before: int) -> None:
    """Start from the best known schedule, in ticks of the same program."""
    assert known.device_of is not None
    assert known.start is not None
    for variable, start in zip(program.start[n_before:], known.start, strict=True):
        program.model.add_hint(variable, int(start))
    # Each class once: a model with two hints of one variable is invalid.
    groups = program.group_of[n_before:].tolist()
    for group, device in dict(zip(groups, known.device_of.tolist(), strict=True)).items():
        for other, literal in program.x[group].items():
            program.model.add_hint(literal, other == device)


def _in_turn(part: Problem) -> float:
    """An upper bound on schedules of the part: everything waits for everything, seconds."""
    seconds = part.costs.seconds
    work = float(np.where(np.isfinite(seconds), seconds, 0.0).max(axis=1).sum())
    cluster, sizes = part.cluster, part.graph.tensor_bytes
    linked = cluster.link_channel >= 0
    latency = float(np.max(cluster.link_latency, initial=0.0, where=linked))
    per_byte = float(np.max(cluster.link_seconds_per_byte, initial=0.0, where=linked))
    hops = latency + sizes * per_byte
    if part.transfer_seconds is not None:
        hops = part.transfer_seconds
    return work + 2.0 * part.n_devices * float(np.sum(hops))


_METHOD = "parts"
_WORK = 4.0  # limit in the solver's own measure, if the budget has none
_KEPT = 0.98  # share of the seconds, which leaves time to evaluate the last placement


def search_parts(problem: Problem, evaluator: Evaluator, parts: PartPrograms | None) -> None:
    """Offer the bounds of parts; evaluate the combined solutions, with and without the order.

    The bounds are seconds, so that nothing is done if energy or price is minimised. Without a limit
    in seconds the solver's own measure of work ends it, so that the answer repeats.

    Args:
        parts: programs of the parts, which store results; None if there are none.
    """
    if problem.objective in CHARGED:
        return
    if parts is None:
        evaluator.offer_bound(parts_bound(problem), _METHOD)
        return
    evaluator.offer_bound(parts.cheapest()[0] * (1.0 - 1e-9), _METHOD)
    if evaluator.is_closed or evaluator.remaining_seconds <= 0:
        return
    ends = evaluator.seconds + _KEPT * evaluator.remaining_seconds
    has_clock = math.isfinite(evaluator.remaining_seconds)

    def try_placement(device_of: IntArray, order: IntArray) -> None:
        device_of = repaired(problem, device_of)
        evaluator.evaluate(device_of, order)
        evaluator.evaluate(device_of)

    solve_parts(
        parts,
        lambda: ends - evaluator.seconds if has_clock else _WORK,
        deterministic=not has_clock,
        on_bound=lambda bound: evaluator.offer_bound(bound, _METHOD),
        on_placement=try_placement,
        is_over=lambda: evaluator.is_closed or (has_clock and evaluator.is_spent),
    )


@dataclass(frozen=True)
class PartsFound:
    """Bound and combined solution after the time, or after all chosen pairs were solved."""

    bound: float  # of the value of the whole, in seconds
    is_solved: bool  # the bound is the least sum of solved programs
    # a placement made of the parts' solutions, (n_units,); None if one has none
    device_of: IntArray | None
    order: IntArray | None  # all units by their starts in the parts, (n_units,)


def solve_parts(
    parts: PartPrograms,
    remaining: Callable[[], float],
    *,
    deterministic: bool = False,
    on_bound: Callable[[float], None] = lambda bound: None,
    on_placement: Callable[[IntArray, IntArray], None] = lambda device_of, order: None,
    is_over: Callable[[], bool] = lambda: False,
) -> PartsFound:
    """Solve the pairs that limit the bound until the time is up; a second call continues.

    Args:
        parts: programs, and what is known of them.
        remaining: seconds left, asked between programs.
        deterministic: count the solver's own measure of work as seconds, with one thread.
        on_bound: called with each bound of the whole, larger each time.
        on_placement: called with each new placement and order that the parts' solutions make.
        is_over: asked, also within a program, whether to end at once.
    """
    threads, best, spent = 1 if deterministic else 2, 0.0, 0.0
    reported: list[Pair] | None = None
    while True:
        total, chosen = parts.cheapest()
        if total * (1.0 - 1e-9) > best:
            best = total * (1.0 - 1e-9)
            on_bound(best)
        made = parts.together(chosen)
        if made is not None and chosen != reported:
            on_placement(*made)
            reported = chosen
        open_ones = [at for at in enumerate(chosen) if not parts.known(*at).is_solved]
        small = [entry for entry in open_ones if parts.size(entry[0]) <= _MOST_UNITS]
        left = remaining() - spent
        if not small or left <= 0 or is_over():
            return PartsFound(best, not open_ones, *(made or (None, None)))
        # The least time first: easy parts are solved before hard ones are tried again.
        at = min(small, key=lambda entry: (parts.known(*entry).seconds, entry[0]))
        seconds = min(left, parts.known(*at).seconds)
        if parts.solve(*at, seconds, threads, deterministic, is_over):
            reported = None
        spent += seconds if deterministic else 0.0
