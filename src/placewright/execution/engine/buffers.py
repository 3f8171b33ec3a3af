"""Bytes of llama.cpp's buffers for activations, found by laying tensors out as it does.

The engine divides the graph of a micro-batch among its buffers, copies what one needs from another,
and lays the tensors of each into the gaps that earlier ones left (functions
`ggml_backend_sched_split_graph` and `ggml_gallocr_alloc_graph_impl`). Gaps depend on the order, so
that no sum of sizes gives these bytes: a state may rest above a gap that is too small for logits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from placewright.execution.engine.micro_batch import EngineLayout, MicroBatch, Tensor
from placewright.execution.token_work import Matrix, RequestedWork

_ALIGNMENT = 128  # bytes, of each begin
_ALIKE = 2  # layers of a kind
_HOST, _CARD = "host", "card"
_COPIES = 4  # of what enters a buffer, if micro-batches are pipelined (GGML_SCHED_MAX_COPIES)


def compute_buffers(work: RequestedWork, layout: EngineLayout) -> dict[str, float]:
    """Bytes of each buffer for the activations of a micro-batch.

    Args:
        work: of the request as the engine rounds it.
        layout: of a plan.
    """
    return _sizes(MicroBatch(work, layout), layout)


def streaming_buffer(work: RequestedWork) -> float:
    """Bytes of the buffer of a card that copies weights of the host; hardly any plan needs more.

    The card has attention and routers of all layers but two: the last, whose copies leave gaps
    below the state, and one with the largest cache. Or it has none, where caches of one layer after
    the other are copied. Of layers with equal matrices and caches two are laid out, as more find
    the same gaps.
    """
    graph, of_layer = work.graph, dict[str, list[int]]()
    for op, module in enumerate(graph.op_modules):
        of_layer.setdefault(module, []).append(op)
    seen: Counter[tuple[tuple[tuple[Matrix, ...], float], ...]] = Counter()
    ops: list[int] = []
    for own in of_layer.values():
        kind = tuple((work.matrices[op], work.caches[op]) for op in own)
        seen[kind] += 1
        ops += own if seen[kind] <= _ALIKE else ()
    widest = max(reversed(ops), key=lambda op: work.caches[op])
    sizes = []
    for resting in ({graph.op_modules[op] for op in (ops[-2], widest)}, set(graph.op_modules)):
        at = [
            _CARD if kind in ("Attention", "Router") and module not in resting else _HOST
            for kind, module in zip(graph.op_kinds, graph.op_modules, strict=True)
        ]
        layout = EngineLayout(at, [_CARD], _HOST, _CARD)
        sizes.append(_sizes(MicroBatch(work, layout, ops), layout)[_CARD])
    return max(sizes)


def _sizes(batch: MicroBatch, layout: EngineLayout) -> dict[str, float]:
    _choose(batch.nodes, layout)
    for node in batch.nodes:
        if node.at == layout.host:
            node.card_bytes = 0.0
    parts = _split(batch.nodes)
    heaps = {at: _Heap() for at in (*layout.cards, layout.host)}
    entering = [copy for part in parts for _, copy in part.entering]
    if layout.is_pipelined:
        for made in (*entering, *batch.inputs):
            made.is_kept = True
            for _ in range(_COPIES - 1):
                heaps[made.at].take(made.n_bytes)
    first = [*batch.inputs, *(entering if layout.is_pipelined else ())]
    _lay_out(first, parts, heaps)
    return {at: float(heap.most) for at, heap in heaps.items()}


@dataclass
class _Split:
    """Operations of one buffer, one after the other."""

    at: str
    entering: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # each with its copy
    nodes: list[Tensor] = field(default_factory=list)


def _choose(nodes: Sequence[Tensor], layout: EngineLayout) -> None:
    """Give each operation the buffer of its weight, else that of its neighbours, cards first."""
    for node in nodes:
        weight = next((read for read in node.reads if read.is_weight), None)
        if weight is not None and not node.at:
            is_copied = layout.copier is not None and weight.at == layout.host
            node.at = str(layout.copier) if is_copied else weight.at
    for ignored in (layout.host, ""):
        for order in (nodes, nodes[::-1]):
            near = ""
            for node in order:
                if node.at:
                    near = "" if node.at == ignored else node.at
                else:
                    node.at = near


def _split(nodes: Sequence[Tensor]) -> list[_Split]:
    """Cut where the buffer changes, and before a copied weight if the part has copies already.

    An operation then reads the copies of what other buffers have.
    """
    parts = [_Split(nodes[0].at)]
    copies: dict[tuple[Tensor, str], Tensor] = {}
    for node in nodes:
        copied = any(read.is_weight and read.at != node.at for read in node.reads)
        if node.at != parts[-1].at or (copied and parts[-1].entering):
            parts.append(_Split(node.at))
        for index, read in enumerate(node.reads):
            if read.at == node.at:
                continue
            key = read, node.at
            if key not in copies:
                copies[key] = Tensor(read.n_bytes, at=node.at)
                parts[-1].entering.append((read, copies[key]))
            node.reads[index] = copies[key]
        parts[-1].nodes.append(node)
    return parts


def _lay_out(first: Sequence[Tensor], parts: Sequence[_Split], heaps: dict[str, _Heap]) -> None:
    """Place tensors in their order, and free each behind its last use."""
    uses = Counter(
        chain(
            (read for part in parts for node in part.nodes for read in node.reads),
            (source for part in parts for source, _ in part.entering),
        )
    )
    begins: dict[Tensor, int] = {}

    def place(made: Tensor) -> None:
        if made in begins:
            return
        parent = next((read for read in made.reads if _can_be_overwritten(made, read)), None)
        size = made.n_bytes + made.card_bytes
        begins[made] = heaps[made.at].take(size) if parent is None else begins.pop(parent)

    def _can_be_overwritten(made: Tensor, read: Tensor) -> bool:
        is_free = uses[read] == 1 and read in begins and not read.is_kept
        return made.can_reuse and is_free and read.n_bytes == made.n_bytes

    def use(read: Tensor) -> None:
        uses[read] -= 1
        if not uses[read] and read in begins and not read.is_kept:
            heaps[read.at].give(begins.pop(read), read.n_bytes + read.card_bytes)

    for made in first:
        place(made)
    for part in parts:
        for source, copy in part.entering:
            use(source)
            place(copy)
        for node in part.nodes:
            place(node)
            for read in node.reads:
                use(read)


class _Heap:
    """Free blocks of a buffer without an end, each tensor in the smallest gap that holds it."""

    def __init__(self) -> None:
        self._free: list[tuple[int, float]] = [(0, math.inf)]  # begin and bytes, by begin
        self.most = 0  # bytes up to the end of the last tensor

    def take(self, n_bytes: float) -> int:
        """Place a tensor; return its begin."""
        size = _aligned(n_bytes)
        if not size:
            return 0
        gaps = [(free, -at) for at, (_, free) in enumerate(self._free[:-1]) if free >= size]
        at = -min(gaps)[1] if gaps else len(self._free) - 1
        begin, free = self._free[at]
        self._free[at : at + 1] = [(begin + size, free - size)] if free > size else []
        self.most = max(self.most, begin + size)
        return begin

    def give(self, begin: int, n_bytes: float) -> None:
        """Free a tensor's bytes, and join them with gaps beside them."""
        if not (size := _aligned(n_bytes)):
            return
        joined: list[tuple[int, float]] = []
        for start, free in sorted([*self._free, (begin, size)]):
            if joined and joined[-1][0] + joined[-1][1] == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + free)
            else:
                joined.append((start, free))
        self._free = joined


def _aligned(n_bytes: float) -> int:
    return -(-int(n_bytes) // _ALIGNMENT) * _ALIGNMENT
