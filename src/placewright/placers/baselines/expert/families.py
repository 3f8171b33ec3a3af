"""Expert rules for transformers, convolutional nets and mixtures of experts.

Each rule gives the devices contiguous runs of layers (`contiguous`), by speed if devices differ.

*Transformers*: equal runs of layers. Megatron-LM (Narayanan et al., SC 2021, section 2.2) and GPipe
(Huang et al., NeurIPS 2019) give each device the same number of layers; the embeddings go with the
first layers, the head with the last. If devices differ, their numbers of layers follow their
speeds, as users of llama.cpp and vLLM set their splits. An attention opens a layer; the layer ends
at the last op that all its paths pass before the next attention, so that one tensor leaves it. (A
decoder layer with self- and cross-attention counts as two.)

*Convolutional nets*: contiguous parts with about the same number of layers, as Mirhoseini et al.,
ICML 2017, section 4.1, cut Inception-V3 by hand. A layer is a convolution or a product with a
weight, and cuts go between blocks. A block ends where everything before it passes one op (an
Inception module, a residual block, each layer of a plain chain) or where three tensors or more are
concatenated (a NASNet cell, which also reads the output of the cell before the last). Residual nets
are cut between stages, where the size of the image changes (He et al. 2016, table 1), if there are
as many stages as devices. A block larger than a device's part (a U-Net's, whose skips leave no op
that all paths pass) is cut by layers.

*Mixtures of experts*: the experts spread over the devices, all else on the first. Expert
parallelism, Lepikhin et al. (GShard), ICLR 2021, section 2.2, and Shazeer et al. 2017, section 3.1.
(Both also copy the rest to every device and cut the batch; a placement gives each op one device.)
Structure distinguishes experts from other branches: products that read the same tensor as the gate
(a product that leads to a softmax), each followed, within its own branch, by one last product; all
with weights of the same size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewright.core.arrays import IntArray
from placewright.placers.baselines.expert.forward import (
    CONCATENATIONS,
    CONVOLUTIONS,
    ELEMENTWISE,
    EXIT,
    FUSED_ATTENTION,
    MOVES,
    PRODUCTS,
    SOFTMAXES,
    SUMS,
    ForwardGraph,
)

_CELLS = 1_000_000  # starts times ends of runs that are compared at once
_MOST_PIECES = 5000


class TooManyPieces(Exception):
    """A chain for several devices has more than 5,000 pieces.

    A cut compares all pairs of ends, and nothing interrupts it.
    """


def place_transformer(view: ForwardGraph, shares: Sequence[float]) -> list[int] | None:
    """Run of each forward op, -1 for the others; None if the graph is no transformer."""
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
        return weighs or kind in MOVES

    def is_fused(kind: str) -> bool:
        return kind in FUSED_ATTENTION or kind.startswith("scaled_dot_product")

    def weighs(op: int) -> bool:
        fed = view.after_through(op, passes)
        return any(view.kinds[to] in PRODUCTS and not view.weights[to] for to in fed)

    return [
        op
        for op in view.order
        if is_fused(view.kinds[op]) or (view.kinds[op] in SOFTMAXES and weighs(op))
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


def place_convolutional(view: ForwardGraph, shares: Sequence[float]) -> list[int] | None:
    """Run of each forward op, -1 for the others; None unless convolutions dominate."""
    flops = view.graph.op_flops
    convolutions = [op for op in view.products if view.kinds[op] in CONVOLUTIONS]
    products = [op for op in view.order if view.kinds[op] in PRODUCTS]
    if not convolutions or flops[convolutions].sum() < flops[products].sum():
        return None
    piece = _pieces(view, len(shares))
    n_pieces = 1 + max(piece[op] for op in view.order)
    layers = np.bincount([piece[op] for op in view.products], minlength=n_pieces)
    device_of = contiguous(layers.tolist(), shares).tolist()
    slots = [-1] * view.graph.n_ops
    for op in view.order:
        slots[op] = device_of[piece[op]]
    return slots


def _pieces(view: ForwardGraph, n_devices: int) -> list[int]:
    """Cut forward ops into pieces; numbers never fall along an edge, and each piece has a layer."""
    passed, cells = _block_ends(view)
    blocks = _numbered(view, view.first_end(sorted({*passed, *cells}, key=view.rank.__getitem__)))
    if not cells and any(view.kinds[op] in SUMS and len(view.before[op]) > 1 for op in passed):
        stages = _stages(view, blocks)
        if max(stages[op] for op in view.order) + 1 >= n_devices:
            return stages
    return _coarse_cut(view, blocks, n_devices)


def _block_ends(view: ForwardGraph) -> tuple[list[int], list[int]]:
    """Ops that everything before them passes, and concatenations of three tensors or more."""
    passed: list[int] = []
    step = view.products[0]
    while step != EXIT:
        passed.append(step)
        step = view.post_dominator[step]
    cells = [
        op for op in view.order if view.kinds[op] in CONCATENATIONS and len(view.before[op]) >= 3
    ]
    return passed, cells


def _numbered(view: ForwardGraph, number: list[int]) -> list[int]:
    """Pieces in the order of `number`; a piece without a layer joins the previous piece."""
    with_layer = sorted({number[op] for op in view.products})
    joined = np.searchsorted(with_layer, number, side="right") - 1
    return [max(0, int(at)) for at in joined]


def _stages(view: ForwardGraph, blocks: list[int]) -> list[int]:
    """Blocks joined while the size of their output image stays the same."""
    size: dict[int, tuple[int, ...]] = {}
    for op in view.order:  # the last output of a block leaves it
        for tensor in view.graph.op_outputs.row(op).tolist():
            shape = view.graph.tensor_shapes[tensor]
            if len(shape) > 3 and max(shape[2:]) > 1:
                size[blocks[op]] = shape[2:]
    stage_of: list[int] = []
    last: tuple[int, ...] | None = None
    for block in range(max(blocks[op] for op in view.order) + 1):
        now = size.get(block, last)
        new = bool(stage_of) and now != last
        stage_of.append((stage_of[-1] if stage_of else 0) + new)
        last = now
    return [stage_of[block] for block in blocks]


def _coarse_cut(view: ForwardGraph, blocks: list[int], n_devices: int) -> list[int]:
    """Blocks of more layers than a device's part become one piece per layer."""
    count = np.bincount([blocks[op] for op in view.products])
    coarse = count > max(1.0, len(view.products) / n_devices)
    number_of = {op: number for number, op in enumerate(view.products)}
    layer = [0] * view.graph.n_ops  # the last layer at or before each op
    for op in view.order:
        layer[op] = max([number_of.get(op, 0), *(layer[p] for p in view.before[op])])
    width = len(view.products)
    key = [b * width + (layer[op] if coarse[b] else 0) for op, b in enumerate(blocks)]
    return _numbered(view, key)


def place_mixture(view: ForwardGraph, shares: Sequence[float]) -> list[int] | None:
    """Device of each forward op, -1 for the others; None without a mixture of experts."""
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
    if not gated:
        return []
    alike: dict[tuple[int, float], list[list[int]]] = {}
    for last in view.products:
        if view.kinds[last] not in PRODUCTS:
            continue
        first = view.before_through(last, lambda op: not view.is_layer(op) and op not in gated)
        first = [op for op in first if view.is_layer(op)]
        read = {_source(view, op) for op in first}  # membership and size only
        if not first or len(read) != 1 or not read <= gated:
            continue
        members = _branch(view, first, last)
        if any(view.kinds[op] in SOFTMAXES for op in members):
            continue  # attention: query, key and value, then the product that mixes heads
        size = sum(view.weight_bytes(op) for op in (*first, last))
        alike.setdefault((min(read), size), []).append(members)
    return [layer for layer in alike.values() if len(layer) > 1]


def _gated_tensors(view: ForwardGraph) -> set[int]:
    """Ops that feed a gate: a product whose result reaches a softmax (for membership only)."""

    def passes(op: int) -> bool:
        return view.kinds[op] in MOVES or view.kinds[op] in ELEMENTWISE

    def is_gate(op: int) -> bool:
        return view.kinds[op] in SOFTMAXES or view.kinds[op] == "topk"

    leads = [False] * view.graph.n_ops  # to a gate, through ops that pass
    for op in reversed(view.order):
        leads[op] = any(is_gate(to) or (passes(to) and leads[to]) for to in view.after[op])
    return {_source(view, op) for op in view.products if view.kinds[op] in PRODUCTS and leads[op]}


def _source(view: ForwardGraph, op: int) -> int:
    """The op whose values a product reads, behind views of them; -1 for an input of the graph."""
    while view.before[op]:
        op = view.before[op][0]
        if view.kinds[op] not in MOVES:
            return op
    return -1


def _branch(view: ForwardGraph, first: Sequence[int], last: int) -> list[int]:
    """Ops from the first products to the last one, views that only they read, and ops
    that follow with no other input (a view, a bias).
    """
    begin, end = min(view.rank[op] for op in first), view.rank[last]
    members = set(first)  # membership only
    for op in view.order[begin : end + 1]:
        if any(p in members for p in view.before[op]):
            members.add(op)
    reaches = {last}  # membership only, until it is sorted

    def is_view(op: int) -> bool:
        moves = view.kinds[op] in MOVES and bool(view.after[op])
        return moves and all(after in reaches for after in view.after[op])

    for op in reversed(view.order[begin:end]):
        if is_view(op) or (op in members and any(after in reaches for after in view.after[op])):
            reaches.add(op)
    waiting = list(reaches)  # further ops by their edges: the whole graph may be large
    while waiting:
        for op in view.before[waiting.pop()]:
            if op not in reaches and 0 <= view.rank[op] < begin and is_view(op):
                reaches.add(op)
                waiting.append(op)
    waiting = list(reaches)
    while waiting:
        for op in view.after[waiting.pop()]:
            follows = view.kinds[op] in MOVES or view.kinds[op] in ELEMENTWISE
            if follows and len(view.before[op]) == 1 and view.rank[op] > end:
                reaches.add(op)
                waiting.append(op)
    return sorted(reaches, key=view.rank.__getitem__)


def contiguous(weights: Sequence[float], shares: Sequence[float]) -> IntArray:
    """Cut a chain of pieces into runs in proportion to the devices' shares.

    The runs minimise the sum of load squared / share, whose minimum without whole pieces is exactly
    load proportional to share; equal pieces on equal devices make runs that differ by one at most,
    the longer ones first. Of two equally good cuts the result is the one that leaves no device
    empty; if there are fewer pieces than devices, the largest shares take part.

    Args:
        weights: of each piece in the order of the chain, >= 0.
        shares: of each device in the order in which runs are dealt, > 0.

    Returns:
        Device of each piece, shape (n_pieces,), non-decreasing.

    Raises:
        TooManyPieces: there are more than 5,000, and several devices.
    """
    if len(shares) == 1:
        return np.zeros(len(weights), dtype=np.int64)
    if len(weights) > _MOST_PIECES:
        raise TooManyPieces
    used = sorted(range(len(shares)), key=lambda device: (-shares[device], device))
    used = sorted(used[: max(1, len(weights))])
    ends = np.concatenate([[0.0], np.cumsum(np.asarray(weights, dtype=np.float64))])
    n = len(weights)
    best = np.where(np.arange(n + 1) == 0, 0.0, np.inf)  # of the pieces before each end
    starts: list[IntArray] = []
    for device in used:
        known, best = best, np.empty(n + 1)
        starts.append(np.empty(n + 1, dtype=np.int64))
        for some in np.array_split(np.arange(n + 1), 1 + n * n // _CELLS):  # so many ends at once
            load = ends[None, some] - ends[:, None]  # (start, end) -> load of the run
            cost = np.where(np.arange(n + 1)[:, None] <= some, load**2, np.inf)
            cost[some, np.arange(len(some))] = 1e-9 * ends[-1] ** 2  # an empty run loses ties
            total = known[:, None] + cost / shares[device]
            best[some] = total.min(axis=0)
            # The last start: the earlier run is long.
            starts[-1][some] = n - np.argmin(total[::-1], axis=0)
    device_of = np.zeros(n, dtype=np.int64)
    end = n
    for device, start in zip(reversed(used), reversed(starts), strict=True):
        device_of[int(start[end]) : end] = device
        end = int(start[end])
    return device_of
