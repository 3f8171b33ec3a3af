"""Costs without measurement: the roofline model over a catalogue of real devices.

Williams, Waterman, Patterson: "Roofline: an insightful visual performance model for multicore
architectures", CACM 2009. An op takes as long as its arithmetic at the peak rate or its bytes at
the peak bandwidth, whichever is longer; both rates are scaled by an assumed efficiency, and every
kernel adds the time to start it. Predictions are too low for small ops, which do not fill a device.
Rates and bytes follow the precision of each op's data (see `profiling.precision`).
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
from placewright.profiling.precision import bytes_on, own_precisions, precisions_on

# Kinds in the spelling of OpenVINO and ATen, lower case and without punctuation.
_CONVOLUTION = re.compile(
    r"(group)?conv(olution)?(transpose)?[123]?d?(backprop(data|filter)|backward)?"
)
_MATMUL = re.compile(
    r"b?mm|addb?mm|baddbmm|matmul|gemm|linear|einsum|(scaleddotproduct.*)"
    r"|(lstm|gru|rnn)(cell|sequence)?|fusedmatmul|innerproduct"
)
VECTOR = "vector"  # work that is neither a product nor a convolution
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
    own = own_precisions(graph)
    columns = [_seconds_on(graph, kinds, own, device) for device in cluster.devices]
    return CostTable(frozen_floats(np.stack(columns, axis=1)), source="roofline")


def precision_lines(
    graph: ComputationGraph, cluster: Cluster, wanted: str | None = None
) -> tuple[str, ...]:
    """Say in which precision each device computes matrix products, one line for each device.

    There is none for a graph without products.

    Args:
        graph: with flops; the shares are of the flops of its products and convolutions.
        cluster: of devices with data sheets.
        wanted: the precision that the user asked for.
    """
    own = own_precisions(graph)
    kinds = [re.sub(r"[^a-z0-9]", "", kind.lower()) for kind in graph.op_kinds]
    flops = np.array([0.0 if _work_of(k) == VECTOR else 1.0 for k in kinds]) * graph.op_flops
    lines = []
    for device in cluster.devices:
        entry, shares = entry_of(device), dict[str, float]()
        for used, share in zip(precisions_on(own, device, entry), flops.tolist(), strict=True):
            shares[used] = shares.get(used, 0.0) + share
        total = sum(shares.values())
        told = ", ".join(
            used if share == total else f"{used} ({share / total:.0%})"
            for used, share in sorted(shares.items(), key=lambda item: -item[1])
            if share > 0
        )
        lacks = wanted is not None and wanted not in entry.peak
        why = f"; its data sheet has no rate for {wanted}" if lacks else ""
        if told:
            lines.append(f"{device.name}: products run in {told}{why}")
    return tuple(lines)


def _moved(
    graph: ComputationGraph, kinds: list[str], tensor_bytes: FloatArray, weights: FloatArray
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
    lookup = np.array([kind in _LOOKUP for kind in kinds])
    return reading + writing + np.where(lookup, np.minimum(weights, writing), weights)


def _seconds_on(
    graph: ComputationGraph, kinds: list[str], own: tuple[str, ...], device: Device
) -> FloatArray:
    """Column of the cost table for a device, shape (n_ops,)."""
    entry = entry_of(device)
    moved = _moved(graph, kinds, *bytes_on(graph, own, device, entry))
    efficiency = entry.efficiency
    rates = np.array(
        [
            efficiency[work] * (entry.vector_peak if work == VECTOR else entry.peak[precision])
            for work, precision in zip(
                map(_work_of, kinds), precisions_on(own, device, entry), strict=True
            )
        ]
    )
    arithmetic = graph.op_flops / rates
    traffic = moved / (entry.bandwidth * efficiency["bandwidth"])
    seconds = np.maximum(arithmetic, traffic) + entry.launch_seconds
    free = np.array([kind in _FREE for kind in kinds])  # these only rename or describe data
    return np.where(free, 0.0, seconds)


def _work_of(kind: str) -> str:
    if _CONVOLUTION.fullmatch(kind):
        return "convolution"
    return "matmul" if _MATMUL.fullmatch(kind) else VECTOR
