"""Transfers of the constraint program: when a tensor leaves, over which channels, in which order.

Channels serve first come, first served: two transfers leave in the order of the times at which they
were queued, which is the end of the producer, or the arrival at the host. The outputs of one op are
queued tensor by tensor, and each tensor in the order of its readers. If other transfers are queued
in the same tick, either may be first.

Proof that this holds for a schedule whose times are rounded down, so that bounds stay bounds. Take
any schedule of the event model and let every unit and every transfer of the program end at
E = floor(its end) and begin at E - floor(its ticks), which is no sooner than floor(its start). What
begins after something ended does so in the program, too, and what is queued sooner is queued no
later. Overheads, contention, and transfers that the program leaves out only lengthen what is real.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from placewright.core.arrays import BoolArray
from placewright.core.problem import Problem
from placewright.simulation.layout import (
    DIRECT,
    VIA_HOST,
    ProblemArrays,
    link_seconds,
    problem_arrays,
)

_MOST_PAIRS = 6000  # of transfers on one channel; a pair takes a literal and four rows


def add_transfers(program: Variables) -> None:
    """Send every tensor once to each endpoint that needs it and does not have it."""
    arrays, graph = program.arrays, program.problem.unit_graph
    for tensor in range(graph.n_tensors):
        producer = int(arrays.producer[tensor])
        consumers = graph.tensor_consumers.row(tensor).tolist()
        if producer >= 0:
            own = program.group_of[producer]
            consumers = [unit for unit in consumers if program.group_of[unit] != own]
        for target in range(arrays.route.shape[0]):
            is_wanted = target == arrays.host and arrays.is_output[tensor] and producer >= 0
            readers = [unit for unit in consumers if program.on(unit, target) is not None]
            if readers or is_wanted:
                _Delivery(program, tensor, target, readers, bool(is_wanted)).add()


class _Delivery:
    """The transfer of one tensor to one endpoint, from wherever it is made."""

    def __init__(
        self,
        program: Variables,
        tensor: int,
        target: int,
        readers: list[int],
        is_wanted: bool,
    ) -> None:
        self._program, self._tensor, self._target = program, tensor, target
        self._readers, self._is_wanted = readers, is_wanted
        self._producer = int(program.arrays.producer[tensor])
        self._leaves: Any = None
        self._goes_on: Any = None

    def add(self) -> None:
        """Add one case for each place where the tensor can be made."""
        arrays = self._program.arrays
        if self._producer < 0:
            if arrays.host != self._target:
                self._from(arrays.host, None)
            return
        literals = self._program.x[int(self._program.group_of[self._producer])]
        for source, made_there in literals.items():
            if source != self._target:
                self._from(source, made_there)

    def _from(self, source: int, made_there: Any) -> None:
        """Add the case of a tensor that is made at `source`; `made_there` is None if it always is.

        The transfer takes place where the tensor is made there and is wanted here.
        """
        program, route = self._program, self._program.arrays.route[source, self._target]
        literals = [] if made_there is None else [made_there]
        if route not in (DIRECT, VIA_HOST):
            for case in self._cases(literals):
                program.model.add_bool_or([literal.negated() for literal in case])
            return
        is_sent = self._is_sent(literals)
        if route == DIRECT:
            arrival = self._hop(source, self._target, self._made(), self._leaving(), is_sent)
        else:
            host = program.arrays.host
            at_host = self._hop(source, host, self._made(), self._leaving(), is_sent)
            if self._goes_on is None:
                self._goes_on = program.time()
            program.model.add(self._goes_on >= at_host).only_enforce_if(is_sent)
            arrival = self._hop(host, self._target, at_host, self._goes_on, is_sent, True)
        for unit in self._readers:
            case = [*literals, program.on(unit, self._target)]
            program.model.add(program.start[unit] >= arrival).only_enforce_if(case)
        if self._is_wanted:
            program.model.add(program.makespan >= arrival).only_enforce_if(literals)

    def _cases(self, literal_list: list[Any]) -> list[list[Any]]:
        """Conjunctions of literals, each of which requires the transfer."""
        if self._is_wanted:
            return [literal_list]
        classes = sorted({int(self._program.group_of[unit]) for unit in self._readers})
        return [[*literal_list, self._program.x[group][self._target]] for group in classes]

    def _is_sent(self, literals: list[Any]) -> Any:
        cases = self._cases(literals)
        if len(cases) == 1 and len(cases[0]) == 1:
            return cases[0][0]
        is_sent = self._program.literal()
        for case in cases:
            self._program.model.add_bool_or([*(literal.negated() for literal in case), is_sent])
        return is_sent

    def _made(self) -> Any:
        """Tick when the tensor exists: the end of its producer; 0 for a graph input."""
        return self._program.end[self._producer] if self._producer >= 0 else 0

    def _leaving(self) -> Any:
        """Tick when the transfer begins: not before its producer has ended."""
        if self._leaves is None:
            self._leaves = self._program.time()
            if self._producer >= 0:
                self._program.model.add(self._leaves >= self._program.end[self._producer])
        return self._leaves

    def _hop(
        self,
        source: int,
        target: int,
        queued: Any,
        start: Any,
        is_sent: Any,
        is_passed_on: bool = False,
    ) -> Any:
        """Wait from `queued`, occupy a channel from `start`; the arrival."""
        program, arrays = self._program, self._program.arrays
        size = program.ticks.down(link_seconds(arrays, self._tensor, source, target))
        if size > 0 and arrays.queues[source, target]:
            made = (self._producer, self._tensor, self._target)
            transfer = ChannelUse(queued, start, size, is_sent, *made, is_passed_on)
            channel = int(arrays.channel[source, target])
            program.channels.setdefault(channel, []).append(transfer)
        return start + size


def serve_in_turn(
    program: Variables, transfers: Sequence[ChannelUse], in_order: BoolArray | None
) -> None:
    """Order the transfers of one channel, unless there are too many.

    Args:
        in_order: tensors whose readers are in the order in which the model looks at them, shape
            (n_tensors,); None for all.
    """
    count = len(transfers)
    if count * (count - 1) // 2 > _MOST_PAIRS:
        return
    above = _ancestors(program)
    for at, one in enumerate(transfers):
        for other in transfers[:at]:
            if _is_instead(one, other):
                continue
            if _is_above(above, one, other) or _is_made_before(program, one, other):
                _follows(program, one, other, [])
            elif _is_above(above, other, one) or _is_made_before(program, other, one):
                _follows(program, other, one, [])
            else:
                is_first = program.literal()
                _follows(program, one, other, [is_first])
                _follows(program, other, one, [is_first.negated()])
                if in_order is None or in_order[one.tensor]:
                    _read_in_turn(program, one, other, is_first)


def _follows(program: Variables, first: ChannelUse, second: ChannelUse, case: list[Any]) -> None:
    """Require that `first` leaves before `second` if both are sent, and was queued no later."""
    literals = [first.is_sent, second.is_sent, *case]
    program.model.add(second.start >= first.start + first.size).only_enforce_if(literals)
    if case and not (isinstance(first.queued, int) and isinstance(second.queued, int)):
        program.model.add(first.queued <= second.queued).only_enforce_if(literals)


def _is_instead(one: ChannelUse, other: ChannelUse) -> bool:
    """True if two devices may make a tensor, and both hops would bring it to the same endpoint.

    At most one of the two is sent, so that there is no order between them. Their readers are the
    same: who is first among these says nothing, and would keep all of them off that endpoint.
    """
    mine = (one.tensor, one.target, one.is_passed_on)
    return mine == (other.tensor, other.target, other.is_passed_on)


def _is_above(above: list[int], first: ChannelUse, second: ChannelUse) -> bool:
    """True if `first` is queued before the op that makes the tensor of `second` begins."""
    if first.is_passed_on or second.is_passed_on or first.producer < 0 or second.producer < 0:
        return False
    return bool(above[second.producer] >> first.producer & 1)


def _is_made_before(program: Variables, first: ChannelUse, second: ChannelUse) -> bool:
    """True if one op makes both tensors, and emits that of `first` before the other."""
    if first.is_passed_on or second.is_passed_on or first.tensor == second.tensor:
        return False
    if first.producer < 0 or first.producer != second.producer:
        return False
    made = program.problem.unit_graph.op_outputs.row(first.producer).tolist()
    return bool(made.index(first.tensor) < made.index(second.tensor))


def _read_in_turn(program: Variables, one: ChannelUse, other: ChannelUse, is_first: Any) -> None:
    """A tensor for two endpoints goes first to the endpoint of its first reader."""
    arrays = program.arrays
    if one.tensor != other.tensor or one.is_passed_on or other.is_passed_on:
        return
    if arrays.is_output[one.tensor] and arrays.host in (one.target, other.target):
        return  # a graph output goes to the host after its readers, if none of these is there
    none_before: list[Any] = []
    for reader in program.problem.unit_graph.tensor_consumers.row(one.tensor).tolist():
        at_one, at_other = program.on(reader, one.target), program.on(reader, other.target)
        if at_one is not None:
            program.model.add_bool_and([is_first]).only_enforce_if([at_one, *none_before])
        if at_other is not None:
            case = [at_other, *none_before]
            program.model.add_bool_and([is_first.negated()]).only_enforce_if(case)
        none_before += [at.negated() for at in (at_one, at_other) if at is not None]


def _ancestors(program: Variables) -> list[int]:
    """Ancestors of each unit, as the bits of a number."""
    graph, above = program.problem.unit_graph, [0] * program.problem.n_units
    for unit in program.arrays.topological.tolist():
        for before in graph.predecessors.row(unit).tolist():
            above[unit] |= above[before] | 1 << before
    return above


_ROUNDING = 1e-12  # relative error of a product of two doubles, with a margin


@dataclass(frozen=True)
class ChannelUse:
    """The transfer of one tensor on one channel."""

    queued: Any  # ticks at which it may leave at the soonest
    start: Any  # ticks at which it leaves
    size: int  # ticks that it takes
    is_sent: Any  # literal, true where it takes place
    producer: int  # unit that makes the tensor; -1 of a graph input
    tensor: int  # that is sent
    target: int  # endpoint that it is sent to, maybe through the host
    is_passed_on: bool  # it was queued when it arrived at the host, not when it was made


class Variables:
    """The variables of one problem, with a literal for each class on each device it may use.

    Attributes:
        model: an ``ortools.sat.python.cp_model.CpModel``.
        x: literal of each colocation class on each device that may run it.
        start, end: of each unit, in ticks.
        makespan: what is minimised, in ticks.
        channels: transfers on each channel that makes them wait.
    """

    def __init__(self, problem: Problem, ticks: Ticks, horizon: int) -> None:
        from ortools.sat.python import cp_model

        self.problem = problem
        self.arrays: ProblemArrays = problem_arrays(problem)
        # What exceeds the horizon cannot be part of a schedule; the solver refuses large numbers.
        self.ticks = replace(ticks, most=horizon + 1)
        self.horizon = horizon
        self.model: Any = cp_model.CpModel()
        self.group_of = problem.colocation.group_of
        self.channels: dict[int, list[ChannelUse]] = {}
        self.x = self._assigned()
        self.start = [self.time() for _ in range(problem.n_units)]
        self.end = [self.time() for _ in range(problem.n_units)]
        self.makespan = self.time()

    def time(self) -> Any:
        """Create a point in time."""
        return self.model.new_int_var(0, self.horizon, "")

    def literal(self) -> Any:
        """Create a Boolean variable."""
        return self.model.new_bool_var("")

    def on(self, unit: int, device: int) -> Any | None:
        """The literal of a unit on a device; None if it may not run there."""
        return self.x[int(self.group_of[unit])].get(device)

    def _assigned(self) -> list[dict[int, Any]]:
        x: list[dict[int, Any]] = []
        for allowed in self.problem.allowed_by_class:
            row = {int(device): self.literal() for device in np.flatnonzero(allowed)}
            self.model.add_exactly_one(row.values())
            x.append(row)
        return x


@dataclass(frozen=True)
class Ticks:
    """The unit of time: seconds become integers, rounded down so that bounds stay bounds."""

    seconds: float  # of one tick, > 0
    most: float = math.inf  # ticks; longer durations count as so many

    def down(self, seconds: float) -> int:
        """Largest number of whole ticks within a duration."""
        return max(0, math.floor(min(seconds / self.seconds * (1.0 - _ROUNDING), self.most)))

    def up(self, seconds: float) -> int:
        """Smallest number of whole ticks that a duration fits into."""
        return math.ceil(seconds / self.seconds * (1.0 + _ROUNDING))
