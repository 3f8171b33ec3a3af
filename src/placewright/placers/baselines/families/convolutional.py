"""Convolutional nets: contiguous parts with about the same number of layers.

Mirhoseini et al., ICML 2017, section 4.1, cut Inception-V3 so by hand; a layer is a convolution or
a product with a weight, and cuts go between blocks. A block ends where everything before it
passes one op (an Inception module, a residual block, each layer of a plain chain) or where three
tensors or more are concatenated (a NASNet cell, which also reads the output of the cell before the
last). Residual nets are cut between stages, where the size of the image changes (He et al. 2016,
table 1), while there are as many stages as devices. A block larger than a device's part (a U-Net's,
whose skips leave nothing that all passes) is cut by layers. Where devices differ, numbers of layers
follow their speeds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewright.placers.baselines.families import kinds
from placewright.placers.baselines.families.forward import EXIT, ForwardGraph
from placewright.placers.baselines.families.shares import contiguous


def place(view: ForwardGraph, shares: Sequence[float]) -> list[int] | None:
    """Run of each forward op, -1 for the others; None where convolutions do not do the most."""
    flops = view.graph.op_flops
    convolutions = [op for op in view.products if kinds.is_convolution(view.kinds[op])]
    products = [op for op in view.order if kinds.is_product(view.kinds[op])]
    if not convolutions or flops[convolutions].sum() < flops[products].sum():
        return None
    piece = _pieces(view, len(shares))
    layers = np.bincount(
        [piece[op] for op in view.products], minlength=1 + max(piece[op] for op in view.order)
    )
    device_of = contiguous(layers.tolist(), shares).tolist()
    slots = [-1] * view.graph.n_ops
    for op in view.order:
        slots[op] = device_of[piece[op]]
    return slots


def _pieces(view: ForwardGraph, n_devices: int) -> list[int]:
    """Number of each forward op's piece, along every edge non-decreasing; each has a layer."""
    passed, cells = _block_ends(view)
    blocks = _numbered(view, view.first_end(sorted({*passed, *cells}, key=view.rank.__getitem__)))
    if not cells and any(_is_residual_sum(view, op) for op in passed):
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
        op
        for op in view.order
        if kinds.is_concatenation(view.kinds[op]) and len(view.before[op]) >= 3
    ]
    return passed, cells


def _is_residual_sum(view: ForwardGraph, op: int) -> bool:
    return kinds.is_sum(view.kinds[op]) and len(view.before[op]) >= 2


def _numbered(view: ForwardGraph, number: list[int]) -> list[int]:
    """Pieces in the order of `number`; one without a layer joins the one before it."""
    with_layer = sorted({number[op] for op in view.products})
    joined = np.searchsorted(with_layer, number, side="right") - 1
    return [max(0, int(at)) for at in joined]


def _stages(view: ForwardGraph, blocks: list[int]) -> list[int]:
    """Blocks joined while the image that leaves them keeps its size."""
    size: dict[int, tuple[int, ...]] = {}
    for op in view.order:  # what a block makes last is what leaves it
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
