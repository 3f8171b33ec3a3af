"""Coarsening: groups join the neighbours that they exchange most with, the cheapest groups first.

B. Hendrickson, R. Leland, "A Multi-Level Algorithm for Partitioning Graphs", Supercomputing 1995;
G. Karypis, V. Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs",
SIAM Journal on Scientific Computing 20(1), 1998 (heavy edges).

Groups are closed under colocation, and they need not be convex: a group shares a device but does
not run as a whole, so that no cycle can arise. The evaluator always values the placement of all
units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placewright.core.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    frozen_floats,
    frozen_ints,
    positions_in,
)
from placewright.core.problem import Problem
from placewright.placers.list_scheduling.ranks import mean_transfers
from placewright.simulation.compiled import compiled
from placewright.simulation.ranks import mean_costs

_SHARE_OF_MEMORY = 0.25  # of a device's memory, for one group at most
_LARGEST = 4.0  # limit on a group, in mean seconds of a group
_LIGHT = 0.01  # of that limit: lighter groups may join any group
_LEAST_PROGRESS = 0.95  # largest share of groups after a level, else coarsening ends


@dataclass(frozen=True, eq=False)
class Level:
    """A partition of the units."""

    group_of: IntArray  # group of each unit, shape (n_units,)
    allowed: BoolArray  # devices of each group, shape (n_groups, n_devices), at least one each
    # neighbour_ptr, neighbours: groups that each group exchanges tensors with, (n_groups + 1,)
    neighbour_ptr: IntArray
    neighbours: IntArray
    by_place: IntArray  # groups by their first units in a topological order, shape (n_groups,)
    place_of: IntArray  # place of each group in `by_place`, shape (n_groups,)

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return len(self.allowed)


class _Nodes(NamedTuple):
    """Groups of one level with the data that decide about joining."""

    ptr: IntArray  # (n_groups + 1,)
    others: IntArray  # neighbours of each
    weight: FloatArray  # seconds of transfers between the two
    seconds: FloatArray  # (n_groups,): of the units, on average over devices
    n_bytes: FloatArray  # (n_groups,): kept
    allowed: BoolArray  # (n_groups, n_devices)


def levels_of(
    problem: Problem,
    fewest: int,
    rng: np.random.Generator,
    device_of: IntArray | None = None,
) -> list[Level]:
    """Levels from single colocation classes to about `fewest` groups, each half of the one before.

    Args:
        fewest: groups of the last level, at least.
        rng: breaks near-ties between neighbours.
        device_of: units on different devices stay apart, shape (n_units,); None joins any units.

    Returns:
        At least one level; the finest first.
    """
    group_of = np.array(problem.colocation.group_of)
    nodes = _single_classes(problem)
    there = np.zeros(len(nodes.seconds), dtype=np.int64)
    if device_of is not None:
        there[group_of] = device_of
    place = positions_in(problem.unit_graph.topological_order)
    limit = _SHARE_OF_MEMORY * np.asarray(problem.cluster.memory_bytes)
    levels = [_level(group_of, nodes, place)]
    while len(nodes.seconds) > fewest:
        n_groups = len(nodes.seconds)
        wanted = max(fewest, n_groups // 2)
        joined = _joined(nodes, there, limit, wanted, rng)
        _, first, number = np.unique(joined, return_index=True, return_inverse=True)
        if len(first) > _LEAST_PROGRESS * n_groups:
            break
        nodes, there = _merged(nodes, number, len(first)), there[first]
        group_of = number[group_of]
        levels.append(_level(group_of, nodes, place))
    return levels


def _level(group_of: IntArray, nodes: _Nodes, place: IntArray) -> Level:
    first = np.full(len(nodes.seconds), len(place), dtype=np.int64)
    np.minimum.at(first, group_of, place)
    by_place = np.argsort(first, kind="stable")
    place_of = positions_in(by_place)
    return Level(group_of, nodes.allowed, nodes.ptr, nodes.others, by_place, place_of)


def _single_classes(problem: Problem) -> _Nodes:
    """Every colocation class as a group."""
    group_of, n_groups = problem.colocation.group_of, problem.colocation.n_groups
    graph = problem.unit_graph
    tensor = graph.tensor_consumers.row_of_each()
    producer = graph.tensor_producers[tensor]
    is_inner = producer >= 0
    first = group_of[producer[is_inner]]
    second = group_of[graph.tensor_consumers.indices[is_inner]]
    ptr, others, weight = _adjacency(
        first, second, mean_transfers(problem)[tensor[is_inner]], n_groups
    )
    return _Nodes(
        ptr=ptr,
        others=others,
        weight=weight,
        seconds=_summed(group_of, mean_costs(problem), n_groups),
        n_bytes=np.asarray(problem.kept.bytes_by_label(group_of), dtype=np.float64),
        allowed=np.array(problem.allowed_by_class),
    )


def _adjacency(
    first: IntArray, second: IntArray, weight: FloatArray, n_groups: int
) -> tuple[IntArray, IntArray, FloatArray]:
    """Rows of neighbours, both ways, with the weights of parallel edges added up."""
    apart = first != second
    first, second, weight = first[apart], second[apart], weight[apart]
    low, high = np.minimum(first, second), np.maximum(first, second)
    keys, number = np.unique(low * n_groups + high, return_inverse=True)
    summed = _summed(number.ravel(), weight, len(keys))
    ends = np.concatenate([keys // n_groups, keys % n_groups])
    others = np.concatenate([keys % n_groups, keys // n_groups])
    order = np.argsort(ends, kind="stable")
    ptr = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=n_groups))])
    return ptr.astype(np.int64), others[order], np.concatenate([summed, summed])[order]


def _merged(nodes: _Nodes, number: IntArray, n_groups: int) -> _Nodes:
    rows = np.repeat(np.arange(len(nodes.seconds)), np.diff(nodes.ptr))
    once = rows < nodes.others
    ptr, others, weight = _adjacency(
        number[rows[once]], number[nodes.others[once]], nodes.weight[once], n_groups
    )
    allowed = np.ones((n_groups, nodes.allowed.shape[1]), dtype=np.bool_)
    np.logical_and.at(allowed, number, nodes.allowed)
    return _Nodes(
        ptr=ptr,
        others=others,
        weight=weight,
        seconds=_summed(number, nodes.seconds, n_groups),
        n_bytes=_summed(number, nodes.n_bytes, n_groups),
        allowed=allowed,
    )


def _summed(labels: IntArray, values: FloatArray, n_labels: int) -> FloatArray:
    return np.asarray(np.bincount(labels, values, n_labels), dtype=np.float64)


def _joined(
    nodes: _Nodes, there: IntArray, limit: FloatArray, wanted: int, rng: np.random.Generator
) -> IntArray:
    """The representative that each group joins, shape (n_groups,), itself if it stays."""
    n_groups = len(nodes.seconds)
    jitter = np.exp(0.3 * rng.standard_normal(n_groups))
    turns = np.argsort(nodes.seconds * jitter, kind="stable")
    return np.asarray(
        _join(
            frozen_ints(nodes.ptr),
            frozen_ints(nodes.others),
            frozen_floats(nodes.weight),
            frozen_floats(jitter),
            nodes.seconds.copy(),
            nodes.n_bytes.copy(),
            nodes.allowed.copy(),
            frozen_ints(there),
            frozen_floats(limit),
            frozen_ints(turns),
            _LARGEST * float(nodes.seconds.sum()) / wanted,
            wanted,
        )
    )


@compiled
def _join(
    ptr: IntArray,
    others: IntArray,
    weight: FloatArray,
    jitter: FloatArray,
    seconds: FloatArray,
    n_bytes: FloatArray,
    allowed: BoolArray,
    there: IntArray,
    limit: FloatArray,
    turns: IntArray,
    largest: float,
    wanted: int,
) -> IntArray:
    """Let each group in turn join the neighbour (or its group) with the heaviest edge.

    A group that another group has joined stays, so that one round joins stars.

    Args:
        ptr, others, weight: neighbours of the groups.
        jitter: factors of each group's edges, (n_groups,).
        seconds, n_bytes, allowed: of the groups; changed.
        there: groups with different numbers stay apart, (n_groups,).
        limit: bytes of each device that one group may keep, (n_devices,).
        turns: groups in order.
        largest: limit on the seconds of a group.
        wanted: least number of groups left.
    """
    n_groups, n_devices = allowed.shape
    joined, is_joined_by = np.arange(n_groups), np.zeros(n_groups, np.bool_)
    left = n_groups
    for group in turns:
        if left <= wanted:
            break
        if is_joined_by[group]:
            continue
        chosen, most = -1, -1.0
        for at in range(ptr[group], ptr[group + 1]):
            other = joined[others[at]]
            if other == group or there[other] != there[group]:
                continue
            lighter = min(seconds[group], seconds[other])
            if seconds[group] + seconds[other] > largest and lighter > _LIGHT * largest:
                continue
            exchanged = weight[at] * jitter[others[at]]
            if exchanged <= most:
                continue
            total = n_bytes[group] + n_bytes[other]
            for device in range(n_devices):
                if allowed[group, device] and allowed[other, device] and total <= limit[device]:
                    chosen, most = other, exchanged
                    break
        if chosen >= 0:
            joined[group] = chosen
            is_joined_by[chosen] = True
            seconds[chosen] += seconds[group]
            n_bytes[chosen] += n_bytes[group]
            for device in range(n_devices):
                allowed[chosen, device] &= allowed[group, device]
            left -= 1
    return joined
