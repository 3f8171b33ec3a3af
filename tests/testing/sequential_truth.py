"""Execution model `sequential` as sums over dictionaries and links.

Written from docs/reference/simulation.md. It works on ops, not on units, and shares no
code with the package.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from placewright.core.execution_models import Sequential
from placewright.core.problem import Problem


def plain_sum(problem: Problem, chosen: Sequence[int]) -> float:
    """The value of a placement of units, inf if it breaks a constraint."""
    place = [int(chosen[unit]) for unit in problem.units.group_of.tolist()]
    if not _is_legal(problem, place) or not _fits(problem, place):
        return math.inf
    graph, devices, host = problem.graph, problem.cluster.devices, problem.cluster.host
    total = sum(float(problem.costs.seconds[unit, at]) for unit, at in enumerate(chosen))
    times = _messages(problem)
    for tensor in range(graph.n_tensors):
        if tensor in problem.resident_inputs:
            continue
        producer = int(graph.tensor_producers[tensor])
        home = host if producer < 0 else devices[place[producer]].name
        size = float(graph.tensor_bytes[tensor])
        for at in sorted({place[op] for op in graph.tensor_consumers.row(tensor).tolist()}):
            to = devices[at]
            if to.name != home:
                total += _way(problem, tensor, home, to.name)
                total += times * (to.dispatch_seconds + to.cut_seconds)
                total += to.cut_seconds_per_byte * size
        if graph.tensor_is_output[tensor] and producer >= 0:
            total += _way(problem, tensor, home, host)
    return total


def _messages(problem: Problem) -> int:
    model = problem.execution_model
    assert isinstance(model, Sequential)
    return model.messages


def _way(problem: Problem, tensor: int, source: str, target: str) -> float:
    """Seconds on the way from one name to another, through the host if there is no link."""
    if source == target:
        return 0.0
    links = {(link.source, link.destination): link for link in problem.cluster.links}
    host = problem.cluster.host
    ways = [(source, target)] if (source, target) in links else [(source, host), (host, target)]
    if not all(way in links for way in ways):
        return math.inf
    if problem.transfer_seconds is not None:
        return float(problem.transfer_seconds[tensor]) * len(ways)
    size, times = float(problem.graph.tensor_bytes[tensor]), _messages(problem)
    return sum(times * links[way].latency_seconds + size / links[way].bandwidth for way in ways)


def _is_legal(problem: Problem, place: list[int]) -> bool:
    """Pins and colocation; a device that cannot run a unit takes infinite seconds."""
    of_class: dict[int, int] = {}
    for op, at in enumerate(place):
        group = int(problem.graph.op_colocation[op])
        if problem.pins.get(op, at) != at or (group >= 0 and of_class.setdefault(group, at) != at):
            return False
    return True


def _fits(problem: Problem, place: list[int]) -> bool:
    """Weights and resident inputs, each once on a device, or once in all if devices share them."""
    graph, cluster = problem.graph, problem.cluster
    sizes: dict[tuple[str, int], float] = {}
    kept: dict[int, set[tuple[str, int]]] = {at: set() for at in range(problem.n_devices)}
    for op, at in enumerate(place):
        held = {("weight", weight): float(graph.weight_bytes[weight])
                for weight in graph.op_weights.row(op).tolist()}  # fmt: skip
        for tensor in problem.resident_inputs:
            if op in graph.tensor_consumers.row(tensor).tolist():
                held["input", tensor] = float(graph.tensor_bytes[tensor])
        new = {name for name in held if not cluster.shares_weights or name not in sizes}
        sizes.update(held)
        kept[at] |= new
    pools: dict[str, float] = {}
    for at, device in enumerate(cluster.devices):
        size = sum(sizes[name] for name in sorted(kept[at]))
        if size > device.memory_bytes:
            return False
        whole = {device.pool: 1.0} if isinstance(device.pool, str) else device.pool or {}
        for name, share in whole.items():
            pools[name] = pools.get(name, 0.0) + size * share
    return all(size <= cluster.pools[name] for name, size in pools.items())
