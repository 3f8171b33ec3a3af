"""Replicated stages: the dynamic program over ideals that also forms groups of identical devices.

Tarnawski et al. 2020 let a stage run on r accelerators, each taking every r-th sample, in an
appendix without code; PipeDream (Narayanan et al., SOSP 2019) replicates stages of a chain. Here r
identical devices of a pool may carry one set of the program:
dp[m][J] = min over ideals I in J, pools p and r of max(dp[m - r devices of p][I], load_pr(J - I)).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.problem import Problem
from placewright.core.replicas import alike_devices, grouped, one_group_per_size
from placewright.errors import InputError
from placewright.placers.pipelines.ideals.items import Items, enumerate_ideals, items_of
from placewright.placers.pipelines.ideals.load_model import load_model_of
from placewright.placers.pipelines.ideals.program import (
    MAX_TABLE_ENTRIES,
    ContiguousProgram,
    Pools,
    solved_in_order,
    table_entries,
    why_not_contiguous,
)

_MOST_IDEALS = 1_000_000


@dataclass(frozen=True, eq=False)
class Replicated:
    """The best groups, and the split that uses them."""

    problem: Problem  # its devices are the groups, and the remaining single devices
    device_of: IntArray | None  # the split of the groups, shape (n_units,); None without one
    message: str  # the proof, or why there is none


def replicated(problem: Problem, is_spent: Callable[[], bool] = lambda: False) -> Replicated:
    """Form the groups of the best contiguous split in which stages may be replicated.

    Exact as `ideal-dp` is: over all ways of grouping devices of one pool (`alike_devices`) and all
    contiguous splits. Beyond a million ideals, or if `is_spent` ends the walk, the result is the
    incumbent, at least the best split of one depth-first order.

    Args:
        problem: of single devices, under max-load, with links of one level.
        is_spent: called between slices; True ends the walk.

    Raises:
        InputError: another execution model, links of several levels, no two alike devices, or a
            training graph without gradients or bandwidth to exchange them.
        ClusterError: a device stands for several already.
    """
    problem.cluster.require_single_devices("a search for groups")
    if reason := why_not_contiguous(problem):
        raise InputError(f"stages cannot be replicated: {reason}")
    alike = alike_devices(problem)
    if alike.is_identity:
        raise InputError(
            "stages cannot be replicated: no two devices are alike (the same costs, memory, links "
            "and pins; the host stands alone)"
        )
    sizes = one_group_per_size(problem)
    counts = np.diff(alike.members.indptr)
    pools = Pools(alike.group_of, sizes.cluster.replicas, counts.astype(np.int64))
    items = items_of(sizes)
    model = load_model_of(sizes, items.grouping, traits=np.stack([pools.pool_of, pools.size]))
    program = solved_in_order(model, items, pools)
    lattice = enumerate_ideals(items.successors, _MOST_IDEALS)
    if lattice is None or table_entries(pools.counts, lattice.n_ideals) > MAX_TABLE_ENTRIES:
        proven = "not proven best: too many ideals; best split of one linear order"
    else:
        exact = ContiguousProgram(model, lattice, program.value, pools)
        is_complete = exact.run(is_spent)
        proven = _verdict(items) if is_complete else "the budget ended before the proof"
        program = exact if exact.found else program
    if not program.found:
        return Replicated(problem, None, "no contiguous split fits, with replicas or without")
    groups, group_of = _groups(program, pools)
    return Replicated(grouped(problem, groups), items.grouping.expand(group_of), proven)


def _groups(program: ContiguousProgram, pools: Pools) -> tuple[list[list[int]], IntArray]:
    """Devices of each group, by the first of them, and the group of each item."""
    free = [np.flatnonzero(pools.pool_of == pool).tolist() for pool in range(len(pools.counts))]
    stages = []
    for kind, members in program.kind_sets():
        pool, size = free[int(pools.pool_of[kind])], int(pools.size[kind])
        stages.append(([pool.pop(0) for _ in range(size)], members))
    unused = [([device], np.empty(0, dtype=np.int64)) for pool in free for device in pool]
    ordered = sorted([*stages, *unused], key=lambda stage: stage[0][0])
    group_of = np.empty(sum(len(members) for _, members in ordered), dtype=np.int64)
    for group, (_, members) in enumerate(ordered):
        group_of[members] = group
    return [devices for devices, _ in ordered], group_of


def _verdict(items: Items) -> str:
    proven = "best over groups of alike devices and contiguous splits"
    if items.absorbed_memory:
        return f"{proven} that keep ops without run time at their neighbour"
    return proven
