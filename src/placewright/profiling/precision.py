"""Precision in which an op computes on a device, and bytes of its data in it.

Without a wish of the user each op computes in the precision of its own data. A device that lacks
it takes another: data that this is too narrow for is stored narrower, all other data as it is. The
device's option ``precision`` is a wish: all floating-point data is stored in it then, and weights
of integers stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.cluster import Device
from placewright.core.graph import ComputationGraph
from placewright.profiling.catalogue import CatalogueDevice

OPTION = "precision"  # of a device
WIDTHS = {"f64": 8.0, "f32": 4.0, "tf32": 4.0, "bf16": 2.0, "f16": 2.0, "i8": 1.0}
_OWN = ("i8", "f16", "bf16", "f32")  # of data, in ascending order of what an op needs
_RANK = {"i4": 0, "u4": 0, "i8": 0, "u8": 0, "f16": 1, "bf16": 2, "f32": 3, "f64": 3, "": 3}
_NEUTRAL = -1  # indices and truth values decide nothing


def own_precisions(graph: ComputationGraph) -> tuple[str, ...]:
    """Precision of each op's own data, length n_ops.

    It is the widest of what the op reads; of what it makes, if it reads no numbers but weights.
    Data of unknown type counts as f32, as do integers of more than 8 bits.
    """
    rank = np.array([_RANK.get(dtype, _NEUTRAL) for dtype in graph.tensor_dtypes], dtype=np.int64)

    def widest(ops: IntArray, tensors: IntArray) -> IntArray:
        found = np.full(graph.n_ops, _NEUTRAL)
        np.maximum.at(found, ops, rank[tensors])
        return found

    read = widest(graph.op_inputs.row_of_each(), graph.op_inputs.indices)
    made = widest(graph.op_outputs.row_of_each(), graph.op_outputs.indices)
    known = np.where(read == _NEUTRAL, made, read)
    return tuple(_OWN[at] if at != _NEUTRAL else "f32" for at in known.tolist())


def precisions_on(own: tuple[str, ...], device: Device, entry: CatalogueDevice) -> tuple[str, ...]:
    """Precision in which each op computes on a device, length n_ops.

    Args:
        device: may have the option ``precision``.
    """
    wish = device.options.get(OPTION)
    of_own = {name: entry.precision(wish or name) for name in dict.fromkeys(own)}
    return tuple(of_own[name] for name in own)


def bytes_on(
    graph: ComputationGraph, own: tuple[str, ...], device: Device, entry: CatalogueDevice
) -> tuple[FloatArray, FloatArray]:
    """Bytes of each tensor, shape (n_tensors,), and of each op's weights, (n_ops,), on a device.

    Args:
        own: of each op, from `own_precisions`; the type of weights of unknown type.
        device: may have the option ``precision``.
    """
    scale = _scale(device, entry)
    of_tensor = np.array([scale(dtype or "f32") for dtype in graph.tensor_dtypes])
    weights, ops = graph.op_weights.indices, graph.op_weights.row_of_each()
    dtypes = graph.weight_dtypes or ("",) * len(graph.weight_bytes)
    scales = [
        scale(dtypes[weight] or own[op])
        for weight, op in zip(weights.tolist(), ops.tolist(), strict=True)
    ]
    sizes = graph.weight_bytes[weights] * np.array(scales, dtype=np.float64)
    of_weights = np.bincount(ops, weights=sizes, minlength=graph.n_ops)
    return graph.tensor_bytes * of_tensor, np.asarray(of_weights, dtype=np.float64)


def _scale(device: Device, entry: CatalogueDevice) -> Callable[[str], float]:
    """Factor by which the bytes of data of a type change on a device."""
    wish = device.options.get(OPTION)
    factors: dict[str, float] = {}

    def scale(dtype: str) -> float:
        if dtype not in factors:
            factors[dtype] = factor(dtype)
        return factors[dtype]

    def factor(dtype: str) -> float:
        if dtype not in WIDTHS or dtype == "i8":
            return 1.0
        if wish is not None:
            return WIDTHS[entry.precision(wish)] / WIDTHS[dtype]
        wanted = "f32" if dtype == "f64" else dtype
        computed = entry.precision(wanted)
        return min(1.0, WIDTHS[computed] / WIDTHS[wanted])

    return scale
