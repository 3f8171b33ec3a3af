"""Two levels of links: devices in groups, cheaper links within a group than between groups.

The hierarchies of accelerators of Tarnawski et al. 2020 (appendix), read off the links: what a
transfer costs a device depends on nothing but whether the other end is in its group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import FloatArray, IntArray, frozen_ints
from placewright.core.execution_models import MaxLoad
from placewright.core.problem import Problem
from placewright.placers.pipelines.ideals.transfers import TransferCosts, why_not_separable
from placewright.simulation.event.arrays import NO_ROUTE, VIA_HOST, routes

_Hop = tuple[float, float]  # latency, seconds per byte


@dataclass(frozen=True, eq=False)
class LinkLevels:
    """Groups of devices and what transfers cost within and between them.

    Attributes:
        group_of: group of each device, shape (n_devices,).
        near: costs where the other device is in the same group.
        far: costs where it is not.
    """

    group_of: IntArray
    near: TransferCosts
    far: TransferCosts


def link_levels(problem: Problem) -> LinkLevels | None:
    """The two levels of a max-load problem's links; None where there are not exactly two.

    Devices of one group are those joined, in one step or several, by hops that are cheaper than
    the dearest of one of their ends. The host, where it is a device, has no others in its group.
    """
    if problem.unit_transfer_seconds is not None or not isinstance(
        problem.execution_model, MaxLoad
    ):
        return None
    if any(link.channel is not None for link in problem.cluster.links):
        return None
    hops = _hops(problem)
    if hops is None:
        return None
    arriving, leaving = hops
    n = problem.n_devices
    group_of = _joined(
        [
            (a, b)
            for a in range(n)
            for b in range(n)
            if a != b and (_is_cheap(arriving, b, a) or _is_cheap(leaving, a, b))
        ],
        n,
    )
    host = problem.cluster.host_endpoint
    if host < n and int((group_of == group_of[host]).sum()) > 1:
        return None
    sides = []
    for costs in (arriving, leaving):
        split = [_near_and_far(costs[device], group_of, device) for device in range(n)]
        if any(pair is None for pair in split):
            return None
        sides.append([pair for pair in split if pair is not None])
    return _levels(problem, group_of, *sides)


def why_not_levelled(problem: Problem) -> str | None:
    """None when links have one level or two, else the reason."""
    reason = why_not_separable(problem)
    return None if reason is None or link_levels(problem) is not None else reason


def _hops(problem: Problem) -> tuple[list[dict[int, _Hop]], list[dict[int, _Hop]]] | None:
    """What arrives at and what leaves each device: other device -> hop; None without a route.

    A receiver pays the last hop of a route, a sender the first one.
    """
    cluster, n, host = problem.cluster, problem.n_devices, problem.cluster.host_endpoint
    route = routes(problem)
    arriving: list[dict[int, _Hop]] = [{} for _ in range(n)]
    leaving: list[dict[int, _Hop]] = [{} for _ in range(n)]
    for source in range(n):
        for target in range(n):
            if source == target:
                continue
            if route[source, target] == NO_ROUTE:
                return None
            via = route[source, target] == VIA_HOST
            first, last = (source, host if via else target), (host if via else source, target)
            leaving[source][target] = _cost(problem, first)
            arriving[target][source] = _cost(problem, last)
    graph = problem.unit_graph
    linked = cluster.link_channel >= 0
    away = np.arange(n) != host
    if (graph.tensor_producers < 0).any() and not linked[host, :n][away].all():
        return None
    if graph.tensor_is_output.any() and not linked[:n, host][away].all():
        return None
    return arriving, leaving


def _cost(problem: Problem, hop: tuple[int, int]) -> _Hop:
    cluster = problem.cluster
    return float(cluster.link_latency[hop]), float(cluster.link_seconds_per_byte[hop])


def _is_cheap(hops: list[dict[int, _Hop]], device: int, other: int) -> bool:
    return hops[device][other] < max(hops[device].values())


def _joined(pairs: list[tuple[int, int]], n: int) -> IntArray:
    """Connected components of n nodes."""
    group = list(range(n))
    for one, other in pairs:
        low, high = sorted((group[one], group[other]))
        group = [low if number == high else number for number in group]
    return frozen_ints(group)


def _near_and_far(
    hops: dict[int, _Hop], group_of: IntArray, device: int
) -> tuple[_Hop, _Hop] | None:
    """The one hop within the group and the one beyond it; None where there are several."""
    same = {hop for other, hop in hops.items() if group_of[other] == group_of[device]}
    others = {hop for other, hop in hops.items() if group_of[other] != group_of[device]}
    if len(same) > 1 or len(others) > 1:
        return None
    near = min(same | others, default=(0.0, 0.0))
    far = min(others, default=near)
    if same and (near not in same or near[0] > far[0] or near[1] > far[1]):
        return None
    return near, far


def _levels(
    problem: Problem,
    group_of: IntArray,
    arriving: list[tuple[_Hop, _Hop]],
    leaving: list[tuple[_Hop, _Hop]],
) -> LinkLevels:
    cluster, host, n = problem.cluster, problem.cluster.host_endpoint, problem.n_devices
    linked = cluster.link_channel >= 0
    none = (0.0, 0.0)
    inwards, outwards = [], []
    for device in range(n):
        into, out = (host, device), (device, host)
        inwards.append(_cost(problem, into) if linked[into] else none)
        outwards.append(_cost(problem, out) if linked[out] else none)
    from_host, to_host = _seconds(problem, inwards), _seconds(problem, outwards)
    near, far = (
        TransferCosts(
            _seconds(problem, [pair[level] for pair in arriving]),
            _seconds(problem, [pair[level] for pair in leaving]),
            from_host,
            to_host,
        )
        for level in (0, 1)
    )
    return LinkLevels(group_of, near, far)


def _seconds(problem: Problem, hops: list[_Hop]) -> FloatArray:
    """Seconds of each tensor by device, shape (n_devices, n_tensors); 0 where none are paid."""
    cost = np.array(hops)
    seconds = cost[:, :1] + cost[:, 1:] * problem.unit_graph.tensor_bytes[None, :]
    return np.asarray(problem.cluster.transfer_share[:, None] * seconds)
