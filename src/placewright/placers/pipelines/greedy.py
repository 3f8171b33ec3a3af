"""Greedy filling of accelerators in topological order, for latency.

Tarnawski, Phanishayee, Devanur, Mahajan, Nina Paravecino: "Efficient Algorithms for Device
Placement of DNN Graph Operators", NeurIPS 2020, appendix F: colocation classes that need each other
are fused into blocks; in a depth-first topological order of the blocks each accelerator in turn is
filled up to its memory; the remaining blocks run on a CPU.

Departures from the paper: a block that an accelerator does not support goes to the CPU (the
published program has no such test); a block that no CPU can take goes to an accelerator with room;
where tensors that come and go need more memory, or a device would run too many segments, devices
are filled less; several CPUs are one device to the `subgraph` execution models.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.arrays import Csr, FloatArray, IntArray
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.bases import ForEveryProblem, anytime
from placewright.placers.legal import Proposal, evaluate_within_limits
from placewright.placers.pipelines.ideals.items import (
    components_fused,
    depth_first_order,
    unit_edges,
)
from placewright.placers.repair import repaired
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class Greedy(ForEveryProblem):
    """Fills accelerators one after the other."""

    name: ClassVar[str] = "greedy"
    paper: ClassVar[str] = "Tarnawski et al., NeurIPS 2020"

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Fill the devices in one evaluation; in more if a limit of tensors or segments binds."""
        first = filled(problem)
        if first is None:
            return evaluator.solution(message="a block of ops is left over that no device may take")
        evaluate_within_limits(evaluator, functools.partial(_proposal, problem, first))
        return evaluator.solution()


def _proposal(problem: Problem, first: IntArray, limits: FloatArray) -> Proposal:
    """The filling up to limits; `first`, repaired, where a block fits nowhere within them."""
    if np.array_equal(limits, problem.cluster.memory_limits):
        return first, None
    device_of = filled(problem, limits)
    return repaired(problem, first, limits) if device_of is None else device_of, None


def filled(problem: Problem, limits: FloatArray | None = None) -> IntArray | None:
    """Fill the devices: device of each unit, (n_units,); None if a block fits nowhere.

    Args:
        limits: resident bytes of devices and pools; default `Cluster.memory_limits`.
    """
    blocks, order = blocks_in_order(problem)
    cluster = problem.cluster
    limits = cluster.memory_limits if limits is None else limits
    memory, pool_bytes = limits[: cluster.n_devices], limits[cluster.n_devices :]
    fast, slow = _device_ranks(problem)
    # Entries that each device keeps, and their bytes.
    used: list[dict[int, None]] = [{} for _ in range(problem.n_devices)]
    kept = np.zeros(problem.n_devices)
    device_of = np.empty(problem.n_units, dtype=np.int64)
    allowed = np.ones((blocks.n_groups, problem.n_devices), dtype=np.bool_)
    np.logical_and.at(allowed, blocks.group_of, problem.allowed)
    sizes, largest = problem.kept.sizes, float(memory[fast].max())
    turn, begun = 0, -1  # the accelerator that is being filled, and the last one with a block
    for block in order.tolist():
        units = blocks.members.row(block)
        entries = dict.fromkeys(
            e for unit in units for e in problem.kept.of_units.row(unit).tolist()
        )
        needed = np.array([sizes[[e for e in entries if e not in own]].sum() for own in used])
        free = pool_bytes - cluster.pooled(kept)
        in_pools = (cluster.pool_shares * needed <= free[:, None]).all(axis=0)
        fits = allowed[block] & (kept + needed <= memory) & in_pools
        chosen = -1
        block_bytes = float(sizes[list(entries)].sum())
        fits_alone = any(allowed[block, d] and block_bytes <= memory[d] for d in fast)
        if begun == turn and block_bytes > largest:
            turn += 1  # as published: what no accelerator holds ends the one that is being filled
        while fits_alone and turn < len(fast) and chosen < 0:
            if fits[fast[turn]]:
                chosen, begun = fast[turn], turn
            else:
                turn += 1
        if chosen < 0:
            rest = [d for d in (*slow, *fast) if fits[d]]
            if not rest:
                return None
            chosen = rest[0]
        used[chosen] |= entries
        kept[chosen] += needed[chosen]
        device_of[units] = chosen
    return device_of


def blocks_in_order(problem: Problem) -> tuple[Grouping, IntArray]:
    """Blocks (colocation classes that need each other, fused), and a depth-first order of them."""
    producers, consumers = unit_edges(problem.unit_graph, as_read=True)
    classes = problem.colocation
    pairs = np.stack([classes.group_of[producers], classes.group_of[consumers]], axis=1)
    blocks = components_fused(classes, pairs)
    pairs = np.stack([blocks.group_of[producers], blocks.group_of[consumers]], axis=1)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]  # not unique: a block is free after its last edge
    successors = Csr.from_pairs(pairs[:, 0], pairs[:, 1], blocks.n_groups)
    return blocks, depth_first_order(successors)


def _device_ranks(problem: Problem) -> tuple[list[int], list[int]]:
    """Accelerators to fill, and CPUs for the rest; without accelerators the CPUs are filled."""
    kinds = [device.kind for device in problem.cluster.devices]
    slow = [index for index, kind in enumerate(kinds) if kind == "cpu"]
    fast = [index for index, kind in enumerate(kinds) if kind != "cpu"]
    return (fast, slow) if fast else (slow, [])
