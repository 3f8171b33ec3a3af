"""A graph, costs and links from plain arrays and from graphs of other libraries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from placewright.core.arrays import FloatArray, frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.graph import ComputationGraph
from placewright.errors import FieldError, GraphError


def plain_graph(graph: Any) -> ComputationGraph:
    """One of ours as it is, or a directed graph with the attributes of a NetworkX ``DiGraph``.

    Nodes are ops in the graph's own order, named by their text, with the attributes `kind`, `flops`
    and `weight_bytes`. An edge is a tensor of `bytes`; edges of one node that give the same
    `tensor` are one tensor, which crosses once to each device. A node without successors makes a
    graph output of `output_bytes`.

    Raises:
        GraphError: it is no directed graph, has a cycle, or a size is negative.
    """
    if isinstance(graph, ComputationGraph):
        return graph
    if not (hasattr(graph, "nodes") and hasattr(graph, "edges") and _is_directed(graph)):
        raise GraphError(
            f"a graph is a ComputationGraph or a NetworkX DiGraph, got {type(graph).__name__}"
        )
    builder = GraphBuilder()
    index: dict[Any, int] = {}
    for node, given in graph.nodes(data=True):
        weight = float(given.get("weight_bytes", 0.0))
        weights = [builder.add_weight(weight)] if weight else []
        kind, flops = str(given.get("kind", "op")), float(given.get("flops", 0.0))
        index[node] = builder.add_op(str(node), kind, flops=flops, weights=weights)
    tensors: dict[tuple[int, Any], tuple[int, float]] = {}
    for number, (source, target, given) in enumerate(graph.edges(data=True)):
        size, name = float(given.get("bytes", 0.0)), given.get("tensor", ("edge", number))
        key = (index[source], name)
        if key not in tensors:
            tensors[key] = builder.add_tensor(index[source], size), size
        tensor, known = tensors[key]
        if size != known:
            raise GraphError(
                f"tensor '{name}' of '{source}' has {known:g} bytes on one edge and {size:g} on "
                "another"
            )
        builder.connect(tensor, index[target])
    read = {op for op, _ in tensors}
    for node, given in graph.nodes(data=True):
        if index[node] not in read:
            size = float(given.get("output_bytes", 0.0))
            builder.add_tensor(index[node], size, is_output=True)
    return builder.build()


def _is_directed(graph: Any) -> bool:
    return bool(getattr(graph, "is_directed", lambda: False)())


def plain_cluster(
    n_devices: int,
    links: tuple[ArrayLike, ArrayLike],
    memory: ArrayLike | None,
    names: Sequence[str] | None,
) -> Cluster:
    """Devices with a link between every two that have bandwidth; the first one is the host.

    Args:
        n_devices: number of devices.
        links: seconds of latency and bytes per second of bandwidth, each one number or an array of
            shape (n_devices, n_devices), from row to column; bandwidth 0 is no link.
        memory: bytes of each device, shape (n_devices,), or one number for all; None is no limit.
        names: of the devices; None are ``device:0`` ...

    Raises:
        FieldError: a shape does not fit.
        ClusterError: a value is out of range, or a name is used twice.
    """
    called = [f"device:{at}" for at in range(n_devices)] if names is None else list(names)
    if len(called) != n_devices:
        raise FieldError("devices", f"names {len(called)} devices, but seconds has {n_devices}")
    latency, bandwidth = (
        _filled(name, given, (n_devices, n_devices))
        for name, given in zip(("latency", "bandwidth"), links, strict=True)
    )
    sizes = _filled("memory", math.inf if memory is None else memory, (n_devices,))
    devices = [
        Device(name, kind="accelerator", memory_bytes=size)
        for name, size in zip(called, sizes.tolist(), strict=True)
    ]
    pairs = [(a, b) for a in range(n_devices) for b in range(n_devices) if a != b]
    between = tuple(
        Link(called[a], called[b], float(latency[a, b]), float(bandwidth[a, b]))
        for a, b in pairs
        if bandwidth[a, b] != 0
    )
    return Cluster(tuple(devices), between, host=called[0])


def _filled(name: str, given: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    values = np.asarray(given, dtype=np.float64)
    if values.shape not in ((), shape):
        raise FieldError(name, f"has shape {values.shape}, expected {shape} or one number")
    return frozen_floats(np.broadcast_to(values, shape))
