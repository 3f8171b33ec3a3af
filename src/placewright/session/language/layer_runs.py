"""Placements that the engine can express: layers in runs, those of the host first."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.placement import Placement
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.profiling.token_costs import is_streamed
from placewright.session.language.problem import is_of_tokens
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
    problem = plan.problem
    used = {int(at) for at in plan.placement.device_of[1:]} & host_columns(problem)
    if not is_of_tokens(problem) or len(used) != 1:
        return dict(changes)
    name = problem.cluster.device_names[used.pop()]
    return {op: name if at == problem.cluster.host else at for op, at in changes.items()}


def host_columns(problem: Problem) -> set[int]:
    """Columns whose weights rest in the memory of the host."""
    devices = problem.cluster.devices
    return {at for at, device in enumerate(devices) if device.pool is not None}
