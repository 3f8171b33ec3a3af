"""Parts as problems of their own, whose constraint programs bound the part inside any graph.

A part keeps the articulation units at both ends, each pinned to its device, the units between them,
and the tensors that these make for each other. The first end takes no time, since a part is counted
from its end. Inputs from before are there at once; in the first part graph inputs come from the
host, in the last part graph outputs go there. Memory, overheads and contention are left out.

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
of a transformer repeat one part, and identical devices may be exchanged.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import BoolArray, IntArray, frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.core.replicas import alike_devices
from placewright.simulation.layout import problem_arrays

Pair = tuple[int, int]
_MOST_COMPARED = 1000  # parts; comparing one takes a millisecond or two


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
    in_order = np.zeros(built.n_tensors, dtype=np.bool_)
    for tensor, whole in enumerate(behind):
        readers = np.array(kept)[built.tensor_consumers.row(tensor)]
        first = graph.tensor_consumers.row(whole)[: len(readers)]
        in_order[tensor] = np.array_equal(readers, first)
    return Part(alone, in_order)


def _bare(cluster: Cluster) -> Cluster:
    """The cluster without limits, overheads and contention."""
    devices = tuple(
        replace(
            device,
            dispatch_seconds=0.0,
            cut_seconds=0.0,
            cut_seconds_per_byte=0.0,
            layout_seconds=0.0,
            layout_seconds_per_byte=0.0,
            memory_domain=None,
        )
        for device in cluster.without_memory_limits.without_segment_limits.devices
    )
    return replace(cluster, devices=devices, contention={}, pools={})


class Twins:
    """Equal parts, and pairs of devices (before, after) that identical devices make equal."""

    def __init__(self, problem: Problem, cuts: IntArray, parts: list[IntArray]) -> None:
        """Compare the parts that have several units, unless there are too many.

        Args:
            problem: the whole, of execution model `event`.
            cuts: articulation units in topological order, shape (n_parts - 1,).
            parts: units of each part in topological order, the later articulation unit last.
        """
        self._n_parts = len(parts)
        self._pool = alike_devices(problem).group_of
        self._first = list(range(len(parts)))
        compared = [at for at, units in enumerate(parts) if len(units) > 1]
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
    allowed = problem.allowed_by_class[problem.colocation.group_of]
    ends = [] if before is None else [before]
    cut = None if before is None else (before, int(allowed[before].argmax()))
    after = None
    if not is_last:
        ends.append(int(units[-1]))
        after = int(allowed[units[-1]].argmax())
    part = part_problem(problem, units, cut, after)
    arrays = problem_arrays(part.problem)
    digest = hashlib.sha256(repr((before is None, is_last)).encode())
    for array in (allowed[ends], part.in_order, *arrays):
        digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(b";")
    return digest.digest()
