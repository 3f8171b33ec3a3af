"""A part as a problem of its own, whose constraint program bounds the part inside any whole.

Kept are the articulation units at both ends, each pinned to its device, the units between them, and
the tensors that these make for each other. The first end takes no time, since a part is counted
from its end. Inputs from before are there at once; in the first part graph inputs come from the
host, in the last part graph outputs go there. Memory, overheads and contention are left out.

Proof that the least makespan over all placements, orders and orders of transfers is a bound: take
any schedule of the whole with the ends on these devices, and of it the units of the part and the
transfers of the tensors that are kept. They lie between the end of the first unit and the end of
the last one, run on the same streams and channels one at a time, and take as long or longer. What
is shorter in the problem of the part can be shortened where it is. Transfers that are kept leave in
the order in which they came, whatever else is on their channel, and the first readers of a tensor
are the same where `Part.in_order` says so. `schedule_program.first_come` shows that the program has
a solution with these times rounded down, which is no longer than the part of the schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import BoolArray, IntArray, frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem


@dataclass(frozen=True)
class Part:
    """A part as a problem of its own.

    Attributes:
        problem: units are the earlier articulation unit, where there is one, then the part's.
        in_order: tensors whose first readers in the whole are those in the part, in the same
            order, shape (n_tensors,).
    """

    problem: Problem
    in_order: BoolArray


def part_problem(
    problem: Problem, units: IntArray, before: tuple[int, int] | None, after: int | None
) -> Part:
    """The problem of one part.

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
    """The cluster without memory limits, overheads and contention."""
    devices = tuple(
        replace(
            device,
            memory_bytes=math.inf,
            dispatch_seconds=0.0,
            cut_seconds=0.0,
            cut_seconds_per_byte=0.0,
            layout_seconds=0.0,
            layout_seconds_per_byte=0.0,
            memory_domain=None,
        )
        for device in cluster.devices
    )
    return replace(cluster, devices=devices, contention={})
