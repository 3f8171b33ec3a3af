"""The search on levels of groups: what it asks next, and what it makes of the answers.

A generator yields placements and is sent their values, so that the end of a turn may come between
any two questions and the next turn goes on there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.placers.search.levels.coarsening import Level, levels_of

Questions = Generator[IntArray, FloatArray, tuple[IntArray, float]]

_CELLS = 1_000_000  # units times rows that are asked about at a time: half a second
_SAMPLES, _ELITE = 50, 0.1  # placements of one distribution, and the share that it moves to
_SMOOTHING = 0.8  # weight of the new frequencies
_FLOOR, _FLOOR_FALLS = 0.1, 0.85  # probability that is spread evenly, and what is left of it
_IDLE = 8  # distributions without a better placement that end the sampling
_SPREAD = (-1.0, 3.0)  # of the logarithm of the number of groups when sampling begins anew
_KINDS = (0.55, 0.25, 0.2)  # of moves: next to a neighbour, anywhere, a run of groups


@dataclass(frozen=True)
class Shape:
    """How wide the search looks.

    Attributes:
        fewest: groups of the coarsest level.
        batch: neighbours of one placement that are asked about at a time.
        patience: batches without improvement that end a level, for a level of `fewest` groups.
        kick: groups that move at the coarsest level of a further cycle, at most.
        temperature: excess over the best that a cycle may start from, as a share of it.
        restart: cycles without improvement after which sampling begins anew.
    """

    fewest: int
    batch: int
    patience: int
    kick: int
    temperature: float
    restart: int


def cycles(
    problem: Problem,
    shape: Shape,
    incumbent: Callable[[], tuple[IntArray | None, float]],
    rng: np.random.Generator,
) -> Generator[IntArray, FloatArray, None]:
    """Questions without end: sample a start, refine it, then coarsen and refine it again and again.

    Yields:
        Placements, shape (n, n_units), n >= 1.

    Args:
        problem: what is placed.
        shape: of the search.
        incumbent: devices of the best placement that anybody knows, and its value; None and inf
            before there is one.
        rng: of this search alone.
    """
    current, value = yield from _sampled_and_refined(problem, shape, shape.fewest, rng)
    known, stale, heard = value, 0, math.inf
    while True:
        outside, told = incumbent()
        if outside is not None and told < min(known, heard):
            current, value = yield from _better_of(current, value, outside)
            known, stale, heard = min(known, value), 0, told
        if stale >= shape.restart:
            fewest = max(2, round(shape.fewest * 2.0 ** rng.uniform(*_SPREAD)))
            current, value = yield from _sampled_and_refined(problem, shape, fewest, rng)
            known, stale, heard = value, 0, math.inf
        found, reached = yield from _cycled(problem, shape, current, rng)
        stale = 0 if reached < known else stale + 1
        known = min(known, reached)
        if reached <= value or _is_accepted(reached, known, shape.temperature, rng):
            current, value = found, reached


def _sampled_and_refined(
    problem: Problem, shape: Shape, fewest: int, rng: np.random.Generator
) -> Questions:
    levels = levels_of(problem, fewest, rng)
    found, value = yield from _sampled(levels[-1], rng)
    for level in reversed(levels):
        found, value = yield from _refined(level, shape, found, value, rng)
    return found, value


def _cycled(
    problem: Problem, shape: Shape, current: IntArray, rng: np.random.Generator
) -> Questions:
    """Coarsen within devices, move a few groups at some coarse level, refine back to the finest."""
    levels = levels_of(problem, shape.fewest, rng, current)
    top = len(levels) - 1 - int(rng.integers(min(len(levels), 3)))
    level = levels[top]
    device_of = _devices_of_groups(level, current)
    for _ in range(int(rng.integers(1, shape.kick + 1))):
        moved = _neighbours(level, device_of, 1, rng)
        device_of = moved[0] if len(moved) else device_of
    found = device_of[level.group_of]
    values = yield found[None, :]
    value = float(values[0])
    for one in reversed(levels[: top + 1]):
        found, value = yield from _refined(one, shape, found, value, rng)
    return found, value


def _better_of(current: IntArray, value: float, other: IntArray) -> Questions:
    """The better one, where neither has an order."""
    values = yield other[None, :]
    return (other, float(values[0])) if values[0] < value else (current, value)


def _is_accepted(value: float, best: float, temperature: float, rng: np.random.Generator) -> bool:
    if not math.isfinite(value) or temperature == 0 or best <= 0:
        return False
    return bool(rng.random() < math.exp(-(value / best - 1.0) / temperature))


def _sampled(level: Level, rng: np.random.Generator) -> Questions:
    """Cross-entropy method on the devices of groups, from equal chances.

    R. Y. Rubinstein, D. P. Kroese, "The Cross-Entropy Method", Springer 2004, Algorithm 4.2.1: the
    chances move to the frequencies in the best tenth of a batch, with smoothing and a share of
    equal chances that falls.
    """
    even = level.allowed / level.allowed.sum(axis=1, keepdims=True)
    chance, floor, idle = even.copy(), _FLOOR, 0
    best, least = np.argmax(level.allowed, axis=1)[level.group_of], math.inf
    while idle < _IDLE:
        total = chance.cumsum(axis=1)[None]
        draws = rng.random((_SAMPLES, level.n_groups, 1))
        chosen = np.asarray((draws * total[..., -1:] >= total).sum(axis=2), dtype=np.int64)
        values = yield from _valued(chosen, level)
        order = np.argsort(values, kind="stable")[: round(_ELITE * _SAMPLES)]
        elite = chosen[order[np.isfinite(values[order])]]
        idle += 1
        if len(elite) and values[order[0]] < least:
            idle = 0 if values[order[0]] < 0.999 * least else idle
            best, least = chosen[order[0]][level.group_of], float(values[order[0]])
        if len(elite):
            counts = (elite[:, :, None] == np.arange(level.allowed.shape[1])).mean(axis=0)
            moved = _SMOOTHING * counts + (1.0 - _SMOOTHING) * chance
            chance = (1.0 - floor) * moved + floor * even
            floor *= _FLOOR_FALLS
    return best, least


def _valued(chosen: IntArray, level: Level) -> Generator[IntArray, FloatArray, FloatArray]:
    """Values of devices of groups, shape (n, n_groups), in as many questions as memory asks for."""
    at_once = max(1, _CELLS // len(level.group_of))
    values: list[FloatArray] = []
    for first in range(0, len(chosen), at_once):
        values.append((yield chosen[first : first + at_once][:, level.group_of]))
    return np.concatenate(values)


def _refined(
    level: Level, shape: Shape, current: IntArray, value: float, rng: np.random.Generator
) -> Questions:
    """Batches of moves of groups: the best one, or all that are better together, until none is.

    What is as good is taken, too, and does not count as better.
    """
    device_of = _devices_of_groups(level, current)
    size = max(1, min(shape.batch, _CELLS // len(current)))
    scale = max(1.0, level.n_groups / (8.0 * shape.fewest))
    patience = math.ceil(shape.patience * shape.batch / size * min(scale, 4.0))
    failures = 0
    while failures < patience:
        rows = _neighbours(level, device_of, size, rng)
        failures += 1
        if len(rows) == 0:
            continue
        values = yield rows[:, level.group_of]
        better = np.flatnonzero(values < value)
        if len(better) == 0:
            # Where several devices are the last to end, no single move is better.
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
    """Where all units of a group are on one device, shape (n_groups,)."""
    found = np.zeros(level.n_groups, dtype=np.int64)
    found[level.group_of] = device_of
    return found


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
    found: IntArray = rows[(rows != device_of).any(axis=1)]
    return found
