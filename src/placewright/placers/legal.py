"""What every heuristic needs to stay legal: resident memory by class, tightening."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.placers.resident import new_holdings, weights_of
from placewright.simulation.evaluator import Evaluator

Proposal = tuple[IntArray, IntArray | None]


class ResidentMemory:
    """Bytes that each device keeps while classes are placed one by one.

    Args:
        problem: what is placed.
        limits: bytes that each device may keep, shape (n_devices,).
    """

    def __init__(self, problem: Problem, limits: FloatArray | None = None) -> None:
        self.free = np.array(problem.cluster.memory_bytes if limits is None else limits)
        self._weights = weights_of(problem)
        self._held = new_holdings(self._weights, problem.n_devices)

    def needed(self, group: int, device: int) -> float:
        """Bytes that the class would add to the device."""
        weights = self._weights
        shared = weights.shared[weights.shared_ptr[group] : weights.shared_ptr[group + 1]]
        missing = shared[self._held[shared, device] == 0]
        return float(weights.own_bytes[group] + weights.shared_bytes[missing].sum())

    def fits(self, group: int, device: int) -> bool:
        """True when what the class keeps fits beside what the device keeps."""
        return bool(self.needed(group, device) <= self.free[device])

    def add(self, group: int, device: int) -> None:
        """Keep the class' weights on the device."""
        weights = self._weights
        self.free[device] -= self.needed(group, device)
        shared = weights.shared[weights.shared_ptr[group] : weights.shared_ptr[group + 1]]
        self._held[shared, device] += 1

    def add_first(self, group: int, turns: Sequence[int], allowed: BoolArray) -> int:
        """Keep the class on the first device that has room for it.

        Args:
            group: the class.
            turns: every device, in the order in which they are asked.
            allowed: devices that may run it, shape (n_devices,); one of them takes it all the same
                where none has room.

        Returns:
            The device.
        """
        usable = [device for device in turns if allowed[device]]
        device = next((device for device in usable if self.fits(group, device)), usable[0])
        self.add(group, device)
        return device


def classes_in_order(problem: Problem) -> IntArray:
    """Colocation classes by their first unit in topological order, (colocation.n_groups,)."""
    groups = problem.colocation.group_of[problem.unit_graph.topological_order]
    _, first = np.unique(groups, return_index=True)
    return np.asarray(groups[np.sort(first)], dtype=np.int64)


def evaluate_within_memory(
    evaluator: Evaluator, propose: Callable[[FloatArray], Proposal], *, rounds: int = 8
) -> float:
    """Evaluate a method's proposal; where live tensors exceed memory, ask again with less.

    Methods plan with resident bytes; only the simulator knows live tensors. Each round takes the
    excess off the resident limit of the device that was over.

    Args:
        evaluator: counts every round.
        propose: resident limits, shape (n_devices,) -> devices and order (or None).
        rounds: proposals at most.

    Returns:
        The value of the last proposal; inf when none was feasible.
    """
    cluster = evaluator.problem.cluster
    limits = np.array(cluster.memory_bytes)
    for _ in range(rounds):
        device_of, order = propose(limits)
        value = evaluator.evaluate(device_of, order)
        if math.isfinite(value):
            return value
        if not tighten(evaluator, (device_of, order), limits):
            return value
    return math.inf


def tighten(evaluator: Evaluator, proposal: Proposal, limits: FloatArray) -> bool:
    """Take the bytes that a proposal exceeds a device's memory by off the device's limit.

    Returns:
        False where memory is not what makes the proposal infeasible.
    """
    violation = evaluator.simulator.violation(Placement.of(*proposal))
    if violation is None or violation.constraint != "memory":
        return False
    device = evaluator.problem.cluster.device(violation.where)
    limits[device] = max(0.0, limits[device] - max(1.0, violation.excess))
    return True


def failure(evaluator: Evaluator, device_of: IntArray, order: IntArray | None = None) -> str:
    """Why a placement is infeasible, in one line."""
    violation = evaluator.simulator.violation(Placement.of(device_of, order))
    return violation.message if violation else ""
