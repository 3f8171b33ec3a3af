"""Which tensors come out of arithmetic, and which were only moved or touched in passing."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray
from placewright.core.graph import ComputationGraph

# Floating-point operations per byte made. Convolutions and matrix products of real models do
# hundreds; element-wise ops, pooling and concatenation at most a few.
_COMPUTE_BOUND = 20.0


def is_compute_bound(flops: FloatArray, size: FloatArray) -> BoolArray:
    """True where so many flops made so many bytes that the kernel chose their layout."""
    return np.asarray((flops >= _COMPUTE_BOUND * size) & (flops > 0), dtype=np.bool_)


def compute_bound_tensors(graph: ComputationGraph) -> BoolArray:
    """Tensors whose producer is compute-bound, shape (n_tensors,); graph inputs are not."""
    producers = graph.tensor_producers
    flops = np.where(producers >= 0, graph.op_flops[producers], 0.0)
    return is_compute_bound(flops, graph.tensor_bytes)
