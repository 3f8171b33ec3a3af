"""Contiguous split of one topological order: each device gets the same share of the work.

Of devices that share a processor one gets a share; see `devices_at_once`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray, frozen_bools
from placewright.core.problem import Problem
from placewright.core.processors import sets_at_once
from placewright.core.solution import Solution
from placewright.errors import InputError
from placewright.placers.anytime import anytime
from placewright.placers.conditions import ForEveryProblem
from placewright.placers.legal import evaluate_within_limits
from placewright.placers.repair import repaired
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.ranks import mean_costs


@dataclass(frozen=True)
class EvenSplit(ForEveryProblem):
    """Cuts the topological order so that all devices are busy for the same time.

    Attributes:
        share: ``"work"`` gives every device the same fraction of the mean seconds;
            ``"speed"`` fractions in proportion to the devices' speed, so that all take as long;
            ``"memory"`` fractions of the weight bytes in proportion to the devices' memory.
    """

    name: ClassVar[str] = "even-split"
    paper: ClassVar[str] = "baseline"

    share: str = "speed"

    def __post_init__(self) -> None:
        if self.share not in ("work", "speed", "memory"):
            raise InputError(
                f"even-split: share must be 'work', 'speed' or 'memory', got '{self.share}'"
            )

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation (more if memory binds)."""
        del rng
        wish = contiguous_split(problem, self.share)
        evaluate_within_limits(evaluator, lambda limits: (repaired(problem, wish, limits), None))
        return evaluator.solution()


def contiguous_split(problem: Problem, share: str) -> IntArray:
    """Device of each unit, shape (n_units,), before repair."""
    size, chosen = mean_costs(problem), np.array(_sharing(problem))
    fractions = np.ones(problem.n_devices)
    if share == "speed":
        fractions = device_speeds(problem)
    if share == "memory":
        size = np.array(problem.kept.unit_bytes)
        memory = np.array(problem.cluster.memory_bytes)[chosen]
        unlimited = np.isinf(memory)
        fractions[chosen] = unlimited if unlimited.any() else memory
    order = problem.unit_graph.topological_order
    total = size.sum()
    middle = (np.cumsum(size[order]) - size[order] / 2) / (total if total > 0 else 1.0)
    ends = np.cumsum(fractions[chosen])
    ends /= ends[-1] if ends[-1] > 0 else 1.0
    device_of = np.empty(problem.n_units, dtype=np.int64)
    device_of[order] = chosen[np.minimum(np.searchsorted(ends, middle), len(chosen) - 1)]
    return device_of


def _sharing(problem: Problem) -> tuple[int, ...]:
    """Devices that get a share: all, but one of those with a common processor."""
    if problem.cluster.excludes.any():
        return next(devices_at_once(problem))
    return tuple(range(problem.n_devices))


def devices_at_once(problem: Problem, usable: BoolArray | None = None) -> Iterator[tuple[int, ...]]:
    """Sets of usable devices that may compute at once, each in ascending order.

    The first has devices of few processors and, of those, fast ones.
    """
    mask = np.ones(problem.n_devices, dtype=np.bool_) if usable is None else usable
    able = mask & problem.allowed.any(axis=0)
    devices = np.flatnonzero(able if able.any() else mask).tolist()
    speeds, specs = device_speeds(problem), problem.cluster.devices

    def preference(device: int) -> tuple[int, float, int]:
        return max(1, len(specs[device].processors)), -float(speeds[device]), device

    devices.sort(key=preference)
    for found in sets_at_once(problem.cluster.excludes, devices):
        yield tuple(sorted(found))


def device_speeds(problem: Problem) -> FloatArray:
    """Work per second of each device relative to the others, shape (n_devices,), positive.

    Streams times the geometric mean, over units that two or more devices can run, of the fastest
    device's seconds divided by those of this device.
    """
    costs = problem.costs.seconds
    allowed = frozen_bools(np.isfinite(costs) & (costs > 0))
    seconds = np.where(allowed, problem.costs.seconds, np.inf)
    best = seconds.min(axis=1)
    speeds = np.ones(problem.n_devices)
    for device, spec in enumerate(problem.cluster.devices):
        rows = allowed[:, device]
        if rows.any():
            ratio = np.log(seconds[rows, device] / best[rows])
            weights = best[rows] / best[rows].sum()
            speeds[device] = spec.streams * float(np.exp(-(ratio * weights).sum()))
        else:
            speeds[device] = 1e-9
    return speeds
