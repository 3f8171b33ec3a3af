"""Mixtures of experts: the experts spread over the devices, all else on the first.

Expert parallelism, Lepikhin et al. (GShard), ICLR 2021, section 2.2, and Shazeer et al. 2017,
section 3.1. (Both also copy the rest to every device and cut the batch; a placement gives each op
one device.) Every layer's experts go to the devices in equal runs, by speed where devices differ.

Experts are told from other branches by structure: products that read the same tensor as the gate
(a product that leads to a softmax), each followed, within its own branch, by one last product; all
with weights of the same size.
"""

from __future__ import annotations

from collections.abc import Sequence

from placewright.placers.baselines.families import kinds
from placewright.placers.baselines.families.forward import ForwardGraph
from placewright.placers.baselines.families.shares import contiguous


def place(view: ForwardGraph, shares: Sequence[float]) -> list[int] | None:
    """Device of each forward op, -1 for the others; None where nothing is a mixture of experts."""
    layers = experts(view)
    if not layers:
        return None
    slots = [-1] * view.graph.n_ops
    for op in view.order:
        slots[op] = 0
    for layer in layers:
        device_of = contiguous([1.0] * len(layer), shares).tolist()
        for device, members in zip(device_of, layer, strict=True):
            for op in members:
                slots[op] = device
    return slots


def experts(view: ForwardGraph) -> list[list[list[int]]]:
    """Ops of each expert of each layer; layers and their experts in topological order."""
    gated = _gated_tensors(view)
    alike: dict[tuple[int, float], list[list[int]]] = {}
    for last in view.products:
        if not kinds.is_product(view.kinds[last]):
            continue
        first = view.before_through(last, lambda op: not view.is_layer(op) and op not in gated)
        first = [op for op in first if view.is_layer(op)]
        read = {_source(view, op) for op in first}  # membership and size only
        if not first or len(read) != 1 or not read <= gated:
            continue
        members = _branch(view, first, last)
        if any(kinds.is_softmax(view.kinds[op]) for op in members):
            continue  # attention: query, key and value, then the product that mixes heads
        size = sum(view.weight_bytes(op) for op in (*first, last))
        alike.setdefault((min(read), size), []).append(members)
    return [found for found in alike.values() if len(found) > 1]


def _gated_tensors(view: ForwardGraph) -> set[int]:
    """Ops whose output a product reads that leads to a softmax (for membership only)."""

    def passes(op: int) -> bool:
        return kinds.is_move(view.kinds[op]) or kinds.is_elementwise(view.kinds[op])

    gated: set[int] = set()
    for op in view.products:
        fed = view.after_through(op, passes)
        leads = [to for to in fed if kinds.is_softmax(view.kinds[to]) or view.kinds[to] == "topk"]
        if kinds.is_product(view.kinds[op]) and leads:
            gated.add(_source(view, op))
    return gated


def _source(view: ForwardGraph, op: int) -> int:
    """The op whose values a product reads, behind views of them; -1 for an input of the graph."""
    while view.before[op]:
        op = view.before[op][0]
        if not kinds.is_move(view.kinds[op]):
            return op
    return -1


def _branch(view: ForwardGraph, first: Sequence[int], last: int) -> list[int]:
    """Ops from the first products to the last one, views that only they read, and what
    follows with no other input (a view, a bias).
    """
    members = dict.fromkeys(first)
    for op in view.order[view.rank[min(first, key=view.rank.__getitem__)] : view.rank[last] + 1]:
        if any(p in members for p in view.before[op]) and op not in members:
            members[op] = None
    reaches = {last}  # membership only
    for op in reversed(view.order[: view.rank[last]]):
        moves = kinds.is_move(view.kinds[op]) and bool(view.after[op])
        only = moves and all(after in reaches for after in view.after[op])
        if only or (op in members and any(after in reaches for after in view.after[op])):
            reaches.add(op)
    for op in view.order[view.rank[last] + 1 :]:
        kind = view.kinds[op]
        alone = len(view.before[op]) == 1 and view.before[op][0] in reaches
        if alone and (kinds.is_move(kind) or kinds.is_elementwise(kind)):
            reaches.add(op)
    return [op for op in view.order if op in reaches]
