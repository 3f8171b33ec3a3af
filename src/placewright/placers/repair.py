"""Repair: the nearest legal placement by a greedy pass, for methods that ignore constraints."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray, frozen_ints
from placewright.core.problem import Problem
from placewright.placers.resident import (
    ClassWeights,
    class_bytes,
    has_room,
    keep,
    needed_bytes,
    new_holdings,
    release,
    share_in_pool,
    weights_of,
)
from placewright.simulation.compiled import compiled, inlined, read_only
from placewright.simulation.layout import once_per_problem

_ROWS = 1 << 16  # units per block of costs, so that no copy of the whole table is made
_LEAST = 1e-290  # seconds of a wish above which costs do not decide


class RepairTables(NamedTuple):
    """The arrays of a problem that repair reads."""

    group_of: IntArray  # (n_units,): colocation class
    allowed: BoolArray  # (n_classes, n_devices)
    seconds: FloatArray  # (n_classes, n_devices): of the units that may run there
    weight: FloatArray  # (n_units,): what the wish of a unit counts
    total: float  # of `seconds`


def repaired(problem: Problem, device_of: IntArray, limits: FloatArray | None = None) -> IntArray:
    """The nearest legal placement that a greedy pass reaches.

    Each colocation class goes to the allowed device where most of its seconds were. Then classes
    leave devices whose resident bytes exceed `limits`, most bytes per second first, each to the
    fastest device where it fits. What shared pools cannot hold leaves in the same way.

    Args:
        device_of: device of each unit, shape (n_units,); -1 if a method has no wish.
        limits: resident bytes of devices and pools; default `Cluster.memory_limits`.

    Returns:
        Shape (n_units,). Pins, support and colocation hold; memory only if the pass succeeded.
    """
    tables = repair_tables(problem)
    device_of_class = _wished(tables, frozen_ints(device_of))
    free = np.array(problem.cluster.memory_limits if limits is None else limits, dtype=np.float64)
    if np.isfinite(free).any():
        weights = weights_of(problem)
        held = new_holdings(weights, problem.n_devices)
        _fill(weights, held, free, device_of_class)
        for at in np.flatnonzero(free < 0).tolist():
            unload = _unload if at < problem.n_devices else _unload_pool
            unload(tables, weights, held, free, device_of_class, at)
    return np.asarray(device_of_class[problem.colocation.group_of], dtype=np.int64)


@once_per_problem
def repair_tables(problem: Problem) -> RepairTables:
    """Lay a problem out for `repaired`."""
    classes, allowed, seconds = problem.colocation, problem.allowed, problem.costs.seconds
    weight = np.empty(problem.n_units)
    for first in range(0, problem.n_units, _ROWS):
        rows = slice(first, first + _ROWS)
        weight[rows] = np.where(allowed[rows], seconds[rows], 0.0).max(axis=1) + 1e-300
    of_class = seconds
    if not (classes.is_identity and allowed.all()):
        of_class = classes.sums(np.where(allowed, seconds, 0.0))
    return read_only(
        RepairTables(
            group_of=classes.group_of,
            allowed=problem.allowed_by_class,
            seconds=of_class,
            weight=weight,
            total=float(of_class.sum()),
        )
    )


@compiled
def _wished(tables: RepairTables, device_of: IntArray) -> IntArray:
    """The device of each class where most of its seconds were, shape (n_classes,).

    The fastest device if the class has no wish.
    """
    n_classes, n_devices = tables.allowed.shape
    wish = np.zeros(n_devices)
    first, following = _members(tables.group_of, n_classes)
    device_of_class = np.empty(n_classes, np.int64)
    for group in range(n_classes):
        unit = first[group]
        wanted = device_of[unit]
        is_simple = following[unit] < 0 and wanted >= 0 and tables.weight[unit] > _LEAST
        if is_simple and tables.allowed[group, wanted]:
            device_of_class[group] = wanted
            continue
        wish[:] = 0.0
        while unit >= 0:
            if device_of[unit] >= 0:
                wish[device_of[unit]] += tables.weight[unit]
            unit = following[unit]
        best, most = 0, -np.inf
        for device in range(n_devices):
            if tables.allowed[group, device]:
                cost = tables.seconds[group, device] / (1.0 + tables.total) * 1e-300
                if wish[device] - cost > most:
                    best, most = device, wish[device] - cost
        device_of_class[group] = best
    return device_of_class


@compiled
def _members(group_of: IntArray, n_classes: int) -> tuple[IntArray, IntArray]:
    """The first unit of each class, and the next unit of each unit's class (-1 after the last)."""
    first, following = np.full(n_classes, -1, np.int64), np.full(len(group_of), -1, np.int64)
    for unit in range(len(group_of) - 1, -1, -1):
        following[unit] = first[group_of[unit]]
        first[group_of[unit]] = unit
    return first, following


@compiled
def _fill(
    weights: ClassWeights, held: IntArray, free: FloatArray, device_of_class: IntArray
) -> None:
    for group in range(len(device_of_class)):
        keep(weights, held, free, group, device_of_class[group])


@compiled
def _unload(
    tables: RepairTables,
    weights: ClassWeights,
    held: IntArray,
    free: FloatArray,
    device_of_class: IntArray,
    device: int,
) -> None:
    """Move classes off a device until the rest fits."""
    if free[device] >= 0:
        return
    n_devices = tables.allowed.shape[1]
    members = np.flatnonzero(device_of_class == device)
    density = class_bytes(weights)[members]
    for at in range(len(members)):
        density[at] = -(density[at] / (1e-12 + tables.seconds[members[at], device]))
    seconds = np.empty(n_devices)
    for at in np.argsort(density, kind="mergesort"):
        if free[device] >= 0:
            return
        group = members[at]
        for target in range(n_devices):
            is_allowed = tables.allowed[group, target]
            seconds[target] = tables.seconds[group, target] if is_allowed else np.inf
        for target in np.argsort(seconds, kind="mergesort"):
            usable = target != device and np.isfinite(seconds[target])
            if usable and has_room(weights, held, free, group, target):
                release(weights, held, free, group, device)
                keep(weights, held, free, group, target)
                device_of_class[group] = target
                break


@compiled
def _unload_pool(
    tables: RepairTables,
    weights: ClassWeights,
    held: IntArray,
    free: FloatArray,
    device_of_class: IntArray,
    pool: int,
) -> None:
    """Move classes off the devices of a pool until the rest fits.

    Within the pool a class moves only if less is kept there then, next to weights that it shares.
    """
    n_devices = tables.allowed.shape[1]
    in_pool = np.zeros(n_devices, np.bool_)
    for device in range(n_devices):
        in_pool[device] = share_in_pool(weights, device, pool) > 0.0
    members = np.flatnonzero(in_pool[device_of_class])
    density = class_bytes(weights)[members]
    for at in range(len(members)):
        group = members[at]
        density[at] = -(density[at] / (1e-12 + tables.seconds[group, device_of_class[group]]))
    for at in np.argsort(density, kind="mergesort"):
        if free[pool] >= 0:
            return
        group, home, before = members[at], device_of_class[members[at]], free[pool]
        release(weights, held, free, group, home)
        best, least = home, np.inf
        for target in range(n_devices):
            if not tables.allowed[group, target] or tables.seconds[group, target] >= least:
                continue
            needed = needed_bytes(weights, held, group, target)
            if in_pool[target]:
                fits = _fits_in_pool(weights, free, needed, target, pool, before)
            else:
                fits = has_room(weights, held, free, group, target)
            if target != home and fits:
                best, least = target, tables.seconds[group, target]
        keep(weights, held, free, group, best)
        device_of_class[group] = best
    for home in range(n_devices):
        for target in range(n_devices):
            both = in_pool[home] and in_pool[target]
            if both and home != target and free[pool] < 0:
                _merge(tables, weights, held, free, device_of_class, home, target, pool)


@inlined
def _fits_in_pool(
    weights: ClassWeights, free: FloatArray, needed: float, target: int, pool: int, before: float
) -> bool:
    """True if a device of a pool can take so many bytes, and the pool then has more room left."""
    added = needed * share_in_pool(weights, target, pool)
    fits = needed <= free[target] and free[pool] - added > before
    for at in range(weights.pool_ptr[target], weights.pool_ptr[target + 1]):
        other, needs = weights.pool_at[at], needed * weights.pool_share[at]
        fits = fits and (other == pool or needs <= free[other])
    return bool(fits)


@compiled
def _merge(
    tables: RepairTables,
    weights: ClassWeights,
    held: IntArray,
    free: FloatArray,
    device_of_class: IntArray,
    home: int,
    target: int,
    pool: int,
) -> None:
    """Move all classes of a device to another one of its pool, if the pool then keeps less."""
    members, before = np.flatnonzero(device_of_class == home), free[pool]
    for at in range(len(members)):
        if not tables.allowed[members[at], target]:
            return
    for at in range(len(members)):
        release(weights, held, free, members[at], home)
        keep(weights, held, free, members[at], target)
    is_better = free[pool] > before and free[target] >= 0
    for at in range(len(members)):
        group = members[at]
        if is_better:
            device_of_class[group] = target
        else:
            release(weights, held, free, group, target)
            keep(weights, held, free, group, home)
