"""Costs without measurement: the roofline model over a catalogue of real devices.

Williams, Waterman, Patterson: "Roofline: an insightful visual performance model for multicore
architectures", CACM 2009. An op takes as long as its arithmetic at the peak rate or its bytes at
the peak bandwidth, whichever is longer; both rates are scaled by an assumed efficiency, and every
kernel adds the time to start it. Predictions are too low for small ops, which do not fill a device.
"""

from __future__ import annotations

import re

import numpy as np

from placewright.core.arrays import FloatArray, IntArray, frozen_floats
from placewright.core.cluster import Cluster, Device
from placewright.core.costs import CostTable
from placewright.core.execution_models import EVENT, ExecutionModel, MaxLoad
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.problem import Objective, Problem
from placewright.core.source import ModelSource
from placewright.profiling.catalogue import catalogue_cluster, entry_of

_BYTES = {"f32": 4, "tf32": 4, "bf16": 2, "f16": 2, "i8": 1}

# Kinds in the spelling of OpenVINO and ATen, lower case and without punctuation.
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


def roofline_problem(
    graph: ComputationGraph,
    cluster: Cluster | str,
    objective: Objective = "latency",
    *,
    execution_model: ExecutionModel | None = None,
    source: ModelSource | None = None,
) -> Problem:
    """Make a problem whose costs come from the roofline model.

    Args:
        graph: with flops and bytes.
        cluster: of catalogue devices (`profiling.catalogue.catalogue_cluster`), or its name.
        objective: of the problem.
        execution_model: None is `max-load` for throughput and `event` for the others.
        source: of the graph's model.

    Raises:
        ClusterError: a device is not of the catalogue.
        UnknownNameError: the catalogue has no cluster of that name.
    """
    devices = catalogue_cluster(cluster) if isinstance(cluster, str) else cluster
    default: ExecutionModel = MaxLoad() if objective == "throughput" else EVENT
    chosen = execution_model or default
    return Problem(
        graph,
        devices,
        roofline_costs(graph, devices),
        Grouping.identity(graph.n_ops),
        objective=objective,
        execution_model=chosen,
        source=source,
    )


def roofline_costs(graph: ComputationGraph, cluster: Cluster) -> CostTable:
    """Seconds of each op on each device of a cluster of catalogue devices.

    Raises:
        ClusterError: a device is not of the catalogue.
    """
    kinds = [re.sub(r"[^a-z0-9]", "", kind.lower()) for kind in graph.op_kinds]
    columns = [_seconds_on(graph, kinds, device) for device in cluster.devices]
    return CostTable(frozen_floats(np.stack(columns, axis=1)), source="roofline")


def _moved(
    graph: ComputationGraph, kinds: list[str], tensor_bytes: FloatArray, weight_scale: float
) -> FloatArray:
    """Bytes that each op reads and writes, shape (n_ops,).

    Inputs, weights and outputs count once each; a look-up reads no more of its table than it
    returns.
    """

    def per_op(ops: IntArray, tensors: IntArray) -> FloatArray:
        sums = np.bincount(ops, weights=tensor_bytes[tensors], minlength=graph.n_ops)
        return np.asarray(sums, dtype=np.float64)

    reading = per_op(graph.op_inputs.row_of_each(), graph.op_inputs.indices)
    writing = per_op(graph.op_outputs.row_of_each(), graph.op_outputs.indices)
    weights = graph.op_weight_bytes * weight_scale
    lookup = np.array([kind in _LOOKUP for kind in kinds])
    return reading + writing + np.where(lookup, np.minimum(weights, writing), weights)


def _seconds_on(graph: ComputationGraph, kinds: list[str], device: Device) -> FloatArray:
    """Column of the cost table for a device, shape (n_ops,)."""
    entry = entry_of(device)
    precision = entry.precision(device.options.get("precision", "f32"))
    scale = _BYTES[precision] / 4
    floating = np.array([dtype in ("f32", "") for dtype in graph.tensor_dtypes], dtype=np.bool_)
    tensor_bytes = np.where(floating, graph.tensor_bytes * scale, graph.tensor_bytes)
    moved = _moved(graph, kinds, tensor_bytes, scale)
    peak, efficiency = entry.peak[precision], entry.efficiency
    rate_of = {
        "convolution": peak * efficiency["convolution"],
        "matmul": peak * efficiency["matmul"],
        "vector": entry.vector_peak * efficiency["vector"],
    }
    rates = np.array([rate_of[_work_of(kind)] for kind in kinds])
    arithmetic = graph.op_flops / rates
    traffic = moved / (entry.bandwidth * efficiency["bandwidth"])
    seconds = np.maximum(arithmetic, traffic) + entry.launch_seconds
    free = np.array([kind in _FREE for kind in kinds])  # these only rename or describe data
    return np.where(free, 0.0, seconds)


def _work_of(kind: str) -> str:
    if _CONVOLUTION.fullmatch(kind):
        return "convolution"
    return "matmul" if _MATMUL.fullmatch(kind) else "vector"
