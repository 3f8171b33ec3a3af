"""Simulated annealing under `subgraph`: moves of a colocation class, or of a few in a row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.core.arrays import BoolArray, Csr, FloatArray, IntArray, positions_in
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.placers.legal import classes_in_order
from placewright.placers.pipelines.ideals.items import unit_edges
from placewright.placers.pipelines.ideals.load_model import allowed_devices, grouped_entries
from placewright.simulation.compiled import compiled, inlined
from placewright.simulation.layout import overfull_pool
from placewright.simulation.published.subgraph import LatencyArrays, latency


class Moves(NamedTuple):
    """Sets of items that may move together, and their targets. Items are colocation classes."""

    member_ptr: IntArray  # units of each item
    members: IntArray
    order: IntArray  # (n_items,): items in a topological order of their first units
    position: IntArray  # (n_items,): where each item is in `order`
    near_ptr: IntArray  # items that share an edge with each item
    near: IntArray
    choices: IntArray  # devices to choose from, see `_choices`
    barred: BoolArray  # (n_items, n_devices)
    weight_ptr: IntArray
    weights: IntArray
    weight_bytes: FloatArray
    memory: FloatArray  # (n_devices,)
    pool_shares: FloatArray  # (n_pools, n_devices) of `Cluster`
    pool_bytes: FloatArray  # (n_pools,)


def moves_of(problem: Problem, arrays: LatencyArrays) -> Moves:
    """Lay out the moves of a problem."""
    classes = problem.colocation
    order = classes_in_order(problem)
    position = positions_in(order)
    near = _adjacency(problem, classes)
    weights, weight_bytes = grouped_entries(problem, classes)
    return Moves(
        member_ptr=classes.members.indptr,
        members=classes.members.indices,
        order=order,
        position=position,
        near_ptr=near.indptr,
        near=near.indices,
        choices=_choices(problem, arrays),
        barred=~allowed_devices(problem, classes),
        weight_ptr=weights.indptr,
        weights=weights.indices,
        weight_bytes=weight_bytes,
        memory=problem.cluster.memory_bytes,
        pool_shares=problem.cluster.pool_shares,
        pool_bytes=problem.cluster.pool_bytes,
    )


def _adjacency(problem: Problem, classes: Grouping) -> Csr:
    producers, consumers = unit_edges(problem.unit_graph)
    pairs = np.stack([classes.group_of[producers], classes.group_of[consumers]], axis=1)
    pairs = np.concatenate([pairs, pairs[:, ::-1]])
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    return Csr.from_pairs(pairs[:, 0], pairs[:, 1], classes.n_groups)


def _choices(problem: Problem, arrays: LatencyArrays) -> IntArray:
    """All accelerators and CPUs with limited memory, and the first of other CPUs of equal costs.

    A CPU runs ops in parallel, so that only memory makes use of a second one.
    """
    is_kept = (arrays.is_atomic != 0) | np.isfinite(problem.cluster.memory_bytes)
    chosen: list[int] = []
    seen: dict[bytes, None] = {}
    for device, kept in enumerate(is_kept.tolist()):
        column = arrays.seconds[:, device].tobytes()
        if kept or column not in seen:
            chosen.append(device)
        if not kept:
            seen[column] = None
    return np.array(chosen, dtype=np.int64)


@inlined
def _fits(moves: Moves, resident: FloatArray) -> bool:
    """True if all limits hold for the bytes that each device keeps, (n_devices,)."""
    for device in range(len(resident)):
        if resident[device] > moves.memory[device]:
            return False
    pool = overfull_pool(moves.pool_shares, moves.pool_bytes, resident)
    return bool(pool < 0)


@compiled
def _put(
    items: IntArray,
    n_items: int,
    targets: IntArray,
    moves: Moves,
    device_of: IntArray,
    item_device: IntArray,
    uses: IntArray,
    resident: FloatArray,
) -> None:
    """Exchange devices and targets of the first `n_items` items: a second call undoes the first."""
    member_ptr, members = moves.member_ptr, moves.members
    weight_ptr, weights, weight_bytes = moves.weight_ptr, moves.weights, moves.weight_bytes
    for index in range(n_items):
        item, target = items[index], targets[index]
        home = item_device[item]
        targets[index] = home
        item_device[item] = target
        for at in range(member_ptr[item], member_ptr[item + 1]):
            device_of[members[at]] = target
        for at in range(weight_ptr[item], weight_ptr[item + 1]):
            weight = weights[at]
            uses[weight, home] -= 1
            if uses[weight, home] == 0:
                resident[home] -= weight_bytes[weight]
            if uses[weight, target] == 0:
                resident[target] += weight_bytes[weight]
            uses[weight, target] += 1


@compiled
def _choose(
    rng: np.random.Generator,
    items: IntArray,
    targets: IntArray,
    moves: Moves,
    item_device: IntArray,
) -> int:
    """Draw a move; return its number of items (0: none)."""
    order, position, near_ptr, near = moves.order, moves.position, moves.near_ptr, moves.near
    n_items = len(order)
    item = int(rng.random() * n_items)
    target = moves.choices[int(rng.random() * len(moves.choices))]
    degree = near_ptr[item + 1] - near_ptr[item]
    if degree > 0 and rng.random() < 0.6:
        target = item_device[near[near_ptr[item] + int(rng.random() * degree)]]
    draw = rng.random()
    size = 1
    if draw > 0.35:  # sizes 1, 2, 4, ... are equally likely
        size = int(2.0 ** (rng.random() * np.log2(max(2.0, n_items / 2.0))))
    n_chosen = 0
    if draw > 0.8:  # all of a stretch
        for at in range(position[item], min(n_items, position[item] + size)):
            n_chosen = _take(order[at], target, items, targets, n_chosen, moves, item_device)
        return n_chosen
    home = item_device[item]  # what is on one device within a stretch, forward or backward
    step = 1 if rng.random() < 0.5 else -1
    at = position[item]
    while 0 <= at < n_items and n_chosen < size:
        if item_device[order[at]] == home:
            before = n_chosen
            n_chosen = _take(order[at], target, items, targets, n_chosen, moves, item_device)
            if n_chosen == before:
                break
        at += step
    return n_chosen


@compiled
def _take(
    item: int,
    target: int,
    items: IntArray,
    targets: IntArray,
    n_chosen: int,
    moves: Moves,
    item_device: IntArray,
) -> int:
    """Add an item to the move if it may go to the target and is not there."""
    if item_device[item] == target or moves.barred[item, target]:
        return n_chosen
    items[n_chosen], targets[n_chosen] = item, target
    return n_chosen + 1


@compiled
def anneal(
    arrays: LatencyArrays,
    moves: Moves,
    item_device: IntArray,
    best: IntArray,
    best_value: float,
    rng: np.random.Generator,
    n_steps: int,
    hot: float,
    cold: float,
) -> float:
    """Anneal from `item_device`, which is changed, between two temperatures (in seconds).

    Args:
        item_device: device of each item; its latency must be finite.
        best: the best assignment is written here, shape (n_items,).
        best_value: only assignments with a smaller value are written.
        n_steps: moves to try.
        hot: first temperature.
        cold: last temperature.

    Returns:
        The value of `best`.
    """
    n_items, n_devices = len(item_device), len(moves.memory)
    device_of = np.empty(len(moves.members), dtype=np.int64)
    uses = np.zeros((len(moves.weight_bytes), n_devices), dtype=np.int64)
    resident = np.zeros(n_devices)
    for item in range(n_items):
        device = item_device[item]
        for at in range(moves.member_ptr[item], moves.member_ptr[item + 1]):
            device_of[moves.members[at]] = device
        for at in range(moves.weight_ptr[item], moves.weight_ptr[item + 1]):
            weight = moves.weights[at]
            if uses[weight, device] == 0:
                resident[device] += moves.weight_bytes[weight]
            uses[weight, device] += 1
    items = np.empty(n_items, dtype=np.int64)
    targets = np.empty(n_items, dtype=np.int64)
    current = latency(arrays, device_of)
    if _fits(moves, resident) and current < best_value:
        best_value = current
        best[:] = item_device
    cooling = (cold / hot) ** (1.0 / max(1, n_steps))
    temperature = hot
    for _ in range(n_steps):
        temperature *= cooling
        n_moved = _choose(rng, items, targets, moves, item_device)
        if n_moved == 0:
            continue
        _put(items, n_moved, targets, moves, device_of, item_device, uses, resident)
        new = np.inf
        if _fits(moves, resident):
            new = latency(arrays, device_of)
        if new > current and rng.random() >= np.exp((current - new) / temperature):
            _put(items, n_moved, targets, moves, device_of, item_device, uses, resident)
            continue
        current = new
        if new < best_value * (1 - 1e-12):
            best_value = new
            best[:] = item_device
    return best_value
