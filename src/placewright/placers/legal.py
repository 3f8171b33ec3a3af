"""Constraints for heuristics: limits lowered until live tensors fit, fewer segments, devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import BudgetSpent
from placewright.placers.repair import repaired
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.segments import Segment, segments_of

_SEGMENT_ROUNDS = 16


def with_fewer_segments(
    problem: Problem,
    device_of: IntArray,
    order: IntArray | None = None,
    *,
    is_over: Callable[[], bool] = lambda: False,
) -> tuple[IntArray, IntArray]:
    """Move segments off devices that would run too many.

    Each round cuts the placement into segments. A device with k segments too many gives k away:
    those whose units take the fewest additional seconds on their best other device. Colocation
    classes stay whole, and no class returns to a device that it left.

    Args:
        problem: of execution model `event`.
        device_of: device of each unit, shape (n_units,).
        order: topological order of all units; None takes the one of the graph.
        is_over: called for each segment; True ends the work.

    Returns:
        Devices, shape (n_units,), and the order whose segments were counted. Devices may still have
        too many segments if pins or support hold their units.

    Raises:
        BudgetSpent: `is_over` said so.
    """
    device_of, group_of = np.array(device_of, dtype=np.int64), problem.colocation.group_of
    order = problem.unit_graph.topological_order if order is None else order
    may_run = np.array(problem.allowed_by_class)  # (n_classes, n_devices)
    for _ in range(_SEGMENT_ROUNDS):
        segments = segments_of(problem, Placement.of(device_of, order), order)
        target_of = np.full(len(may_run), -1, dtype=np.int64)  # device of each class that moves
        for device, spec in enumerate(problem.cluster.devices):
            mine = [segment for segment in segments if segment.device == device]
            excess = len(mine) - (spec.max_segments or len(mine))
            if excess <= 0:
                continue
            moves = []
            for segment in mine:
                if is_over():
                    raise BudgetSpent
                moves.append(_cheapest_move(problem, segment, may_run))
            cheapest = sorted((cost, at, target) for at, (cost, target) in enumerate(moves))
            for cost, at, target in cheapest[:excess]:
                if math.isinf(cost):
                    break
                classes = group_of[list(mine[at].units)]
                target_of[classes] = target
                may_run[classes, device] = False
        if (target_of < 0).all():
            break
        targets = target_of[group_of]
        device_of = np.where(targets < 0, device_of, targets)
    return device_of, order


def _cheapest_move(problem: Problem, segment: Segment, may_run: np.ndarray) -> tuple[float, int]:
    """Additional seconds of a segment's units on their best other device, and that device."""
    units = list(segment.units)
    classes = np.unique(problem.colocation.group_of[units])
    seconds = problem.costs.seconds[units].sum(axis=0)
    seconds = np.where(may_run[classes].all(axis=0), seconds, np.inf)
    seconds[segment.device] = np.inf
    best = int(seconds.argmin())
    here = float(problem.costs.seconds[units, segment.device].sum())
    return float(seconds[best]) - here, best


Proposal = tuple[IntArray, IntArray | None]
_ROUNDS = 8  # proposals of a method whose live tensors exceed a limit


def classes_in_order(problem: Problem) -> IntArray:
    """Colocation classes by their first unit in topological order, (colocation.n_groups,)."""
    groups = problem.colocation.group_of[problem.unit_graph.topological_order]
    _, first = np.unique(groups, return_index=True)
    return np.asarray(groups[np.sort(first)], dtype=np.int64)


def class_seconds(problem: Problem) -> FloatArray:
    """Seconds of each class on each device, (n_classes, n_devices); inf where it may not run."""
    seconds = problem.colocation.sums(problem.costs.seconds)
    return np.where(problem.allowed_by_class, seconds, np.inf)


def evaluate_within_limits(
    evaluator: Evaluator, propose: Callable[[FloatArray], Proposal]
) -> float:
    """Evaluate a method's proposals with ever lower limits until live tensors fit, too.

    Methods plan with resident bytes; the simulator also counts live tensors. Each round lowers the
    resident limit of the device or pool that exceeded its memory by the excess. If a device would
    run too many segments, the proposal is evaluated once more with fewer.

    Args:
        propose: resident limits of devices, then of shared pools, shape (n_devices + n_pools,)
            -> devices and order (or None); at most `_ROUNDS` times.

    Returns:
        The value of the last proposal; inf if none was feasible.
    """
    cluster = evaluator.problem.cluster
    limits = np.array(cluster.memory_limits)
    for _ in range(_ROUNDS):
        device_of, order = propose(limits)
        value = evaluator.evaluate(device_of, order)
        if math.isfinite(value):
            return value
        if evaluator.problem.cluster.limits_segments:
            device_of, order = with_fewer_segments(
                evaluator.problem, device_of, order, is_over=lambda: evaluator.is_spent
            )
            value = evaluator.evaluate(device_of, order)
            if math.isfinite(value):
                return value
        if not tighten(evaluator, (device_of, order), limits):
            return value
    return math.inf


def evaluate_repaired(problem: Problem, evaluator: Evaluator, wish: IntArray) -> float:
    """`evaluate_within_limits` of a wish, shape (n_units,), that is repaired for the limits."""
    return evaluate_within_limits(evaluator, lambda limits: (repaired(problem, wish, limits), None))


def tighten(evaluator: Evaluator, proposal: Proposal, limits: FloatArray) -> bool:
    """Lower the limit of the device or pool whose memory a proposal exceeds, by the excess.

    Returns:
        False if the proposal breaks another constraint than memory.
    """
    violation = evaluator.simulator.violation(Placement.of(*proposal))
    if violation is None or violation.constraint != "memory":
        return False
    cluster, excess = evaluator.problem.cluster, violation.excess
    if violation.where in cluster.shared_pools:
        at = cluster.n_devices + cluster.shared_pools.index(violation.where)
    elif violation.where in cluster.pools:  # a pool of one device, of some of its bytes
        shares = [device.pool_shares.get(violation.where, 0.0) for device in cluster.devices]
        at = int(np.argmax(shares))
        excess /= shares[at] * cluster.devices[at].replicas
    else:
        at = cluster.device(violation.where)
    limits[at] = max(0.0, limits[at] - max(1.0, excess))
    return True


def failure(evaluator: Evaluator, device_of: IntArray) -> str:
    """The constraint that a placement breaks, in one line; empty if it breaks none."""
    violation = evaluator.simulator.violation(Placement.of(device_of))
    return violation.message if violation else ""


@dataclass(frozen=True, eq=False)
class ActionSpace:
    """Groups of units with the devices that each may choose."""

    problem: Problem  # the problem to solve
    grouping: Grouping  # units -> groups, closed under colocation

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return self.grouping.n_groups

    @cached_property
    def allowed_of_units(self) -> BoolArray:
        """Devices of each unit by support, pins and colocation, shape (n_units, n_devices)."""
        return self.problem.allowed_by_class[self.problem.colocation.group_of]

    @cached_property
    def home(self) -> IntArray:
        """The device where a unit's colocation class is fastest, shape (n_units,)."""
        return self.problem.colocation.expand(class_seconds(self.problem).argmin(axis=1))

    @cached_property
    def allowed(self) -> BoolArray:
        """Devices of each group, shape (n_groups, n_devices).

        If the members have none in common, those of any member (see `expand`).
        """
        return common_devices(self.allowed_of_units, self.grouping.group_of)

    def draw(self, n: int, rng: np.random.Generator) -> IntArray:
        """Uniform allowed devices of all groups, shape (n, n_groups)."""
        draws = np.where(self.allowed, rng.random((n, *self.allowed.shape)), -1.0)
        return np.asarray(draws.argmax(axis=2))

    def uniform(self, n: int, rng: np.random.Generator) -> IntArray:
        """Placements with a uniform device for every group, shape (n, n_units)."""
        return self.expand(self.draw(n, rng))

    def expand(self, devices_of_groups: IntArray) -> IntArray:
        """Devices of groups -> devices of units, shape (..., n_groups) -> (..., n_units).

        A unit that cannot run on its group's device goes to the fastest one of its colocation class
        (`home`): TensorFlow's soft placement, which the published systems rely on.
        """
        return self.expand_with(self.grouping.group_of, devices_of_groups)

    def expand_with(self, group_of: IntArray, devices_of_groups: IntArray) -> IntArray:
        """`expand` for another grouping, for example one that a policy has sampled."""
        rows = devices_of_groups[..., group_of]  # (..., n_units)
        fits = self.allowed_of_units[np.arange(self.problem.n_units), rows]
        return np.where(fits, rows, self.home)


def common_devices(allowed: BoolArray, group_of: IntArray) -> BoolArray:
    """Devices that all members of a group may use, shape (n_groups, n_devices).

    If the members have none in common, those of any member; if none has one, all.

    Args:
        allowed: devices of each member, shape (n_members, n_devices).
        group_of: group of each member, shape (n_members,).
    """
    common = np.ones((int(group_of.max()) + 1, allowed.shape[1]), dtype=np.bool_)
    some = np.zeros_like(common)
    np.logical_and.at(common, group_of, allowed)
    np.logical_or.at(some, group_of, allowed)
    nothing = ~common.any(axis=1, keepdims=True)
    mask: BoolArray = np.where(nothing, some | ~some.any(axis=1, keepdims=True), common)
    return mask
