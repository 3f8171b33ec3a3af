"""Multilevel search: few large groups first, then ever smaller ones, then groups again.

G. Karypis, V. Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs",
SIAM Journal on Scientific Computing 20(1), 1998; further cycles that coarsen within the blocks of
the incumbent: C. Walshaw, "Multilevel Refinement for Combinatorial Optimisation Problems", Annals
of Operations Research 131, 2004.

The units are joined to ever fewer groups along heavy edges. On the coarsest level devices of groups
are sampled by the cross-entropy method; each finer level moves its groups, one or a run of them, as
long as that helps. A further cycle joins only what is on one device, moves a few groups of a coarse
level, and refines again. After some cycles without improvement sampling starts again.

Departures from the papers: on every level the evaluator values the placement of all units, because
the makespan of a coarse graph, whose groups run as one, predicts that of the fine graph poorly.

The search is a generator that yields placements and receives their values, so that a turn may end
between any two batches and the next turn continues there.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.bases import (
    ForEveryProblem,
    anytime,
    require_counts,
    require_numbers,
)
from placewright.placers.search.cem import sampled_devices, smoothed
from placewright.placers.search.coarsening import Level, levels_of
from placewright.placers.shared_weights import with_shared_weights_tied
from placewright.simulation.evaluator import Evaluator

Batches = Generator[IntArray, FloatArray, tuple[IntArray, float]]
_CELLS = 1_000_000  # units times placements of one batch: half a second
_SAMPLES, _ELITE = 50, 0.1  # placements of one distribution, and the share that updates it
_SMOOTHING = 0.8  # weight of the new frequencies
_FLOOR, _FLOOR_FALLS = 0.1, 0.85  # weight of the uniform distribution, and its decay
_IDLE = 8  # distributions without improvement that end the sampling
_SPREAD = (-1.0, 3.0)  # of log2 of the factor on the number of groups after a restart
_KINDS = (0.55, 0.25, 0.2)  # of moves: next to a neighbour, anywhere, a run of groups


@dataclass(frozen=True)
class Multilevel(ForEveryProblem):
    """Samples on the coarsest level, refines on all, then cycles from the incumbent.

    Attributes:
        groups: of the coarsest level, >= 2; after a restart, half to eight times as many.
        batch: neighbours per call to the evaluator.
        patience: batches without improvement that end a coarse level; finer ones have up to four
            times as many.
        kick: most moves that a further cycle begins with, each of a group or of a run of groups.
        temperature: relative excess over the best that is accepted with probability 1/e.
        restart: cycles without an improvement before sampling starts again.
        batches: calls to the evaluator if the budget has no limit.
    """

    name: ClassVar[str] = "multilevel"
    paper: ClassVar[str] = "Karypis and Kumar, SISC 1998"

    groups: int = 16
    batch: int = 16
    patience: int = 12
    kick: int = 3
    temperature: float = 0.005
    restart: int = 12
    batches: int = 1000

    def __post_init__(self) -> None:
        require_counts("multilevel", self, "groups", least=2)
        counts = ("batch", "patience", "kick", "restart", "batches")
        require_counts("multilevel", self, *counts)
        require_numbers("multilevel", self, ">= 0", "temperature")

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Search until the budget ends, the gap is closed, or `batches` without a budget.

        A further call with the same evaluator goes on where the last one ended.
        """
        if problem.allowed_by_class.sum(axis=1).max() <= 1:  # nothing can move
            if evaluator.best is None:
                only = np.argmax(problem.allowed_by_class, axis=1)
                evaluator.evaluate(only[problem.colocation.group_of])
            return evaluator.solution()
        search = evaluator.memory.get(self.name)
        if search is None or search.settings != self:
            search = evaluator.memory[self.name] = _Search(self, rng.spawn(1)[0])
        search.replay(problem, evaluator)
        done, has_limit = 0, evaluator.budget.is_limited
        while (has_limit or done < self.batches) and not evaluator.is_closed:
            search.evaluate_batch(evaluator)
            done += 1
        return evaluator.solution()


@dataclass(eq=False)
class _Search:
    """State of a search between calls: batches of placements, and their values so far.

    Another process receives the values, and replays all batches without evaluating anything.
    """

    settings: Multilevel  # of the search
    rng: np.random.Generator  # as it was before the first batch
    # values of all rows of each finished batch
    finished: list[FloatArray] = field(default_factory=list)
    # incumbents (devices, value) that the batches depend on, in time order
    incumbents: list[tuple[IntArray | None, float]] = field(default_factory=list)
    # values of the first rows of a batch that the budget cut off
    values: list[FloatArray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._batches: Generator[IntArray, FloatArray, None] | None = None
        self._rows = np.zeros((0, 0), dtype=np.int64)  # of the first batch without values
        self._n_replayed = self._n_incumbents = 0  # that `_batches` has received

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name[0] != "_"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()

    def catch_up(self, later: _Search) -> None:
        """Take over what later turns of the same search, in other processes, have finished."""
        if not self._is_before(later):
            self.__post_init__()
        vars(self).update(later.__getstate__())

    def _is_before(self, later: _Search) -> bool:
        pairs = zip(self.finished, later.finished, strict=False)
        return len(self.finished) <= len(later.finished) and all(
            np.array_equal(mine, other) for mine, other in pairs
        )

    def replay(self, problem: Problem, evaluator: Evaluator) -> None:
        """Replay known values up to the first batch without values; evaluates nothing."""
        self._evaluator = weakref.ref(evaluator)  # which holds this search in its memory
        if self._batches is None:
            tied = with_shared_weights_tied(problem)
            self._batches = cycles(tied, self.settings, self._incumbent, copy.deepcopy(self.rng))
            self._rows = next(self._batches)
        while self._n_replayed < len(self.finished):
            self._rows = self._batches.send(self.finished[self._n_replayed])
            self._n_replayed += 1

    def evaluate_batch(self, evaluator: Evaluator) -> None:
        """Evaluate one batch; the next call evaluates the rows that the budget cut off."""
        assert self._batches is not None
        known = sum(len(values) for values in self.values)
        self.values.append(evaluator.evaluate_many(self._rows[known:]))
        if known + len(self.values[-1]) == len(self._rows):
            self.finished.append(np.concatenate(self.values))
            self.values = []
            self._n_replayed += 1
            self._rows = self._batches.send(self.finished[-1])

    def _incumbent(self) -> tuple[IntArray | None, float]:
        """The evaluator's incumbent, or that of the first time when values are replayed."""
        if self._n_incumbents == len(self.incumbents):
            known = self._evaluator()
            best, value = (None, math.inf) if known is None else known.incumbent
            self.incumbents.append((None if best is None else best.device_of, value))
        self._n_incumbents += 1
        device_of, value = self.incumbents[self._n_incumbents - 1]
        return None if device_of is None else np.array(device_of), value


def cycles(
    problem: Problem,
    settings: Multilevel,
    incumbent: Callable[[], tuple[IntArray | None, float]],
    rng: np.random.Generator,
) -> Generator[IntArray, FloatArray, None]:
    """Yield batches without end: sample a start, refine it, then coarsen and refine repeatedly.

    Yields:
        Placements, shape (n, n_units), n >= 1.

    Args:
        incumbent: returns the evaluator's best placement and its value; None and inf before there
            is one.
    """
    current, value = yield from _sampled_and_refined(problem, settings, settings.groups, rng)
    known, stale, heard = value, 0, math.inf
    while True:
        outside, outside_value = incumbent()
        if outside is not None and outside_value < min(known, heard):
            current, value = yield from _better_of(current, value, outside)
            known, stale, heard = min(known, value), 0, outside_value
        if stale >= settings.restart:
            fewest = max(2, round(settings.groups * 2.0 ** rng.uniform(*_SPREAD)))
            current, value = yield from _sampled_and_refined(problem, settings, fewest, rng)
            # The incumbent stays aside until another search improves it: its own old best would
            # otherwise end the restart after one cycle.
            known, stale, heard = value, 0, outside_value
        candidate, reached = yield from _cycled(problem, settings, current, rng)
        stale = 0 if reached < known else stale + 1
        known = min(known, reached)
        if reached <= value or _is_accepted(reached, known, settings.temperature, rng):
            current, value = candidate, reached


def _sampled_and_refined(
    problem: Problem, settings: Multilevel, fewest: int, rng: np.random.Generator
) -> Batches:
    levels = levels_of(problem, fewest, rng)
    placement, value = yield from _sampled(levels[-1], rng)
    for level in reversed(levels):
        placement, value = yield from _refined(level, settings, placement, value, rng)
    return placement, value


def _cycled(
    problem: Problem, settings: Multilevel, current: IntArray, rng: np.random.Generator
) -> Batches:
    """Coarsen within devices, move a few groups at a coarse level, refine to the finest."""
    levels = levels_of(problem, settings.groups, rng, current)
    top = len(levels) - 1 - int(rng.integers(min(len(levels), 3)))
    level = levels[top]
    device_of = _devices_of_groups(level, current)
    for _ in range(int(rng.integers(1, settings.kick + 1))):
        moved = _neighbours(level, device_of, 1, rng)
        device_of = moved[0] if len(moved) else device_of
    placement = device_of[level.group_of]
    values = yield placement[None, :]
    value = float(values[0])
    for level in reversed(levels[: top + 1]):
        placement, value = yield from _refined(level, settings, placement, value, rng)
    return placement, value


def _better_of(current: IntArray, value: float, other: IntArray) -> Batches:
    """The better of two placements, both without an order."""
    values = yield other[None, :]
    return (other, float(values[0])) if values[0] < value else (current, value)


def _is_accepted(value: float, best: float, temperature: float, rng: np.random.Generator) -> bool:
    if not math.isfinite(value) or temperature == 0 or best <= 0:
        return False
    return bool(rng.random() < math.exp(-(value / best - 1.0) / temperature))


def _sampled(level: Level, rng: np.random.Generator) -> Batches:
    """Cross-entropy method on the devices of groups, from the uniform distribution.

    R. Y. Rubinstein, D. P. Kroese, "The Cross-Entropy Method", Springer 2004, Algorithm 4.2.1: the
    probabilities move to the frequencies in the best tenth of a batch, with smoothing and a
    decaying share of the uniform distribution.
    """
    even = level.allowed / level.allowed.sum(axis=1, keepdims=True)
    chance, floor, idle = even.copy(), _FLOOR, 0
    best, least = np.argmax(level.allowed, axis=1)[level.group_of], math.inf
    while idle < _IDLE:
        chosen = sampled_devices(chance, _SAMPLES, rng)
        values = yield from _valued(chosen, level)
        order = np.argsort(values, kind="stable")[: round(_ELITE * _SAMPLES)]
        elite = chosen[order[np.isfinite(values[order])]]
        idle += 1
        if len(elite) and values[order[0]] < least:
            idle = 0 if values[order[0]] < 0.999 * least else idle
            best, least = chosen[order[0]][level.group_of], float(values[order[0]])
        if len(elite):
            moved = smoothed(chance, elite, _SMOOTHING)
            chance = (1.0 - floor) * moved + floor * even
            floor *= _FLOOR_FALLS
    return best, least


def _valued(chosen: IntArray, level: Level) -> Generator[IntArray, FloatArray, FloatArray]:
    """Values of devices of groups, shape (n, n_groups), in batches of limited size."""
    at_once = max(1, _CELLS // len(level.group_of))
    values: list[FloatArray] = []
    for first in range(0, len(chosen), at_once):
        values.append((yield chosen[first : first + at_once][:, level.group_of]))
    return np.concatenate(values)


def _refined(
    level: Level, settings: Multilevel, current: IntArray, value: float, rng: np.random.Generator
) -> Batches:
    """Batches of moves of groups: the best move, or all better ones together, until patience ends.

    Accepts ties, which do not reset patience.
    """
    device_of = _devices_of_groups(level, current)
    size = max(1, min(settings.batch, _CELLS // len(current)))
    scale = max(1.0, level.n_groups / (8.0 * settings.groups))
    patience = math.ceil(settings.patience * settings.batch / size * min(scale, 4.0))
    failures = 0
    while failures < patience:
        rows = _neighbours(level, device_of, size, rng)
        failures += 1
        if len(rows) == 0:
            continue
        values = yield rows[:, level.group_of]
        better = np.flatnonzero(values < value)
        if len(better) == 0:
            # If several devices end last, no single move improves the value.
            as_good = np.flatnonzero(values == value)
            device_of = rows[as_good[0]] if len(as_good) else device_of
            continue
        best = int(better[np.argmin(values[better])])
        changed, reached = rows[best].copy(), float(values[best])
        if len(better) > 1:
            together = changed.copy()
            for at in better[np.argsort(-values[better], kind="stable")].tolist():
                together = np.where(rows[at] != device_of, rows[at], together)
            sums = yield together[level.group_of][None, :]
            if sums[0] < reached:
                changed, reached = together, float(sums[0])
        device_of, value, failures = changed, reached, 0
    return device_of[level.group_of], value


def _devices_of_groups(level: Level, device_of: IntArray) -> IntArray:
    """Device of each group, all of whose units are on one device, shape (n_groups,)."""
    device_of_group = np.zeros(level.n_groups, dtype=np.int64)
    device_of_group[level.group_of] = device_of
    return device_of_group


def _neighbours(level: Level, device_of: IntArray, size: int, rng: np.random.Generator) -> IntArray:
    """Placements next to this one, shape (<= size, n_groups), none equal to it.

    A group joins a neighbour or goes anywhere, or a run of groups whose first units follow each
    other moves together; lengths of runs are spread evenly over magnitudes.
    """
    n_groups, n_devices = level.allowed.shape
    group, kind = rng.integers(n_groups, size=size), rng.random(size)
    target, at = rng.integers(n_devices, size=size), rng.random(size)
    first = level.neighbour_ptr[group]
    degree = level.neighbour_ptr[group + 1] - first
    joins = (kind < _KINDS[0]) & (degree > 0)
    neighbour = level.neighbours[first[joins] + (at[joins] * degree[joins]).astype(np.int64)]
    target[joins] = device_of[neighbour]
    rows = np.repeat(device_of[None, :], size, axis=0)
    rows[np.arange(size), group] = target
    longest = math.log(max(2.0, n_groups / 4.0) / 2.0 + 1.0)
    for row in np.flatnonzero(kind >= 1.0 - _KINDS[2]).tolist():
        start = int(level.place_of[group[row]])
        run = level.by_place[start : start + int(2.0 * math.exp(at[row] * longest))]
        rows[row, run] = target[row]
    is_allowed = level.allowed[np.arange(n_groups), rows]
    rows = np.where(is_allowed, rows, device_of)
    changed: IntArray = rows[(rows != device_of).any(axis=1)]
    return changed
