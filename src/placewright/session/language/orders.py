"""Other orders of a plan's devices, whose layers an engine fills in that order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.cluster import Cluster, Device
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.execution.token_work import RequestedWork
from placewright.profiling.catalogue import whole_name
from placewright.profiling.token_costs import token_problem
from placewright.session.language.problem import physical_cluster
from placewright.session.language.run_search import (
    LayersInRuns,
    least_in_runs,
    why_inexpressible,
)
from placewright.simulation.evaluator import Evaluator

_MOST = 4  # devices whose orders are tried, the host among them
_CLEAR = 1.03  # times as fast, from which an order is named
_BUDGET = Budget(evaluations=4)  # of a search for one order
_CATALOGUE = "catalogue:"  # begin of the fingerprint of its devices


@dataclass(frozen=True)
class FasterOrder:
    """An order of devices, and the speed of its plan beside that of the order that was asked."""

    devices: tuple[str, ...]  # names, of the catalogue's devices as a user gives them
    times: float  # as fast, at least, as any plan in the order that was asked
    is_option: bool  # a user can give the names as argument `devices`

    @property
    def text(self) -> str:
        """The order as a line."""
        option = "argument `devices` " if self.is_option else ""
        names = ",".join(self.devices)
        return (
            f"another order of devices is at least {self.times:.2f} times as fast: {option}{names}"
        )


def faster_order(plan: Plan, work: RequestedWork) -> FasterOrder | None:
    """The order of devices that is fastest under the same pins; None if none is clearly faster.

    An order is searched if its lower bound leaves room. It is compared with the lower bound of the
    plan, since another search may find a better plan in the same order.

    Args:
        work: of the request.
    """
    if plan.placer.is_interrupted or why_inexpressible(plan.problem, plan.placement) is not None:
        return None
    best, fastest = plan.lower_bound / _CLEAR, None
    cluster = physical_cluster(plan.problem)
    for devices in _orders(cluster):
        problem = _in_order(plan.problem, work, replace(cluster, devices=devices))
        if problem is None or least_in_runs(problem) >= best:
            continue
        evaluator = Evaluator(problem, _BUDGET)
        found = LayersInRuns(_CLEAR - 1.0).place(problem, evaluator, np.random.default_rng(0))
        if found.placement is not None and found.value < best:
            best, fastest = found.value, devices
    if fastest is None:
        return None
    names = tuple(_asked_name(device) or device.name for device in fastest)
    return FasterOrder(names, plan.lower_bound / best, all(map(_asked_name, fastest)))


def _orders(cluster: Cluster) -> Iterator[tuple[Device, ...]]:
    """Other orders of the cards, and the host behind them; equal cards keep theirs."""
    cards = [device for device in cluster.devices if device.name != cluster.host]
    host = [device for device in cluster.devices if device.name == cluster.host]
    if len(cluster.devices) > _MOST:
        return
    kinds = [_asked_name(card) or card.name for card in cards]
    seen = {tuple(kinds)}
    for order in itertools.permutations(range(len(cards))):
        names = tuple(kinds[at] for at in order)
        if names not in seen:
            seen.add(names)
            yield (*(cards[at] for at in order), *host)


def _asked_name(device: Device) -> str:
    """The catalogue's name of a device without a number; empty if it has another name."""
    name = device.name.partition(":")[0]
    return name if device.fingerprint == f"{_CATALOGUE}{whole_name(name)}" else ""


def _in_order(problem: Problem, work: RequestedWork, cluster: Cluster) -> Problem | None:
    """The problem of the same request and pins; None if a pinned column is not there."""
    made = token_problem(work, cluster)
    names, columns = problem.cluster.device_names, made.cluster.device_index
    pins = {op: columns.get(names[at], -1) for op, at in problem.pins.items()}
    return None if -1 in pins.values() else replace(made, pins={**made.pins, **pins})
