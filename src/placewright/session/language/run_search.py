"""Search among placements that the engine can express: layers in runs.

A Lagrangian relaxation bounds all of them, and a beam search along its prices finds good ones. Then
integer programs place the other modules around attention that lies in runs, with as many layers on
each device as a program without runs found, or nearly as many.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.placers.anytime import anytime, pass_interrupt_on
from placewright.placers.exact.lagrangian.beam import best_in_beam
from placewright.placers.exact.lagrangian.chain import ROUNDING, Chain
from placewright.placers.exact.sequential_ip import SequentialIp
from placewright.session.language.layer_runs import (
    host_columns,
    is_tied,
    layer_runs,
    why_inexpressible,
)
from placewright.session.language.problem import is_of_tokens
from placewright.simulation.evaluator import Evaluator

_METHOD, _BEAM = "Lagrangian relaxation of memory", "beam along prices of memory"
_WIDTHS = (200, 1000, 5000, 20_000)  # of the beams
_ENOUGH = 1e-3  # gap at which the search ends
_SHARE = 0.4  # of the rest of the budget, for each integer program
_LEAST_SECONDS = 0.5  # of the budget; below it no further program begins
_MOST_TRIES = 24  # divisions of layers that are tried
_NOTHING = (
    "none was found whose layers lie in runs, as the engine needs them; give a longer budget, or "
    "more memory"
)


@dataclass(frozen=True)
class LayersInRuns:
    """Places a language model on devices that an engine fills in order."""

    name: ClassVar[str] = "layer-runs"
    paper: ClassVar[str] = "ours, after Geoffrion, Mathematical Programming Study 2, 1974"
    objectives: ClassVar[tuple[str, ...]] = ("latency",)
    needs_training: ClassVar[bool] = False

    def why_not(self, problem: Problem) -> str | None:
        """None for a request to a language model."""
        return None if is_of_tokens(problem) else "this problem is not that of a language model"

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Bound all placements in runs, then search those of each mode of the host."""
        modes = sorted(_modes(problem), key=lambda mode: mode.bound)
        if not modes or math.isinf(modes[0].bound):
            return evaluator.solution(message="the engine cannot express any that keeps all pins")
        evaluator.offer_bound(modes[0].bound, _METHOD)
        for width in _WIDTHS:
            for mode in modes:
                if not _is_enough(evaluator, mode):
                    mode.search_beam(evaluator, width)
                    evaluator.offer_bound(min(open_mode.bound for open_mode in modes), _BEAM)
        for mode in modes:
            if not _is_enough(evaluator, mode):
                mode.search_divisions(evaluator, rng)
        if evaluator.best is None:
            return evaluator.solution(message=_NOTHING)
        return evaluator.solution()


def _is_enough(evaluator: Evaluator, mode: _Mode) -> bool:
    """True if a mode can bring next to nothing, or time is over."""
    return evaluator.is_spent or evaluator.best_value <= mode.bound * (1.0 + _ENOUGH)


def _modes(problem: Problem) -> list[_Mode]:
    """Modes that the pins allow; a pinned embedding allows all, because it is only looked up."""
    host, embedding = host_columns(problem), problem.graph.op_index["embedding"]
    pinned = {at for op, at in problem.pins.items() if op != embedding} & host
    return [_Mode(problem, at) for at in sorted(host) if pinned <= {at}] or (
        [] if host else [_Mode(problem, None)]
    )


class _Mode:
    """A problem whose weights in the memory of the host have one way to be computed.

    Args:
        host: column of these weights; None without a processor.
    """

    def __init__(self, problem: Problem, host: int | None) -> None:
        self._runs, self._host = layer_runs(problem), host
        self._closed = sorted(host_columns(problem) - {host})
        self._problem = _pinned(problem, {}, self._closed, ())
        head = [problem.graph.op_index["head"]] if is_tied(problem) else []
        self._rank = [self._runs.order.index(at) for at in range(problem.n_devices)]
        self._run = [*self._runs.ops, *head]
        self._chain = Chain(self._problem, self._run, self._rank)
        self.bound, self._prices = self._chain.bound()

    def search_beam(self, evaluator: Evaluator, width: int) -> None:
        """Evaluate the best placement of a beam, and raise the bound by what the beam lost."""
        under = evaluator.best_value
        found = best_in_beam(self._chain, self._prices, width, under, lambda: evaluator.is_spent)
        self.bound = max(self.bound, min(found.bound, under) * (1.0 - ROUNDING))
        if found.devices is not None:
            evaluator.evaluate(self._problem.colocation.expand(found.devices))

    def search_divisions(self, evaluator: Evaluator, rng: np.random.Generator) -> None:
        """Solve programs whose attention lies in runs, near that of a program without runs."""
        free = self._solved(self._problem, evaluator, rng)
        if free.placement is None:
            return
        if why_inexpressible(self._problem, free.placement) is None:
            evaluator.evaluate(free.placement.device_of)
        for problem in itertools.islice(self._divided(free.placement), _MOST_TRIES):
            if _is_enough(evaluator, self) or evaluator.remaining_seconds < _LEAST_SECONDS:
                return
            if self._least(problem) >= evaluator.best_value:
                continue
            found = self._solved(problem, evaluator, rng)
            if found.placement is not None:
                evaluator.evaluate(found.placement.device_of)

    def _least(self, problem: Problem) -> float:
        """Lower bound of one division, at the prices that are best for the whole problem."""
        chain = Chain(problem, self._run, self._rank)
        return float(chain.towards_end(self._prices)[0]) - float(self._prices @ chain.limits)

    def _solved(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Solve a program within a share of the budget; its evaluations count."""
        budget = _part(evaluator)
        apart = Evaluator(problem, budget)
        found = pass_interrupt_on(SequentialIp().place(problem, apart, rng))
        counted = replace(found, history=(), lower_bound=0.0)
        evaluator.take_in(counted, is_elsewhere=False)
        return found

    def _divided(self, placement: Placement) -> Iterator[Problem]:
        """Problems whose attention is pinned in runs, those near a placement first."""
        problem, ops = self._problem, self._runs.ops
        counts = np.bincount(placement.device_of[list(ops)], minlength=problem.n_devices)
        order = [at for at in self._runs.order if at not in self._closed]
        for division in _near([int(counts[at]) for at in order]):
            run = np.repeat(order, division).tolist()
            if any(problem.pins.get(op, at) != at for op, at in zip(ops, run, strict=True)):
                continue
            rank = self._runs.order.index(run[-1]) if run and is_tied(problem) else 0
            earlier = [at for at in self._runs.order[:rank] if at != run[-1]]
            yield _pinned(problem, dict(zip(ops, run, strict=True)), self._closed, earlier)


def _part(evaluator: Evaluator) -> Budget:
    """A share of what is left of a budget."""
    with evaluator.share(_SHARE):
        seconds, count = evaluator.remaining_seconds, evaluator.remaining_evaluations
    is_timed = math.isfinite(seconds)
    return Budget(
        max(_LEAST_SECONDS, seconds) if is_timed else None,
        max(1, int(count)) if math.isfinite(count) else None,
    )


def half_of(limit: Budget) -> Budget:
    """Halve a budget, so that a second placer, which keeps the engine's rules, can follow."""
    return Budget(
        None if limit.seconds is None else 0.5 * limit.seconds,
        None if limit.evaluations is None else math.ceil(0.5 * limit.evaluations),
        None if limit.core_seconds is None else 0.5 * limit.core_seconds,
    )


def _near(counts: Sequence[int]) -> Iterator[list[int]]:
    """Yield the counts, then counts with a few layers moved, then all layers on one column."""
    yield list(counts)
    yield from _moved(counts, 1)
    for at in range(len(counts)):
        yield [sum(counts) if other == at else 0 for other in range(len(counts))]
    for number in (2, 3, 5):
        yield from _moved(counts, number)


def _moved(counts: Sequence[int], number: int) -> Iterator[list[int]]:
    for source, target in itertools.permutations(range(len(counts)), 2):
        if counts[source] >= number:
            changed = list(counts)
            changed[source] -= number
            changed[target] += number
            yield changed


def _pinned(
    problem: Problem, pins: dict[int, int], closed: Sequence[int], without_head: Sequence[int]
) -> Problem:
    """Pin ops, and close columns for all that is not pinned there.

    Args:
        pins: op -> column.
        closed: columns that take nothing else.
        without_head: columns on which the head may not lie.
    """
    seconds = problem.costs.seconds.copy()
    free = np.array([op not in problem.pins for op in range(problem.n_units)])
    for column in closed:
        seconds[free, column] = np.inf
    seconds[problem.graph.op_index["head"], list(without_head)] = np.inf
    own = {op: at for op, at in pins.items() if op not in problem.pins}
    costs = replace(problem.costs, seconds=seconds)
    return replace(problem, costs=costs, pins={**problem.pins, **own})
