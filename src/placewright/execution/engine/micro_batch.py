"""The tensors that llama.cpp makes while a micro-batch passes a model, in its order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from placewright.execution.token_work import Matrix, RequestedWork

_MASK_BYTES = 2  # for a token and one that it may look at


@dataclass(frozen=True)
class EngineLayout:
    """Places of a model's modules in an engine, and its ways of computing them."""

    at: Sequence[str]  # buffer of each op's weights and caches
    cards: Sequence[str]  # buffers of cards, in the engine's order
    host: str  # buffer of the processor
    copier: str | None = None  # card that computes with weights of the host
    is_pipelined: bool = False  # several micro-batches are computed at once
    is_on_cards: bool = False  # cards have all layers and the head


@dataclass(eq=False)
class Tensor:
    """A tensor of the graph; those without reads are weights, caches and inputs."""

    n_bytes: float
    reads: list[Tensor] = field(default_factory=list)
    can_reuse: bool = False  # it may take the place of the first read that is free and as large
    at: str = ""  # buffer; empty until one is chosen
    is_weight: bool = False  # an operation is computed where it is
    is_kept: bool = False  # its bytes are never freed
    card_bytes: float = 0.0  # that a card needs behind it while it computes


class MicroBatch:
    """Makes the graph of a micro-batch.

    Args:
        work: of the request as the engine rounds it.
        layout: of its modules.
        ops: that are in the graph; default all.

    Biases and norms of queries and keys, which change what is there, are left out.

    Attributes:
        nodes: tensors that are computed.
        inputs: space for a prompt that is given as states, positions, mask, cells of keys and
            values, and numbers of outputs.
    """

    def __init__(
        self, work: RequestedWork, layout: EngineLayout, ops: Sequence[int] | None = None
    ) -> None:
        self._work, self._layout, self._graph = work, layout, work.graph
        request = work.request
        self._tokens = min(request.micro_batch, request.sequences * request.context)
        self._size = work.embedding_bytes / 2
        self._mask = Tensor(_MASK_BYTES * self._tokens * request.context, at=layout.host)
        # numbers of each token: its position, the cells of its key and value, and its output
        self._positions, *self._cells, self._outputs = (
            Tensor(size * self._tokens, at=layout.host) for size in (4, 8, 8, 4)
        )
        states = Tensor(self._size, at=layout.host)
        self.inputs = [states, self._positions, self._mask, *self._cells, self._outputs]
        self.nodes: list[Tensor] = []
        self._state = self._normed = self._choice = self._mask
        first = {module: op for op, module in reversed(list(enumerate(self._graph.op_modules)))}
        self._first = [first[module] for module in self._graph.op_modules]
        steps = {
            "Embedding": self._embedding,
            "Attention": self._attention,
            "FeedForward": self._feed_forward,
            "Router": self._router,
            "Experts": self._experts,
            "SharedExperts": self._shared,
            "Head": self._head,
        }
        self._ops = range(self._graph.n_ops) if ops is None else ops
        for op in self._ops:
            steps[self._graph.op_kinds[op]](op)

    def _add(self, n_bytes: float, *reads: Tensor, reuses: bool = False) -> Tensor:
        self.nodes.append(Tensor(n_bytes, list(reads), reuses))
        return self.nodes[-1]

    def _resting(self, op: int, n_bytes: float, *, is_weight: bool = True) -> Tensor:
        return Tensor(n_bytes, at=self._layout.at[op], is_weight=is_weight)

    def _product(self, op: int, matrix: Matrix, *reads: Tensor, narrows: bool = False) -> Tensor:
        size = matrix.state_bytes if narrows else matrix.wide_bytes
        return self._add(size, self._resting(op, matrix.weight_bytes), *reads)

    def _norm(self, op: int) -> Tensor:
        normed = self._add(self._size, self._state, reuses=True)
        if self._layout.is_on_cards and self._graph.op_kinds[op] != "Head":
            normed.at = self._layout.at[self._first[op]]
        return self._add(
            self._size, normed, self._resting(op, self._size / self._tokens), reuses=True
        )

    def _join(self, made: Tensor) -> None:
        self._state = self._add(self._size, made, self._state, reuses=True)

    def _embedding(self, op: int) -> None:
        self._state = self._add(self._size, self._resting(op, 0.0))
        self._state.at = self._layout.host

    def _attention(self, op: int) -> None:
        """Queries and keys are turned by their positions into new tensors."""
        *inner, output = self._work.matrices[op]
        normed, width = self._norm(op), output.wide_bytes
        made = self._product(op, inner[0], normed) if inner else normed
        queries = self._add(width, made, self._positions)
        if len(inner) > 1:
            *values, keys = (self._product(op, matrix, normed) for matrix in inner[1:])
            size = keys.n_bytes
        else:  # one matrix makes queries, keys and values
            values, keys, size = [made], made, max(0.0, made.n_bytes - width) / 2
        kept = [self._add(size, keys, self._positions), *values[::-1]]
        half = self._work.caches[op] / 2
        caches = [self._resting(op, half, is_weight=False) for _ in range(2)]
        for number, each in enumerate(kept):
            self._add(0.0, each, self._cells[min(number, 1)]).at = self._layout.at[op]
        looked = self._add(width, queries, *caches, self._mask)
        looked.card_bytes = self._work.converted[op]
        made = self._product(op, output, looked, narrows=True)
        if self._first[op] == self._first[self._ops[-2]]:  # it takes tokens that have an output
            made = self._add(self._size, made, self._outputs)
            self._state = self._add(self._size, self._state, self._outputs)
        self._join(made)

    def _middle(self, op: int, *reads: Tensor) -> Tensor:
        """Result of the matrices of a feed-forward module or of experts."""
        *inner, down = self._work.matrices[op]
        made = [self._product(op, matrix, *reads) for matrix in inner]
        is_alone = len(made) == 1 and made[0].n_bytes <= down.wide_bytes
        gated = self._add(down.wide_bytes, *made, reuses=is_alone)
        return self._product(op, down, gated, *reads[1:], narrows=True)

    def _feed_forward(self, op: int) -> None:
        self._join(self._middle(op, self._norm(op)))

    def _router(self, op: int) -> None:
        self._normed = self._norm(op)
        logits = self._product(op, self._work.matrices[op][0], self._normed)
        scores = self._add(logits.n_bytes, logits, reuses=True)
        self._choice = self._add(logits.n_bytes, scores)
        of_token = 4.0 * self._tokens
        used = of_token * self._work.matrices[op + 1][0].state_bytes / self._size
        factors = self._add(used, scores, self._choice)
        self._factors = self._add(used, factors, self._add(of_token, factors))

    def _experts(self, op: int) -> None:
        made = self._middle(op, self._normed, self._choice)
        made = self._add(self._size, self._add(made.n_bytes, made, self._factors, reuses=True))
        kinds = self._graph.op_kinds
        if kinds[op + 1] == "SharedExperts":
            self._routed = made
        else:
            self._join(made)

    def _shared(self, op: int) -> None:
        both = self._add(self._size, self._routed, self._middle(op, self._normed), reuses=True)
        self._join(both)

    def _head(self, op: int) -> None:
        normed = self._norm(op)
        for matrix in self._work.matrices[op]:
            self._product(op, matrix, normed).is_kept = True
