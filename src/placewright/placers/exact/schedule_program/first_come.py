"""First come, first served: who waits for a channel leaves in the order in which they came.

Two transfers on one channel leave in the order of the times at which they were queued: the end of
the op that made the tensor, or the arrival at the host. What one op makes is queued tensor by
tensor, and each tensor in the order of its readers. Where else two come at the same tick, either
may be first.

Proof that this holds for a schedule whose times are rounded down, so that bounds stay bounds. Take
any schedule of the event model and let every unit and every transfer of the program end at
E = floor(its end) and begin at E - floor(its ticks), which is no sooner than floor(its start). What
begins after something ended does so in the program, too, and what is queued sooner is queued no
later. Overheads, contention, and transfers that the program leaves out only lengthen what is real.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from placewright.core.arrays import BoolArray
from placewright.placers.exact.schedule_program.variables import ChannelUse, Variables

_MOST_PAIRS = 6000  # of transfers on one channel: each is a literal and four rows


def serve_in_turn(
    program: Variables, transfers: Sequence[ChannelUse], in_order: BoolArray | None
) -> None:
    """Add the order of the transfers of one channel, where there are not too many.

    Args:
        program: to which rows are added.
        transfers: of the channel.
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
    """`first` leaves before `second`, and came no later, in a case and where both are sent."""
    given = [first.is_sent, second.is_sent, *case]
    program.model.add(second.start >= first.start + first.size).only_enforce_if(given)
    if case and not (isinstance(first.queued, int) and isinstance(second.queued, int)):
        program.model.add(first.queued <= second.queued).only_enforce_if(given)


def _is_instead(one: ChannelUse, other: ChannelUse) -> bool:
    """The same hop of one tensor to one endpoint, from two devices of which one makes it.

    At most one of the two is sent, so that there is no order between them. Their readers are the
    same: who is first among these says nothing, and would keep all of them off that endpoint.
    """
    mine = (one.tensor, one.target, one.is_passed_on)
    return mine == (other.tensor, other.target, other.is_passed_on)


def _is_above(above: list[int], first: ChannelUse, second: ChannelUse) -> bool:
    """`first` is queued before the op that makes the tensor of `second` begins."""
    if first.is_passed_on or second.is_passed_on or first.producer < 0 or second.producer < 0:
        return False
    return bool(above[second.producer] >> first.producer & 1)


def _is_made_before(program: Variables, first: ChannelUse, second: ChannelUse) -> bool:
    """Both tensors are made by one op, which hands out that of `first` before the other."""
    if first.is_passed_on or second.is_passed_on or first.tensor == second.tensor:
        return False
    if first.producer < 0 or first.producer != second.producer:
        return False
    made = program.problem.unit_graph.op_outputs.row(first.producer).tolist()
    return bool(made.index(first.tensor) < made.index(second.tensor))


def _read_in_turn(program: Variables, one: ChannelUse, other: ChannelUse, is_first: Any) -> None:
    """One tensor to two endpoints goes first to that of its first reader on either."""
    arrays = program.arrays
    if one.tensor != other.tensor or one.is_passed_on or other.is_passed_on:
        return
    if arrays.is_output[one.tensor] and arrays.host in (one.target, other.target):
        return  # a graph output goes home after its readers, where none of these is at home
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
