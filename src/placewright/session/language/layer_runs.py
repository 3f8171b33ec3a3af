"""Placements that the engine can express: layers in runs.

The engine lays layers in runs: those of the host first, then those of each device in order. So the
search has two steps. The first ignores runs, and its bound holds for every placement. The second
fixes attention in runs, with as many layers on each device as the first found, and places the rest.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.placement import Placement
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution, Status
from placewright.errors import InfeasibleError
from placewright.profiling.token_costs import is_streamed
from placewright.session.language.problem import is_of_tokens
from placewright.session.plans import plan_of
from placewright.simulation.evaluator import CLOSED
from placewright.simulation.model import Simulator
from placewright.writers.llama_cpp import first_of_layers

_FIRST_SHARE = 0.55  # of the budget, for the search without runs
_LEAST_SECONDS = 1.0  # of a search; below it no further one begins
_MOST_TRIES = 40  # divisions of layers that are tried


@dataclass(frozen=True)
class LayerRuns:
    """The first op of each layer, and the columns in the order in which the engine fills them.

    Attributes:
        ops: the first of each layer, which is attention unless the layer has none, by layer.
        order: columns: those of the host, then the others.
    """

    ops: tuple[int, ...]
    order: tuple[int, ...]


def layer_runs(problem: Problem) -> LayerRuns:
    """The layers of a problem."""
    graph, cluster = problem.graph, problem.cluster
    host = [at for at, device in enumerate(cluster.devices) if device.pool is not None]
    others = [at for at, device in enumerate(cluster.devices) if device.pool is None]
    return LayerRuns(tuple(first_of_layers(graph)), (*host, *others))


def why_inexpressible(problem: Problem, placement: Placement) -> str | None:
    """The first rule of the engine that a placement breaks; None if it keeps all."""
    layers, device_of = layer_runs(problem), placement.device_of
    names = problem.cluster.device_names
    used = {int(device) for device in device_of[1:]}  # the embedding is looked up by the host
    streaming = {is_streamed(problem.cluster.devices[at]) for at in used & _host_columns(problem)}
    if len(streaming) > 1:
        return (
            "weights that rest in the memory of the host are streamed for long passes, all of them "
            "or none"
        )
    rank = {device: at for at, device in enumerate(layers.order)}
    before = layers.ops[0] if layers.ops else 0
    for op in layers.ops:
        if rank[int(device_of[op])] < rank[int(device_of[before])]:
            return (
                f"'{problem.graph.op_names[op]}' is on '{names[int(device_of[op])]}' after "
                f"'{problem.graph.op_names[before]}' on '{names[int(device_of[before])]}'; layers "
                "lie in runs by the order of devices, those of the host first"
            )
        before = op
    head = problem.graph.op_index["head"]
    own, last = int(device_of[head]), int(device_of[before])
    if layers.ops and is_tied(problem) and rank[own] < rank[last]:
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
    """Changes of a plan, whose host means the column of the host that the plan uses.

    If weights of the host are streamed for long passes, those of moved modules are, too.
    """
    problem = plan.problem
    used = {int(at) for at in plan.placement.device_of[1:]} & _host_columns(problem)
    if not is_of_tokens(problem) or len(used) != 1:
        return dict(changes)
    name = problem.cluster.device_names[used.pop()]
    return {op: name if at == problem.cluster.host else at for op, at in changes.items()}


def _host_columns(problem: Problem) -> set[int]:
    devices = problem.cluster.devices
    return {at for at, device in enumerate(devices) if device.pool is not None}


def first_budget(problem: Problem, budget: Budget) -> Budget:
    """Budget of the search without runs; the whole of it for other problems."""
    if not is_of_tokens(problem):
        return budget
    evaluations = budget.evaluations
    return Budget(
        None if budget.seconds is None else _FIRST_SHARE * budget.seconds,
        None if evaluations is None else math.ceil(_FIRST_SHARE * evaluations),
        None if budget.core_seconds is None else _FIRST_SHARE * budget.core_seconds,
    )


def rest_budget(budget: Budget, plan: Plan) -> Budget:
    """The rest of a budget after the search of a plan within `first_budget`.

    A search that took longer than its share takes nothing from the rest.
    """
    spent, first = plan.placer, first_budget(plan.problem, budget)
    return Budget(
        _minus(budget.seconds, spent.seconds, first.seconds),
        None
        if budget.evaluations is None or first.evaluations is None
        else max(1, budget.evaluations - min(spent.evaluations, first.evaluations)),
        _minus(budget.core_seconds, spent.core_seconds, first.core_seconds),
    )


def _minus(whole: float | None, spent: float | None, most: float | None) -> float | None:
    return None if whole is None or most is None else whole - min(spent or 0.0, most)


def expressible_plan(plan: Plan, solve: Callable[[Problem, Budget], Plan], budget: Budget) -> Plan:
    """The best plan found whose placement the engine can express; its bound is that of `plan`.

    Args:
        plan: of the search without runs.
        solve: searches a problem within a budget.
        budget: of all searches here.

    Raises:
        InfeasibleError: none was found.
    """
    problem = plan.problem
    if why_inexpressible(problem, plan.placement) is None:
        return plan
    began, best, evaluations = _clocks(), None, 0
    pinned_ones = itertools.islice(_divided(problem, plan.placement), _MOST_TRIES)
    for number, pinned in enumerate(pinned_ones):
        left = _left(budget, began, evaluations)
        if left is None and number:
            break
        try:
            found = solve(pinned, left or _least(budget))
        except InfeasibleError:
            continue
        evaluations += found.placer.evaluations
        value = Simulator(problem).value(found.placement)
        if best is None or value < best.value:
            best = replace(found, problem=problem, value=value)
        if best.value <= plan.value * 1.001:
            break
    if best is None:
        raise InfeasibleError(
            "none was found whose layers lie in runs, as the engine needs them; give a longer "
            "budget, or more memory"
        )
    solution_bound = min(plan.lower_bound, best.value)
    made = plan_of(problem, _solution(best, solution_bound, plan), plan.placer, plan.runtime)
    return replace(made, bound_method=plan.bound_method)


def _solution(best: Plan, bound: float, plan: Plan) -> Solution:
    is_closed = best.value <= bound * (1.0 + CLOSED)
    status: Status = "optimal" if is_closed else "feasible"
    return Solution(best.placement, best.value, status, bound, bound_method=plan.bound_method)


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _left(budget: Budget, began: tuple[float, float], evaluations: int) -> Budget | None:
    """The rest of a budget; None if that is too little for a search."""
    wall, core = (now - then for now, then in zip(_clocks(), began, strict=True))
    seconds = None if budget.seconds is None else budget.seconds - wall
    core_seconds = None if budget.core_seconds is None else budget.core_seconds - core
    count = None if budget.evaluations is None else budget.evaluations - evaluations
    clocks = [each for each in (seconds, core_seconds) if each is not None]
    if min(clocks, default=math.inf) < _LEAST_SECONDS or (count is not None and count < 1):
        return None
    return Budget(seconds, count, core_seconds)


def _least(budget: Budget) -> Budget:
    """The least budget of a search, for the first one if nothing is left."""
    seconds, core_seconds = (
        None if each is None else _LEAST_SECONDS for each in (budget.seconds, budget.core_seconds)
    )
    return Budget(seconds, budget.evaluations, core_seconds)


def _divided(problem: Problem, placement: Placement) -> Iterator[Problem]:
    """Problems whose attention is pinned in runs, those near a placement first."""
    layers, device_of = layer_runs(problem), placement.device_of
    host = _host_columns(problem)
    used = {int(device) for device in device_of[1:]} & host
    modes = sorted(used, key=lambda at: -int((device_of == at).sum())) or sorted(host)[:1] or [-1]
    counts = np.bincount(device_of[list(layers.ops)], minlength=problem.n_devices)
    for mode in modes:
        mine = counts.copy()
        if mode >= 0:
            mine[list(host)] = 0
            mine[mode] = int(counts[list(host)].sum())
        order = [at for at in layers.order if at == mode or at not in host]
        closed = sorted(host - {mode})
        for division in _near([int(mine[at]) for at in order]):
            run = np.repeat(order, division).tolist()
            rank = layers.order.index(run[-1]) if run and is_tied(problem) else 0
            yield _pinned(
                problem,
                dict(zip(layers.ops, run, strict=True)),
                closed,
                [at for at in layers.order[:rank] if at != run[-1]],
            )


def _near(counts: Sequence[int]) -> Iterator[list[int]]:
    """The counts, then those with a few moved from one to another, and all on one."""
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
    """A problem with pins, and without some columns but for what is pinned there.

    Args:
        problem: of a request.
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
