"""Recognise classes of operator kinds by their names in OpenVINO, ONNX and PyTorch."""

from __future__ import annotations

_PRODUCTS = ("addmm", "baddbmm", "bmm", "einsum", "fullyconnected", "gemm", "linear", "matmul",
             "matmulinteger", "mm", "qlinearmatmul")  # fmt: skip
_CONVOLUTIONS = ("binaryconvolution", "conv", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
                 "conv_transpose2d", "conv_transpose3d", "convinteger", "convolution",
                 "convolutionbackpropdata", "convtranspose", "deformableconvolution",
                 "groupconvolution", "groupconvolutionbackpropdata", "qlinearconv")  # fmt: skip
_FUSED_ATTENTION = ("attention", "groupqueryattention", "multiheadattention",
                    "scaleddotproductattention")  # fmt: skip
_FUSED_RECURRENCE = ("gru", "grucell", "grusequence", "lstm", "lstmcell", "lstmsequence", "rnn",
                     "rnncell", "rnnsequence", "rnn_relu", "rnn_tanh",
                     "tensoriterator")  # fmt: skip
_LOOKUPS = ("embedding", "embedding_bag", "embeddingbagoffsets", "embeddingbagpacked", "gather")
_CONCATENATIONS = ("cat", "concat", "stack")
_SUMS = ("add", "sum")  # ONNX calls the sum of several tensors Sum
_MOVES = ("broadcast", "cast", "chunk", "clone", "contiguous", "convert", "detach", "expand",
          "flatten", "gather", "identity", "narrow", "pad", "permute", "reshape", "select", "slice",
          "split", "split_with_sizes", "squeeze", "stridedslice", "t", "to", "to_copy", "transpose",
          "unbind", "unsafe_view", "unsqueeze", "variadicsplit", "view")  # fmt: skip
_ELEMENTWISE = ("add", "batch_norm", "clamp", "clip", "div", "divide", "dropout", "elu", "exp",
                "gelu", "hardsigmoid", "hardswish", "hswish", "leakyrelu", "mul", "multiply",
                "native_dropout", "neg", "prelu", "relu", "sigmoid", "silu", "sub", "subtract",
                "swish", "tanh", "where")  # fmt: skip


def plain(kind: str) -> str:
    """Strip a kind of its domain and underscores, in lower case; the other functions take this."""
    return kind.rpartition(".")[2].lower().strip("_")


def is_product(kind: str) -> bool:
    """True for a matrix product."""
    return kind in _PRODUCTS


def is_convolution(kind: str) -> bool:
    """True for a convolution, transposed or not."""
    return kind in _CONVOLUTIONS


def is_softmax(kind: str) -> bool:
    """True for a softmax, but not for its logarithm."""
    return kind in ("softmax", "safe_softmax")


def is_fused_attention(kind: str) -> bool:
    """True for attention as one operator."""
    return kind in _FUSED_ATTENTION or kind.startswith("scaled_dot_product")


def is_fused_recurrence(kind: str) -> bool:
    """True for a recurrent layer, or a step of it, as one operator."""
    return kind in _FUSED_RECURRENCE


def is_gate(kind: str) -> bool:
    """True for an activation that can be the gate of a recurrent cell."""
    return kind in ("sigmoid", "hardsigmoid")


def is_lookup(kind: str) -> bool:
    """True for a look-up in a table."""
    return kind in _LOOKUPS


def is_concatenation(kind: str) -> bool:
    """True for a concatenation of tensors."""
    return kind in _CONCATENATIONS


def is_sum(kind: str) -> bool:
    """True for a sum of tensors."""
    return kind in _SUMS


def is_move(kind: str) -> bool:
    """True if an operator only moves or casts values; a concatenation does not count."""
    return kind in _MOVES


def is_elementwise(kind: str) -> bool:
    """True for elementwise arithmetic."""
    return kind in _ELEMENTWISE
