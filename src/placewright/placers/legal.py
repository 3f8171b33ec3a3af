"""What every heuristic needs to stay legal: resident memory by class, repair, tightening."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.simulation.evaluator import Evaluator

Proposal = tuple[IntArray, IntArray | None]


class ResidentMemory:
    """Weight bytes that each device keeps while classes are placed one by one.

    Args:
        problem: what is placed.
        limits: bytes that each device may keep, shape (n_devices,).
    """

    def __init__(self, problem: Problem, limits: FloatArray | None = None) -> None:
        graph, classes = problem.unit_graph, problem.colocation
        self.free = np.array(problem.cluster.memory_bytes if limits is None else limits)
        self._sizes = graph.weight_bytes
        self._held = np.zeros((len(self._sizes), problem.n_devices), dtype=np.int64)
        self._weights: list[IntArray] = []
        for group in range(classes.n_groups):
            units = classes.members.row(group).tolist()
            rows = [graph.op_weights.row(unit) for unit in units]
            self._weights.append(np.unique(np.concatenate(rows)))

    def bytes_of(self, group: int) -> float:
        """Bytes of the class' weights."""
        return float(self._sizes[self._weights[group]].sum())

    def needed(self, group: int, device: int) -> float:
        """Bytes that the class would add to the device."""
        weights = self._weights[group]
        return float(self._sizes[weights[self._held[weights, device] == 0]].sum())

    def fits(self, group: int, device: int) -> bool:
        """True when the class' weights fit beside those that the device keeps."""
        return bool(self.needed(group, device) <= self.free[device])

    def add(self, group: int, device: int) -> None:
        """Keep the class' weights on the device."""
        self.free[device] -= self.needed(group, device)
        self._held[self._weights[group], device] += 1

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

    def remove(self, group: int, device: int) -> None:
        """Take the class off the device."""
        self._held[self._weights[group], device] -= 1
        self.free[device] += self.needed(group, device)


def classes_in_order(problem: Problem) -> IntArray:
    """Colocation classes by their first unit in topological order, (colocation.n_groups,)."""
    groups = problem.colocation.group_of[problem.unit_graph.topological_order]
    _, first = np.unique(groups, return_index=True)
    return np.asarray(groups[np.sort(first)], dtype=np.int64)


def repaired(problem: Problem, device_of: IntArray, limits: FloatArray | None = None) -> IntArray:
    """The nearest legal placement that a greedy pass finds.

    Each colocation class goes to the allowed device where most of its seconds were, then classes
    leave devices whose resident bytes exceed `limits`: the one with most bytes per second first, to
    the fastest device where it fits.

    Args:
        problem: what is placed.
        device_of: device of each unit, shape (n_units,); -1 where a method has no wish.
        limits: resident bytes of each device, shape (n_devices,); default the devices' memory.

    Returns:
        Shape (n_units,). Pins, support and colocation hold; memory where the pass succeeded.
    """
    classes, allowed = problem.colocation, problem.allowed_by_class
    seconds = np.zeros((classes.n_groups, problem.n_devices))
    np.add.at(seconds, classes.group_of, np.where(problem.allowed, problem.costs.seconds, 0.0))
    wish = np.zeros((classes.n_groups, problem.n_devices))
    wanted = np.flatnonzero(device_of >= 0)
    weight = np.where(problem.allowed, problem.costs.seconds, 0.0).max(axis=1) + 1e-300
    np.add.at(wish, (classes.group_of[wanted], device_of[wanted]), weight[wanted])
    score = np.where(allowed, wish - seconds / (1.0 + seconds.sum()) * 1e-300, -np.inf)
    device_of_class = score.argmax(axis=1)
    memory = ResidentMemory(problem, limits)
    for group, device in enumerate(device_of_class.tolist()):
        memory.add(group, device)
    for device in range(problem.n_devices):
        _unload(device, device_of_class, memory, np.where(allowed, seconds, np.inf))
    return np.asarray(device_of_class[classes.group_of], dtype=np.int64)


def _unload(
    device: int, device_of_class: IntArray, memory: ResidentMemory, seconds: FloatArray
) -> None:
    """Move classes off one device until what it keeps fits."""
    if memory.free[device] >= 0:
        return
    members = np.flatnonzero(device_of_class == device).tolist()
    density = {g: memory.bytes_of(g) / (1e-12 + seconds[g, device]) for g in members}
    for group in sorted(members, key=lambda g: (-density[g], g)):
        if memory.free[device] >= 0:
            return
        for target in np.argsort(seconds[group], kind="stable").tolist():
            usable = target != device and np.isfinite(seconds[group, target])
            if usable and memory.fits(group, target):
                memory.remove(group, device)
                memory.add(group, target)
                device_of_class[group] = target
                break


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
        violation = evaluator.simulator.violation(Placement.of(device_of, order))
        if violation is None or violation.constraint != "memory":
            return value
        device = cluster.device(violation.where)
        limits[device] = max(0.0, limits[device] - max(1.0, violation.excess))
    return math.inf


def failure(evaluator: Evaluator, device_of: IntArray, order: IntArray | None = None) -> str:
    """Why a placement is infeasible, in one line."""
    violation = evaluator.simulator.violation(Placement.of(device_of, order))
    return violation.message if violation else ""
