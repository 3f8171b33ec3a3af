"""Recurrent models: one layer per device.

Sutskever et al., NeurIPS 2014, section 3.5 (each of four LSTM layers on a GPU of its own, encoder
and decoder alike, the other GPUs for the softmax); Wu et al. 2016, section 3.4; Mirhoseini et al.,
ICML 2017, section 4.1 (each LSTM layer on a device, embeddings with the first layer, attention and
softmax with the last). Layer i of the encoder and layer i of the decoder share a device unless
there are devices for all; a spare device takes the softmax; with fewer devices than layers,
neighbours share one, in proportion to its speed.

A layer is a recurrent operator, or, unrolled, the products of one weight that depend on one another
and lead to gates (LSTM, GRU). Both directions of a layer are one layer.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from operator import or_

from placewright.core.grouping import DisjointSets
from placewright.placers.baselines.expert import kinds
from placewright.placers.baselines.expert.families import contiguous
from placewright.placers.baselines.expert.forward import ForwardGraph


@dataclass(frozen=True)
class Layers:
    """Recurrent layers.

    Attributes:
        number_of: op that makes a step (a product, a recurrent operator) -> its layer's number.
        stack, level: of each layer; stacks (encoder, decoder) and levels count from 0.
    """

    number_of: dict[int, int]
    stack: list[int]
    level: list[int]


def place_recurrent(view: ForwardGraph, shares: Sequence[float]) -> list[int] | None:
    """Device of each forward op, -1 for the others; None without recurrence."""
    groups = _groups(view)
    if not groups:
        return None
    layers = _stacked(view, groups)
    depths = [1 + max(d for s, d in zip(layers.stack, layers.level, strict=True) if s == stack)
              for stack in range(max(layers.stack) + 1)]  # fmt: skip
    together = sum(depths) > len(shares)
    start = [0 if together else sum(depths[:stack]) for stack in range(len(depths))]
    n_slots = max(depths) if together else sum(depths)
    used = min(len(shares), n_slots)
    runs = [contiguous([1.0] * depth, shares).tolist() if depth > len(shares)
            else list(range(depth)) for depth in depths]  # fmt: skip
    device_of = [start[s] + runs[s][d] for s, d in zip(layers.stack, layers.level, strict=True)]
    head = used if len(shares) > used else used - 1
    return _all_ops(view, layers.number_of, device_of, head)


def _groups(view: ForwardGraph) -> dict[int, int]:
    """Op that makes a step -> group that shares its weight or its gates, if recurrent."""
    n_ops = view.graph.n_ops
    sets = DisjointSets(n_ops + len(view.graph.weight_bytes))  # ops, then weights
    steps: set[int] = set()
    fused = [op for op in view.order if kinds.is_fused_recurrence(view.kinds[op])]
    for gate in [op for op in view.order if kinds.is_gate(view.kinds[op])]:
        made_by = [op for op in view.before_through(gate, lambda op: _is_inner(view, op))
                   if view.is_layer(op) and kinds.is_product(view.kinds[op])]  # fmt: skip
        for op in made_by:
            largest = max(view.weights[op], key=lambda w: (view.graph.weight_bytes[w], -w))
            sets.join(op, made_by[0])
            sets.join(op, n_ops + largest)
            steps.add(op)
    members = {op: sets.root(op) for op in view.order if op in steps}
    numbers = {key: number for number, key in enumerate(dict.fromkeys(members.values()))}
    groups = {op: numbers[key] for op, key in members.items()}
    above = _ancestors(view, groups)
    recurrent = sorted({number for op, number in groups.items() if above[op] >> number & 1})
    unrolled = {op: recurrent.index(g) for op, g in groups.items() if g in recurrent}
    return unrolled | {op: len(recurrent) + at for at, op in enumerate(fused)}


def _is_inner(view: ForwardGraph, op: int) -> bool:
    """True for an op that may lie between a product and the gate that it feeds."""
    kind = view.kinds[op]
    ends = view.is_layer(op) or kinds.is_gate(kind) or kind == "tanh" or kinds.is_lookup(kind)
    return not ends and not kinds.is_softmax(kind) and not kinds.is_concatenation(kind)


def _ancestors(view: ForwardGraph, groups: dict[int, int]) -> list[int]:
    """Bits of the groups that each op depends on, without its own."""
    above = [0] * view.graph.n_ops
    for op in view.order:
        for p in view.before[op]:
            above[op] |= above[p] | (1 << groups[p] if p in groups else 0)
    return above


def _stacked(view: ForwardGraph, groups: dict[int, int]) -> Layers:
    """Level of each layer within its stack.

    A stack starts with layers that depend on no other layer, or that read tokens (a look-up of an
    input) which no layer below them reads. Those that read the same input start together. Any other
    layer is one above those of its stack that it reads at its first step; its stack is the last
    that it reads.
    """
    n = 1 + max(groups.values())
    steps: list[list[int]] = [[] for _ in range(n)]
    for op in sorted(groups, key=view.rank.__getitem__):
        steps[groups[op]].append(op)
    ancestors = _ancestors(view, groups)
    tokens, nearest = _inputs_read(view, groups), _nearest(view, groups)
    reads = [tokens[ops[0]] for ops in steps]
    near = [_others(nearest[ops[0]], g) for g, ops in enumerate(steps)]
    below = [_others(ancestors[ops[0]], g) for g, ops in enumerate(steps)]
    known = [functools.reduce(or_, (reads[o] for o in others), 0) for others in below]
    bottoms = [g for g in range(n) if reads[g] & ~known[g] or not near[g]]
    depends = [functools.reduce(or_, (ancestors[op] for op in ops)).bit_count() for ops in steps]
    bottoms.sort(key=lambda g: (depends[g], view.rank[steps[g][0]]))
    stack, level = [-1] * n, [0] * n
    number_of: dict[int, int] = {}
    for g in bottoms:
        stack[g] = number_of.setdefault(reads[g] or -1 - g, len(number_of))
    for g in sorted(range(n), key=lambda g: view.rank[steps[g][0]]):
        if stack[g] < 0:
            stack[g] = max([stack[o] for o in near[g]])
            level[g] = 1 + max([level[o] for o in near[g] if stack[o] == stack[g]])
    return Layers(groups, stack, level)


def _others(bits: int, group: int) -> list[int]:
    """Positions of the set bits, except `group`."""
    return [other for other in range(bits.bit_length()) if bits >> other & 1 and other != group]


def _inputs_read(view: ForwardGraph, groups: dict[int, int]) -> list[int]:
    """Bits of the graph inputs whose look-ups reach an op without passing a layer."""
    graph = view.graph
    tokens = [0] * graph.n_ops
    for tensor in (graph.tensor_producers < 0).nonzero()[0].tolist():
        for op in graph.tensor_consumers.row(tensor).tolist():
            tokens[op] |= 1 << tensor
    looked_up = [0] * graph.n_ops
    for op in view.order:
        for p in view.before[op]:
            tokens[op] |= tokens[p] if not view.weights[p] or kinds.is_move(view.kinds[p]) else 0
            looked_up[op] |= 0 if p in groups else looked_up[p]
        if kinds.is_lookup(view.kinds[op]) and view.weights[op]:
            looked_up[op] |= tokens[op]
    return looked_up


def _nearest(view: ForwardGraph, groups: dict[int, int]) -> list[int]:
    """Bits of the groups whose output reaches an op without passing another group."""
    near = [0] * view.graph.n_ops
    for op in view.order:
        for p in view.before[op]:
            near[op] |= 1 << groups[p] if p in groups else near[p]
    return near


def _all_ops(
    view: ForwardGraph, number_of: dict[int, int], device_of: list[int], head: int
) -> list[int]:
    """Device of every forward op, from those of the layers."""
    layer = _cells(view, number_of)
    _pull(view, layer)
    below = [False] * view.graph.n_ops  # a layer lies before the op
    for op in view.order:
        below[op] = any(below[p] or layer[p] >= 0 for p in view.before[op])
    ahead = [False] * view.graph.n_ops  # a layer lies after it
    for op in reversed(view.order):
        ahead[op] = any(ahead[s] or layer[s] >= 0 for s in view.after[op])
    slots = [-1] * view.graph.n_ops
    last = max(device_of)
    attends = _attending(view, layer)
    for op in view.order:
        if layer[op] >= 0:
            slots[op] = device_of[layer[op]]
        elif below[op] and not ahead[op]:
            slots[op] = head
        elif attends[op]:
            slots[op] = last
        elif below[op]:
            slots[op] = max(slots[p] for p in view.before[op])
    for op in reversed(view.order):
        if slots[op] < 0:  # embeddings
            slots[op] = min([slots[s] for s in view.after[op] if slots[s] >= 0], default=0)
    return slots


def _cells(view: ForwardGraph, number_of: dict[int, int]) -> list[int]:
    """Layer of each op of a cell, -1 elsewhere: elementwise ops that follow a step."""
    layer = [-1] * view.graph.n_ops
    for op in view.order:
        kind = view.kinds[op]
        if op in number_of:
            layer[op] = number_of[op]
        elif kinds.is_elementwise(kind) or kinds.is_move(kind):
            layer[op] = max([layer[p] for p in view.before[op]], default=-1)
    return layer


def _pull(view: ForwardGraph, layer: list[int]) -> None:
    """Add to a layer the ops that only move values into it."""
    for op in reversed(view.order):
        kind = view.kinds[op]
        moves = kinds.is_concatenation(kind) or (kinds.is_move(kind) and not kinds.is_lookup(kind))
        read_by = [layer[s] for s in view.after[op]]
        if layer[op] < 0 and moves and read_by and min(read_by) == max(read_by):
            layer[op] = read_by[0]


def _attending(view: ForwardGraph, layer: list[int]) -> list[bool]:
    """True for ops outside of layers that are before or after a softmax."""
    after, before = [False] * view.graph.n_ops, [False] * view.graph.n_ops
    for op in view.order:
        here = kinds.is_softmax(view.kinds[op]) or any(after[p] for p in view.before[op])
        after[op] = here and layer[op] < 0
    for op in reversed(view.order):
        here = kinds.is_softmax(view.kinds[op]) or any(before[s] for s in view.after[op])
        before[op] = here and layer[op] < 0
    return [one or other for one, other in zip(after, before, strict=True)]
