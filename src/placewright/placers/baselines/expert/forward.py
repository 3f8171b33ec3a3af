"""The forward part of a graph, with what the rules of the families ask about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from placewright.core.graph import FORWARD, ComputationGraph

EXIT = -1  # the end that every op's paths reach

# Classes of operator kinds by their names in OpenVINO, ONNX and PyTorch, as `plain` returns them.
PRODUCTS = ("addmm", "baddbmm", "bmm", "einsum", "fullyconnected", "gemm", "linear", "matmul",
            "matmulinteger", "mm", "qlinearmatmul")  # fmt: skip
# Transposed ones, too.
CONVOLUTIONS = ("binaryconvolution", "conv", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
                "conv_transpose2d", "conv_transpose3d", "convinteger", "convolution",
                "convolutionbackpropdata", "convtranspose", "deformableconvolution",
                "groupconvolution", "groupconvolutionbackpropdata", "qlinearconv")  # fmt: skip
SOFTMAXES = ("softmax", "safe_softmax")  # not their logarithms
# Attention as one operator.
FUSED_ATTENTION = ("attention", "groupqueryattention", "multiheadattention",
                   "scaleddotproductattention")  # fmt: skip
# A recurrent layer, or a step of it, as one operator.
FUSED_RECURRENCE = ("gru", "grucell", "grusequence", "lstm", "lstmcell", "lstmsequence", "rnn",
                    "rnncell", "rnnsequence", "rnn_relu", "rnn_tanh",
                    "tensoriterator")  # fmt: skip
GATES = ("sigmoid", "hardsigmoid")  # activations that can be the gate of a recurrent cell
LOOKUPS = ("embedding", "embedding_bag", "embeddingbagoffsets", "embeddingbagpacked", "gather")
CONCATENATIONS = ("cat", "concat", "stack")
SUMS = ("add", "sum")  # ONNX calls the sum of several tensors Sum
# Operators that only move or cast values; a concatenation does not count.
MOVES = ("broadcast", "cast", "chunk", "clone", "contiguous", "convert", "detach", "expand",
         "flatten", "gather", "identity", "narrow", "pad", "permute", "reshape", "select", "slice",
         "split", "split_with_sizes", "squeeze", "stridedslice", "t", "to", "to_copy", "transpose",
         "unbind", "unsafe_view", "unsqueeze", "variadicsplit", "view")  # fmt: skip
ELEMENTWISE = ("add", "batch_norm", "clamp", "clip", "div", "divide", "dropout", "elu", "exp",
               "gelu", "hardsigmoid", "hardswish", "hswish", "leakyrelu", "mul", "multiply",
               "native_dropout", "neg", "prelu", "relu", "sigmoid", "silu", "sub", "subtract",
               "swish", "tanh", "where")  # fmt: skip


def plain(kind: str) -> str:
    """Strip a kind of its domain and underscores, in lower case."""
    return kind.rpartition(".")[2].lower().strip("_")


class ForwardGraph:
    """Forward ops that depend on an input of the graph, with the edges among them.

    An op that depends on no input (a transposed weight, a constant) belongs to its reader.

    Attributes:
        graph: all ops.
        order: the ops above in topological order.
        before, after: predecessors and successors within `order`; empty for every other op.
        kinds: plain kind of every op, see `plain`.
    """

    def __init__(self, graph: ComputationGraph) -> None:
        self.graph = graph
        self.kinds = [plain(kind) for kind in graph.op_kinds]
        forward = (graph.op_phases == FORWARD).tolist()
        depends_on_input = [False] * graph.n_ops
        for tensor in (graph.tensor_producers < 0).nonzero()[0].tolist():
            for op in graph.tensor_consumers.row(tensor).tolist():
                depends_on_input[op] = True
        self.order: list[int] = []
        self.before: list[list[int]] = [[] for _ in range(graph.n_ops)]
        self.after: list[list[int]] = [[] for _ in range(graph.n_ops)]
        self._constant_before: list[list[int]] = [[] for _ in range(graph.n_ops)]
        for op in graph.topological_order.tolist():
            if not forward[op]:
                continue
            above = graph.predecessors.row(op).tolist()
            self.before[op] = [p for p in above if depends_on_input[p]]
            self._constant_before[op] = [p for p in above if not depends_on_input[p]]
            depends_on_input[op] |= bool(self.before[op]) or self.kinds[op] == "parameter"
            if depends_on_input[op]:
                self.order.append(op)
            for p in self.before[op]:
                self.after[p].append(op)

    @cached_property
    def weights(self) -> list[tuple[int, ...]]:
        """Weights that each op reads, directly or through ops that depend on no input."""
        rows: list[tuple[int, ...]] = [()] * self.graph.n_ops
        for op in self.graph.topological_order.tolist():
            weights = dict.fromkeys(self.graph.op_weights.row(op).tolist())
            for p in self._constant_before[op]:
                weights |= dict.fromkeys(rows[p])
            rows[op] = tuple(weights)
        return rows

    @cached_property
    def products(self) -> list[int]:
        """Products and convolutions with a weight, in order: the layers as people count them."""
        return [op for op in self.order if self.is_layer(op)]

    def is_layer(self, op: int) -> bool:
        """True for a product or a convolution with a weight."""
        kind = self.kinds[op]
        return bool(self.weights[op]) and (kind in PRODUCTS or kind in CONVOLUTIONS)

    def weight_bytes(self, op: int) -> float:
        """Bytes of the weights that an op reads."""
        return float(self.graph.weight_bytes[list(self.weights[op])].sum())

    @cached_property
    def rank(self) -> list[int]:
        """Position of each op in `order`, -1 for the others."""
        position = [-1] * self.graph.n_ops
        for at, op in enumerate(self.order):
            position[op] = at
        return position

    @cached_property
    def post_dominator(self) -> list[int]:
        """The first op after each one that all its paths to an output pass, else `EXIT`.

        Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm", 2001; on a graph without
        cycles one sweep is enough. Ops that reach no output (only backward reads them) are on no
        path.
        """
        live = self._live()
        nearest = [EXIT] * self.graph.n_ops
        for op in reversed(self.order):
            after = [s for s in self.after[op] if live[s]]
            common = after[0] if after else EXIT
            for other in after[1:]:
                common = self._meet(common, other, nearest)
            nearest[op] = common
        return nearest

    def _live(self) -> list[bool]:
        graph = self.graph
        producers = graph.tensor_producers[graph.tensor_is_output]
        live = [False] * graph.n_ops
        for op in producers[producers >= 0].tolist():
            live[op] = True
        for op in reversed(self.order):
            live[op] = live[op] or any(live[s] for s in self.after[op])
        return live if any(live[op] for op in self.order) else [True] * graph.n_ops

    def _meet(self, one: int, other: int, nearest: Sequence[int]) -> int:
        while one != other:
            if EXIT in (one, other):
                return EXIT
            if self.rank[one] < self.rank[other]:
                one = nearest[one]
            else:
                other = nearest[other]
        return one

    def first_end(self, ends: Sequence[int]) -> list[int]:
        """Number of the first of `ends` (in their order) that each op reaches; their count if none.

        Along an edge the number never falls where `ends` are in topological order.
        """
        number = [len(ends)] * self.graph.n_ops
        for at, op in enumerate(ends):
            number[op] = at
        for op in reversed(self.order):
            number[op] = min([number[op], *(number[s] for s in self.after[op])])
        return number

    def before_through(self, op: int, passes: Callable[[int], bool]) -> list[int]:
        """Ops that feed `op` through ops for which `passes` holds; not these themselves."""
        return _through(self.before, op, passes)

    def after_through(self, op: int, passes: Callable[[int], bool]) -> list[int]:
        """Ops that `op` feeds through ops for which `passes` holds; not these themselves."""
        return _through(self.after, op, passes)


def _through(rows: list[list[int]], start: int, passes: Callable[[int], bool]) -> list[int]:
    ends: dict[int, None] = {}
    seen = {start}  # membership only
    waiting = [start]
    while waiting:
        for op in rows[waiting.pop()]:
            if op in seen:
                continue
            seen.add(op)
            if passes(op):
                waiting.append(op)
            else:
                ends[op] = None
    return sorted(ends)
