"""Search among placements that the engine can express: layers in runs.

A Lagrangian relaxation bounds all of them, and a beam search along its prices finds good ones. Then
integer programs place the other modules around attention that lies in runs, with as many layers on
each device as a program without runs found, or nearly as many.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.placement import Placement
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.placers.bases import anytime, pass_interrupt_on
from placewright.placers.exact.lagrangian import ROUNDING, Chain, best_in_beam
from placewright.placers.exact.sequential_ip import SequentialIp
from placewright.profiling.token_costs import is_streamed
from placewright.session.language.problem import is_of_tokens
from placewright.simulation.evaluator import CLOSED, Evaluator
from placewright.writers.llama_cpp import first_of_layers

_FREE = -1  # place of an op that no pin fixes


@dataclass(frozen=True)
class LayerRuns:
    """The first op of each layer, and the columns in the order in which the engine fills them."""

    # the first of each layer, which is attention unless the layer has none, by layer
    ops: tuple[int, ...]
    order: tuple[int, ...]  # columns: those of the host, then the others


def layer_runs(problem: Problem) -> LayerRuns:
    """The layers of a problem."""
    graph, cluster = problem.graph, problem.cluster
    host = [at for at, device in enumerate(cluster.devices) if device.pool is not None]
    others = [at for at, device in enumerate(cluster.devices) if device.pool is None]
    return LayerRuns(tuple(first_of_layers(graph)), (*host, *others))


def why_inexpressible(problem: Problem, placement: Placement) -> str | None:
    """The first rule of the engine that a placement breaks; None if it keeps all."""
    return _broken_rule(problem, placement.device_of)


def why_pins_inexpressible(problem: Problem) -> str | None:
    """The first rule of the engine that pins break, wherever the rest lies; None without one."""
    device_of = np.full(problem.n_units, _FREE)
    for op, device in problem.pins.items():
        device_of[problem.units.group_of[op]] = device
    return _broken_rule(problem, device_of)


def _broken_rule(problem: Problem, device_of: IntArray) -> str | None:
    layers, graph, host = layer_runs(problem), problem.graph, host_columns(problem)
    names, first = problem.cluster.device_names, graph.op_index["embedding"]
    if host and device_of[first] not in (*host, _FREE):
        return (
            f"the embedding is on '{names[int(device_of[first])]}'; the engine keeps it in the "
            "memory of the host"
        )
    used = {int(device) for device in np.delete(device_of, first)}  # embeddings are looked up
    streaming = {is_streamed(problem.cluster.devices[at]) for at in used & host}
    if len(streaming) > 1:
        return (
            "weights that rest in the memory of the host are streamed for long passes, all of them "
            "or none"
        )
    rank = {device: at for at, device in enumerate(layers.order)}
    placed = [op for op in layers.ops if device_of[op] != _FREE]
    for before, op in itertools.pairwise(placed):
        if rank[int(device_of[op])] < rank[int(device_of[before])]:
            return (
                f"'{graph.op_names[op]}' is on '{names[int(device_of[op])]}' after "
                f"'{graph.op_names[before]}' on '{names[int(device_of[before])]}'; layers "
                "lie in runs by the order of devices, those of the host first"
            )
    own = int(device_of[graph.op_index["head"]])
    last = int(device_of[placed[-1]]) if placed else _FREE
    if _FREE not in (own, last) and is_tied(problem) and rank[own] < rank[last]:
        return (
            f"the head, which is the embedding again, is on '{names[own]}' and the last layer on "
            f"'{names[last]}'; it cannot lie before it"
        )
    return None


def is_tied(problem: Problem) -> bool:
    """True if the head multiplies with the embedding."""
    graph = problem.graph
    first, last = (
        set(graph.op_weights.row(graph.op_index[name]).tolist()) for name in ("embedding", "head")
    )
    return bool(first & last)


def changes_in_mode(plan: Plan, changes: Mapping[str, str]) -> dict[str, str]:
    """Replace the host in changes of a plan by the column of the host that the plan uses.

    If weights of the host are streamed for long passes, those of moved modules are, too.
    """
    problem, used = plan.problem, _mode(plan)
    if used is None:
        return dict(changes)
    name = problem.cluster.device_names[used]
    return {op: name if at == problem.cluster.host else at for op, at in changes.items()}


def columns_of_other_modes(plan: Plan) -> set[int]:
    """Columns of the host that the engine cannot use beside those of a plan."""
    used = _mode(plan)
    return set() if used is None else host_columns(plan.problem) - {used}


def _mode(plan: Plan) -> int | None:
    """The column of the host of a language model's plan; None if it uses none or several."""
    if not is_of_tokens(plan.problem):
        return None
    used = {int(at) for at in plan.placement.device_of[1:]} & host_columns(plan.problem)
    return used.pop() if len(used) == 1 else None


def host_columns(problem: Problem) -> set[int]:
    """Columns whose weights rest in the memory of the host."""
    devices = problem.cluster.devices
    return {at for at, device in enumerate(devices) if device.pool is not None}


_PROGRAM = "integer program without runs"
_METHOD, _BEAM = "Lagrangian relaxation of memory", "beam along prices of memory"
# width of a beam, and number of divisions of layers that are tried after it
_ROUNDS = ((200, 0), (1000, 4), (5000, 0), (20_000, 20))
_LONGER = ((80_000, 40),)  # rounds that a clock ends
ENOUGH = 2e-3  # gap at which a search ends that nobody gave a time
_LONG = 10_000  # width from which a round is long
_OPEN = 5.0  # times the gap of the search's end, below which no long round begins
_SHARE = 0.4  # of the rest of the budget, for each integer program
_LEAST_SECONDS = 0.5  # of the budget; below it no further program begins
_NOTHING = (
    "the search met none whose layers lie in runs, as the engine needs them; give a longer "
    "budget, or more memory"
)


@dataclass(frozen=True)
class LayersInRuns:
    """Places a language model on devices that an engine fills in order.

    Attributes:
        enough: gap at which the search ends; 0 goes on until the optimum is proven, or the budget
            is spent.
    """

    name: ClassVar[str] = "layer-runs"
    paper: ClassVar[str] = "ours, after Geoffrion, Mathematical Programming Study 2, 1974"
    objectives: ClassVar[tuple[str, ...]] = ("latency",)
    needs_training: ClassVar[bool] = False

    enough: float = ENOUGH

    def why_not(self, problem: Problem) -> str | None:
        """None for a request to a language model, whose value is the sum of its seconds."""
        if not is_of_tokens(problem):
            return "this problem is not that of a language model"
        if SequentialIp().why_not(problem) is not None:
            return (
                "a language model is placed by its time under sequential, without limits of it or "
                "other objectives; place the model's file again"
            )
        return None

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Bound all placements in runs, then search those of each mode of the host."""
        modes = _modes(problem, lambda: evaluator.is_spent)
        modes.sort(key=lambda mode: mode.bound)
        if not modes or math.isinf(modes[0].bound):
            return evaluator.solution(message="the engine cannot express any that keeps all pins")
        for mode in modes[1:]:
            mode.leave_out_common()
        evaluator.offer_bound(modes[0].bound, _METHOD)
        rounds = _ROUNDS + _LONGER * evaluator.budget.is_timed
        for (width, tries), mode in itertools.product(rounds, modes):
            if width > _LONG and self._is_enough(evaluator, mode, _OPEN):
                continue
            if not self._is_enough(evaluator, mode):
                mode.search_beam(evaluator, width)
            evaluator.offer_bound(min(each.bound for each in modes), _BEAM)
            if tries and not self._is_enough(evaluator, mode):
                mode.search_divisions(evaluator, rng, tries, self._is_enough)
            evaluator.offer_bound(min(each.bound for each in modes), _PROGRAM)
        if evaluator.best is None:
            return evaluator.solution(message=_NOTHING)
        return evaluator.solution()

    def _is_enough(self, evaluator: Evaluator, mode: _Mode, times: float = 1.0) -> bool:
        """True if a mode can bring next to nothing, or time is over."""
        gap = max(times * self.enough, CLOSED)
        return evaluator.is_spent or evaluator.best_value <= mode.bound * (1.0 + gap)


def least_in_runs(problem: Problem) -> float:
    """A lower bound of the placements of a language model whose layers lie in runs."""
    return min((mode.bound for mode in _modes(problem)), default=math.inf)


def _modes(problem: Problem, is_over: Callable[[], bool] = lambda: False) -> list[_Mode]:
    """Modes that the pins allow; a pinned embedding allows all, because it is only looked up."""
    host, embedding = host_columns(problem), problem.graph.op_index["embedding"]
    pinned = {at for op, at in problem.pins.items() if op != embedding} & host
    return [_Mode(problem, at, is_over) for at in sorted(host) if pinned <= {at}] or (
        [] if host else [_Mode(problem, None, is_over)]
    )


class _Mode:
    """A problem whose weights in the memory of the host have one way to be computed.

    Args:
        host: column of these weights; None without a processor.
        is_over: True ends the search for the bound.
    """

    def __init__(self, problem: Problem, host: int | None, is_over: Callable[[], bool]) -> None:
        self._runs, self._host = layer_runs(problem), host
        self._closed = sorted(host_columns(problem) - {host})
        self._problem = _pinned(problem, {}, self._closed, ())
        head = [problem.graph.op_index["head"]] if is_tied(problem) else []
        self._rank = [self._runs.order.index(at) for at in range(problem.n_devices)]
        self._run = [*self._runs.ops, *head]
        self._chain = Chain(self._problem, self._run, self._rank)
        self.bound, self._prices = self._chain.bound(is_over)
        self._divisions: Iterator[Problem] | None = None  # that are left; None before the first

    def leave_out_common(self) -> None:
        """Bound only placements with weights in this mode's column of the host.

        The embedding does not count. All other placements are the same in every mode, and the
        first mode bounds them.
        """
        if self._host is not None:
            embedding = self._problem.graph.op_index["embedding"]
            item = int(self._problem.colocation.group_of[embedding])
            least = self._chain.least_on(self._prices, self._host, (item,))
            self.bound = max(self.bound, least)

    def search_beam(self, evaluator: Evaluator, width: int) -> None:
        """Evaluate the best placement of a beam, and raise the bound by what the beam lost."""
        under = evaluator.best_value
        found = best_in_beam(self._chain, self._prices, width, under, lambda: evaluator.is_spent)
        self.bound = max(self.bound, min(found.bound, under) * (1.0 - ROUNDING))
        if found.devices is not None:
            evaluator.evaluate(self._problem.colocation.expand(found.devices))

    def search_divisions(
        self,
        evaluator: Evaluator,
        rng: np.random.Generator,
        tries: int,
        is_enough: Callable[[Evaluator, _Mode], bool],
    ) -> None:
        """Solve programs whose attention lies in runs, near that of a program without runs.

        The program without runs bounds those with them. Further calls go on with the next ones.
        """
        if self._divisions is None:
            free = self._solved(self._problem, evaluator, rng)
            self.bound = max(self.bound, free.lower_bound)
            if free.placement is None:
                self._divisions = iter(())
                return
            if why_inexpressible(self._problem, free.placement) is None:
                evaluator.evaluate(free.placement.device_of)
            self._divisions = self._divided(free.placement)
        for problem in itertools.islice(self._divisions, tries):
            if is_enough(evaluator, self) or evaluator.remaining_seconds < _LEAST_SECONDS:
                return
            if self._least(problem) >= evaluator.best_value:
                continue
            found = self._solved(problem, evaluator, rng)
            if found.placement is not None:
                evaluator.evaluate(found.placement.device_of)

    def _least(self, problem: Problem) -> float:
        """Lower bound of one division, at the prices that are best for the whole problem."""
        chain = Chain(problem, self._run, self._rank)
        least, priced = chain.towards_end(self._prices)[0], self._prices @ chain.limits
        return float(least * (1.0 - ROUNDING) - priced * (1.0 + ROUNDING))

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


def _near(counts: Sequence[int]) -> Iterator[list[int]]:
    """Yield the counts, some with one layer moved, all layers on one column, then more moved."""
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
