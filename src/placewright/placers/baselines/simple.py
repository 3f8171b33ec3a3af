"""Placers without a search or costs of their own: single, round-robin, random, even split.

Homogeneous placements, one for each device, are also the start of every search that learns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import ClassVar

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.core.processors import sets_at_once
from placewright.core.solution import Solution
from placewright.errors import UnknownNameError
from placewright.placers.bases import ForEveryProblem, anytime, require_counts, require_one_of
from placewright.placers.legal import (
    Proposal,
    classes_in_order,
    evaluate_repaired,
    evaluate_within_limits,
)
from placewright.placers.resident import fits, new_free_memory, take
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.ranks import mean_costs

_UNITS_AT_ONCE = 1_000_000  # half a second of simulation


@dataclass(frozen=True)
class Single(ForEveryProblem):
    """The best single device, or a given one.

    Units that it cannot run go to the fastest device that can.

    Attributes:
        device: name of the device; empty tries each and returns the best.
    """

    name: ClassVar[str] = "single"
    paper: ClassVar[str] = "baseline"

    device: str = ""

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation per device (more if memory binds).

        Raises:
            UnknownNameError: the named device is not in the cluster.
        """
        del rng
        names = problem.cluster.device_names
        if self.device and self.device not in names:
            raise UnknownNameError("device", self.device, names)
        for device, name in enumerate(names):
            if self.device in ("", name):
                wish = np.full(problem.n_units, device, dtype=np.int64)
                evaluate_repaired(problem, evaluator, wish)
        return evaluator.solution()


def homogeneous_placements(problem: Problem) -> IntArray:
    """One placement for each device, shape (n_devices, n_units).

    A colocation class that the device may not hold goes to the first device that may.
    """
    allowed = problem.allowed_by_class
    fallback = allowed.argmax(axis=1)  # (classes,)
    chosen = np.where(allowed, np.arange(problem.n_devices), fallback[:, None]).T
    placements: IntArray = chosen[:, problem.colocation.group_of]
    return placements


def evaluate_homogeneous(problem: Problem, evaluator: Evaluator) -> None:
    """Evaluate the homogeneous placements; they count as queries, and no policy learns from them.

    Raises:
        BudgetSpent: no query is left.
    """
    evaluator.evaluate_many(homogeneous_placements(problem))


@dataclass(frozen=True)
class RoundRobin(ForEveryProblem):
    """Deals colocation classes by their first unit; skips devices that cannot take a class."""

    name: ClassVar[str] = "round-robin"
    paper: ClassVar[str] = "baseline"

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation (more if memory binds)."""
        del rng
        evaluate_within_limits(evaluator, lambda limits: _dealt(problem, limits))
        return evaluator.solution()


def _dealt(problem: Problem, limits: FloatArray) -> Proposal:
    memory, device = new_free_memory(problem, limits), -1
    for group in classes_in_order(problem).tolist():
        turns = np.roll(np.arange(problem.n_devices), -device - 1)
        usable = turns[problem.allowed_by_class[group, turns]].tolist()
        roomy = (at for at in usable if not memory.is_limited or fits(memory, group, at))
        device = next(roomy, usable[0])
        take(memory, group, device)
    return problem.colocation.expand(memory.device_of_class), None


@dataclass(frozen=True)
class RandomSearch(ForEveryProblem):
    """Draws a uniform device for every colocation class, independently.

    Attributes:
        samples: draws if the budget has no limit.
        batch: draws per call to the evaluator.
    """

    name: ClassVar[str] = "random"
    paper: ClassVar[str] = "baseline"

    samples: int = 1000
    batch: int = 64

    def __post_init__(self) -> None:
        require_counts("random", self, "samples", "batch")

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Draw until the budget ends, or `samples` times without a budget."""
        for size in batches(evaluator, self.samples, min(self.batch, at_once(problem))):
            evaluator.evaluate_many(random_placements(problem, rng, size))
        return evaluator.solution()


def at_once(problem: Problem) -> int:
    """Number of placements to evaluate between two checks of the budget."""
    return max(1, _UNITS_AT_ONCE // problem.n_units)


def batches(evaluator: Evaluator, samples: int, batch: int) -> Iterator[int]:
    """Sizes of batches: without end if the budget has a limit, else `samples` in all."""
    if evaluator.budget.is_limited:
        yield from repeat(batch)
    for drawn in range(0, samples, batch):
        yield min(batch, samples - drawn)


def random_placements(problem: Problem, rng: np.random.Generator, size: int) -> np.ndarray:
    """Placements that keep support, pins and colocation, shape (size, n_units), int64."""
    allowed = problem.allowed_by_class
    n_choices = allowed.sum(axis=1)
    choices = np.argsort(~allowed, axis=1, kind="stable")  # allowed devices first
    draws = rng.integers(0, np.maximum(1, n_choices), size=(size, len(n_choices)))
    chosen = choices[np.arange(len(n_choices))[None, :], draws]  # (size, classes)
    return np.asarray(chosen[:, problem.colocation.group_of], dtype=np.int64)


@dataclass(frozen=True)
class EvenSplit(ForEveryProblem):
    """Cuts the topological order so that all devices are busy for the same time.

    Of devices that share a processor one gets a share; see `devices_at_once`.

    Attributes:
        share: ``"work"`` gives every device the same fraction of the mean seconds;
            ``"speed"`` fractions in proportion to the devices' speed, so that all take as long;
            ``"memory"`` fractions of the weight bytes in proportion to the devices' memory.
    """

    name: ClassVar[str] = "even-split"
    paper: ClassVar[str] = "baseline"

    share: str = "speed"

    def __post_init__(self) -> None:
        require_one_of("even-split", self, ("work", "speed", "memory"), "share")

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation (more if memory binds)."""
        del rng
        evaluate_repaired(problem, evaluator, contiguous_split(problem, self.share))
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
    allowed = np.isfinite(costs) & (costs > 0)
    allowed &= allowed.sum(axis=1, keepdims=True) > 1
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
