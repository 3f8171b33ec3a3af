"""Backward and update ops follow their forward ops."""

from __future__ import annotations

from collections.abc import Sequence

from placewright.core.graph import FORWARD
from placewright.placers.baselines.families.forward import ForwardGraph


def with_backward(view: ForwardGraph, slots: Sequence[int]) -> list[int]:
    """Device of every op, from those of the forward ops that depend on an input.

    What depends on no input goes where it is read first. A backward op comes from the module of its
    forward op. Where that module's products with weights (all its ops, if it has none) lie on
    several devices, the last forward op whose output it reads decides, then the backward op before
    it. An update follows the gradient that it applies.
    """
    graph = view.graph
    full = list(slots)
    for op in graph.topological_order[::-1].tolist():
        if full[op] < 0 and graph.op_phases[op] == FORWARD:
            read_by = [full[s] for s in graph.successors.row(op).tolist() if full[s] >= 0]
            full[op] = min(read_by, default=-1)
    layered = {graph.op_modules[op] for op in view.products}  # membership only
    modules: dict[str, set[int]] = {}
    for op in view.order:
        path = graph.op_modules[op]
        if view.is_layer(op) or path not in layered:
            modules.setdefault(path, set()).add(full[op])
    for op in graph.topological_order.tolist():
        if full[op] >= 0:
            continue
        here = modules.get(graph.op_modules[op], set()) if graph.op_modules[op] else set()
        above = graph.predecessors.row(op).tolist()
        forward = [p for p in above if view.rank[p] >= 0]
        if len(here) == 1:
            full[op] = min(here)
        elif forward:
            full[op] = full[max(forward, key=view.rank.__getitem__)]
        else:
            full[op] = full[above[-1]] if above else 0
    return full
