"""Transformers: equal runs of layers, as pipelines of transformers are cut by hand.

Megatron-LM (Narayanan et al., SC 2021, section 2.2) and GPipe (Huang et al., NeurIPS 2019) give
each device the same number of layers; the embeddings go with the first layers, the head with the
last. Where devices differ, their numbers of layers follow their speeds, as users of llama.cpp and
vLLM set their splits. An attention opens a layer; the layer ends at the last op that all its paths
pass before the next attention, so that one tensor leaves it. (A decoder layer with self- and
cross-attention counts as two.)
"""

from __future__ import annotations

from collections.abc import Sequence

from placewright.placers.baselines.families import kinds
from placewright.placers.baselines.families.forward import EXIT, ForwardGraph
from placewright.placers.baselines.families.shares import contiguous


def place(view: ForwardGraph, shares: Sequence[float]) -> list[int] | None:
    """Run of each forward op, -1 for the others; None where the graph is no transformer."""
    heads = attentions(view)
    if not heads:
        return None
    ends = _layer_ends(view, heads)
    device_of = contiguous([1.0] * (len(ends) + 1), shares).tolist()
    number = view.first_end(ends)
    slots = [-1] * view.graph.n_ops
    for op in view.order:
        slots[op] = device_of[number[op]]
    return slots


def attentions(view: ForwardGraph) -> list[int]:
    """Softmaxes whose values weigh other activations in a product, and fused attention."""

    def passes(op: int) -> bool:
        kind = view.kinds[op]
        weighs = kind in ("mul", "multiply", "where", "dropout", "native_dropout")
        return weighs or kinds.is_move(kind)

    def weighs(op: int) -> bool:
        fed = view.after_through(op, passes)
        return any(kinds.is_product(view.kinds[to]) and not view.weights[to] for to in fed)

    return [
        op
        for op in view.order
        if kinds.is_fused_attention(view.kinds[op])
        or (kinds.is_softmax(view.kinds[op]) and weighs(op))
    ]


def _layer_ends(view: ForwardGraph, heads: Sequence[int]) -> list[int]:
    """Last op of every layer but the last one, in topological order."""
    reached = [0] * view.graph.n_ops  # bit i: attention i can be reached
    for number, op in enumerate(heads):
        reached[op] = 1 << number
    for op in reversed(view.order):
        for after in view.after[op]:
            reached[op] |= reached[after]
    ends: dict[int, None] = {}
    for number, op in enumerate(heads[:-1]):
        end, step = EXIT, view.post_dominator[op]
        while step != EXIT and reached[step] >> (number + 1) & 1:
            end, step = step, view.post_dominator[step]
        if end != EXIT:
            ends[end] = None
    return sorted(ends, key=lambda op: view.rank[op])
