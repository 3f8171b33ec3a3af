"""Classes of ops by what limits their speed, from kinds in the spelling of OpenVINO and ATen."""

from __future__ import annotations

import re

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.graph import ComputationGraph

CONVOLUTION, MATMUL, VECTOR = "convolution", "matmul", "vector"
NARROW = "narrow"  # products whose smallest extent does not fill the tiles of a kernel
SOFTMAX, NORMALISATION, LOOKUP, COPY = "softmax", "normalisation", "lookup", "copy"
TRAFFIC_CLASSES = (VECTOR, SOFTMAX, NORMALISATION, LOOKUP, COPY)
FITTED_CLASSES = (MATMUL, NARROW, *TRAFFIC_CLASSES)
_NARROW_EXTENT = 128  # largest smallest extent of a narrow product

# Kinds in lower case and without punctuation.
_CONVOLUTION = re.compile(
    r"(group)?conv(olution)?(transpose)?[123]?d?(backprop(data|filter)|backward)?"
)
_MATMUL = re.compile(
    r"b?mm|addb?mm|baddbmm|matmul|gemm|linear|einsum|(scaleddotproduct.*)"
    r"|(lstm|gru|rnn)(cell|sequence)?|fusedmatmul|innerproduct"
)
_FREE = frozenset(
    {
        *("constant", "parameter", "result", "shapeof", "reshape", "squeeze", "unsqueeze", "view"),
        *("unsafeview", "alias", "detach", "expand", "identity", "flatten", "assign", "readvalue"),
    }
)
_LOOKUP = frozenset({"gather", "embedding", "embeddingbag", "indexselect", "index"})
_SOFTMAX = re.compile(r"(log)?softmax(backwarddata)?")
_NORMALISATION = re.compile(
    r"mvn|l?rn|(native)?(simplified|skip)?(layer|rms|batch|group|instance)"
    r"norm(alization|inference)?(backward)?"
)
_COPY = frozenset(
    {
        *("transpose", "permute", "concat", "cat", "slice", "stridedslice", "split", "clone"),
        *("variadicsplit", "splitwithsizes", "copy", "contiguous", "pad", "constantpadnd"),
        *("tile", "repeat", "broadcast", "stack", "roll", "depthtospace", "spacetodepth"),
    }
)


def plain_kinds(graph: ComputationGraph) -> list[str]:
    """Kind of each op in lower case and without punctuation."""
    plain = {kind: re.sub(r"[^a-z0-9]", "", kind.lower()) for kind in dict.fromkeys(graph.op_kinds)}
    return [plain[kind] for kind in graph.op_kinds]


def is_free(kind: str) -> bool:
    """True if ops of a kind only rename or describe data."""
    return kind in _FREE


def reads_table(kind: str) -> bool:
    """True if ops of a kind read only a part of their table."""
    return kind in _LOOKUP


def work_of(kind: str) -> str:
    """Class of the arithmetic of ops of a kind: `CONVOLUTION`, `MATMUL` or `VECTOR`."""
    if _CONVOLUTION.fullmatch(kind):
        return CONVOLUTION
    return MATMUL if _MATMUL.fullmatch(kind) else VECTOR


def traffic_of(kind: str) -> str:
    """Class of the memory use of ops of a kind: one of `TRAFFIC_CLASSES`."""
    if kind in _LOOKUP:
        return LOOKUP
    if kind in _COPY:
        return COPY
    if _SOFTMAX.fullmatch(kind):
        return SOFTMAX
    return NORMALISATION if _NORMALISATION.fullmatch(kind) else VECTOR


def narrow_products(graph: ComputationGraph) -> FloatArray:
    """1 for each op whose smallest extent is at most 128, else 0; shape (n_ops,).

    Only products use it. The extents are rows and columns of the first output, and the length of
    the sums in it, which follows from the flops. Rows of a product with a
    weight count over the whole batch.
    """
    has_weight = np.diff(graph.op_weights.indptr) > 0
    narrow = np.zeros(graph.n_ops)
    for op in range(graph.n_ops):
        outputs = graph.op_outputs.row(op)
        shape = graph.tensor_shapes[int(outputs[0])] if len(outputs) else ()
        elements = float(np.prod(shape)) if shape else 0.0
        if len(shape) < 2 or elements <= 0:
            continue
        rows = elements / shape[-1] if has_weight[op] else shape[-2]
        inner = graph.op_flops[op] / (2.0 * elements)
        narrow[op] = min(rows, shape[-1], inner) <= _NARROW_EXTENT
    return narrow
