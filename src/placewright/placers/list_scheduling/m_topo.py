"""m-TOPO: fill the devices one after another in topological order, up to an even share of bytes.

B. Jeon et al., "Baechi: Fast Device Placement of Machine Learning Graphs", SoCC 2020, section 3.1:
the share of a device is (total bytes / devices) + the largest unit, where a unit's bytes are its
weights and outputs.

Departures from the paper: theirs are equal GPUs, so a CPU beside accelerators takes only units that
they cannot run (support, pins, memory), and devices that share a processor count as one, whose
others take what the first cannot; a colocation class goes where its first unit goes; a device whose
memory cannot take a class is skipped; a graph without any bytes is filled by mean seconds instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.core.processors import sets_at_once
from placewright.core.solution import Solution
from placewright.placers.bases import ForEveryProblem, anytime
from placewright.placers.legal import Proposal, classes_in_order, evaluate_within_limits
from placewright.placers.resident import FreeMemory, fits, new_free_memory, take
from placewright.simulation.compiled import compiled
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.ranks import mean_costs


@dataclass(frozen=True)
class MTopo(ForEveryProblem):
    """Balances bytes over the devices; does not read costs."""

    name: ClassVar[str] = "m-topo"
    paper: ClassVar[str] = "Jeon et al. (Baechi), SoCC 2020"

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Place in one evaluation; in more if memory limits bind."""
        del rng
        evaluate_within_limits(evaluator, lambda limits: _filled(problem, limits))
        return evaluator.solution()


def unit_bytes(problem: Problem) -> FloatArray:
    """Bytes of weights and outputs of each unit, (n_units,); mean seconds if all are 0."""
    graph = problem.unit_graph
    outputs = graph.op_outputs
    sizes = np.array(graph.op_weight_bytes)
    np.add.at(sizes, outputs.row_of_each(), graph.tensor_bytes[outputs.indices])
    return sizes if sizes.any() else mean_costs(problem)


def _filled(problem: Problem, limits: FloatArray) -> Proposal:
    classes = problem.colocation
    counted = np.bincount(classes.group_of, unit_bytes(problem), minlength=classes.n_groups)
    sizes = np.asarray(counted, dtype=np.float64)
    kinds = [device.kind for device in problem.cluster.devices]
    able = np.asarray(problem.allowed.any(axis=0))
    filling = [d for d, kind in enumerate(kinds) if kind != "cpu"] or list(range(len(kinds)))
    specs = problem.cluster.devices
    filling.sort(key=lambda d: (not able[d], max(1, len(specs[d].processors)), d))
    filling = sorted(next(sets_at_once(problem.cluster.excludes, filling)))
    others = [d for d in range(len(kinds)) if d not in filling]
    turns = [[*filling[at:], *filling[:at], *others] for at in range(len(filling))]
    device_of_class = fill(
        classes_in_order(problem),
        problem.allowed_by_class,
        sizes,
        float(sizes.sum() / len(filling) + sizes.max()),
        np.array(turns, dtype=np.int64),
        len(filling),
        new_free_memory(problem, limits),
    )
    return classes.expand(device_of_class), None


@compiled
def fill(
    order: IntArray,
    allowed: BoolArray,
    sizes: FloatArray,
    share: float,
    turns: IntArray,
    n_filling: int,
    memory: FreeMemory,
) -> IntArray:
    """Fill one device after the other with colocation classes, in the given order.

    Args:
        order: of the classes, (n_classes,).
        allowed: (n_classes, n_devices).
        sizes: bytes of each class, (n_classes,).
        share: bytes after which the next device's turn comes.
        turns: order of preference of devices at each turn, (n_filling, n_devices).
        n_filling: devices that get a share.
        memory: free memory before any placement.

    Returns:
        Device of each class, (n_classes,).
    """
    filled = np.zeros(turns.shape[1])
    current = 0
    for group in order:
        while current < n_filling - 1 and filled[turns[current, 0]] + sizes[group] > share:
            current += 1
        chosen = -1
        for device in turns[current]:
            if not allowed[group, device]:
                continue
            if chosen < 0:
                chosen = device  # if none has enough memory
            if not memory.is_limited or fits(memory, group, device):
                chosen = device
                break
        take(memory, group, chosen)
        filled[chosen] += sizes[group]
    return memory.device_of_class
