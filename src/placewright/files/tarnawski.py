"""Workloads of Tarnawski et al. 2020, which contain costs, so that a file is a whole problem.

Tarnawski, Phanishayee, Devanur, Mahajan, Nina Paravecino: "Efficient Algorithms for Device
Placement of DNN Graph Operators", NeurIPS 2020; repository msr-fiddle/dnn-partitioning.
A file is one JSON object: ``maxFPGAs`` accelerators (an "FPGA" is any accelerator) with
``maxSizePerFPGA`` bytes each, ``maxCPUs`` CPUs, ``nodes`` and ``edges``. The cost of an edge is the
time of its source's output between an accelerator and the host's memory, so all edges of one source
share it: one tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import EVENT, ExecutionModel, MaxLoad, Subgraph
from placewright.core.graph import BACKWARD, FORWARD, ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.problem import Objective, Problem
from placewright.core.source import ModelSource
from placewright.errors import FileFormatError, GraphError
from placewright.io.content import content_hash, existing_path
from placewright.io.json_text import read_json_object

_MOST_DEVICES = 1000  # in all; each accelerator has links to each CPU
_REQUIRED = ("maxFPGAs", "maxCPUs", "maxSizePerFPGA", "nodes", "edges")
_DEFAULT_MODEL: Mapping[str, ExecutionModel] = {
    "throughput": MaxLoad(samples_in_flight=0),
    "latency": Subgraph(),
    "training": EVENT,
}


def read_workload(
    path: Path | str,
    *,
    objective: Objective = "throughput",
    execution_model: ExecutionModel | None = None,
) -> Problem:
    """Read a workload.

    Op names are the node ids as text, in file order; devices are ``acc:0`` ... ``acc:k-1`` and
    ``cpu:0`` ... ``cpu:l-1``.

    - A node with out-edges has one tensor. If edges of one source have different costs, the largest
      counts; in the published files they are equal.
    - A node that accelerators do not support costs inf there.
    - CPUs share the host's memory, have no memory limit and, under max-load, pay no transfers.
    - The size of a node is resident on its device.

    Args:
        execution_model: by default `max-load` for throughput and `subgraph` for latency.

    Returns:
        A problem in the file's own time unit (ms) whose units are single ops.

    Raises:
        FileFormatError: the file is not JSON, or a key is missing or has the wrong type.
        GraphError: there is a cycle, an edge with an unknown node, or two nodes with one id.
        CostError: a time is negative.
    """
    file = existing_path(path)
    document = _document(file)
    nodes, edges = _rows(file, document, "nodes"), _rows(file, document, "edges")
    cluster = _cluster(file, document)
    graph, transfers = _graph(file, nodes, edges)
    return Problem(
        graph,
        cluster,
        CostTable(_seconds(file, nodes, cluster), source="workload"),
        Grouping.identity(graph.n_ops),
        objective=objective,
        execution_model=execution_model or _DEFAULT_MODEL.get(objective, EVENT),
        transfer_seconds=frozen_floats(transfers),
        time_unit="ms",
        source=ModelSource(str(path), content_hash(file.parent, [file]), "tarnawski"),
    )


def _document(file: Path) -> dict[str, Any]:
    value = read_json_object(file)
    for key in _REQUIRED:
        if key not in value:
            raise FileFormatError(
                f"file '{file}' is no model: it has no `format`, as our files have, and lacks the "
                f"key '{key}' of a Tarnawski workload"
            )
    return value


def _rows(file: Path, document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    rows = document.get(key)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FileFormatError(f"workload '{file}': '{key}' must be a list of objects")
    return rows


def _number(file: Path, row: Mapping[str, Any], key: str, what: str) -> float:
    value = row.get(key)
    if key not in row or isinstance(value, bool) or not isinstance(value, int | float):
        fault = f"{value!r} is no number" if key in row else "is missing"
        raise FileFormatError(f"workload '{file}': '{key}' of {what} {fault}")
    if not math.isfinite(value) or value < 0:
        raise FileFormatError(f"workload '{file}': '{key}' of {what} must be >= 0, got {value}")
    return float(value)


def _flag(file: Path, node: Mapping[str, Any], key: str, *, otherwise: bool) -> bool:
    """An entry of a node that is true or false, 1 or 0; null is false."""
    value = node.get(key, otherwise)
    if value not in (True, False, None):
        raise FileFormatError(
            f"workload '{file}': '{key}' of node {node['id']} must be true or false, "
            f"got {value!r:.60}"
        )
    return bool(value)


def _count(file: Path, document: Mapping[str, Any], key: str) -> int:
    value = _number(file, document, key, "the workload")
    if value != int(value) or value > _MOST_DEVICES:
        raise FileFormatError(
            f"workload '{file}': '{key}' must be a whole number up to {_MOST_DEVICES}, got {value}"
        )
    return int(value)


def _cluster(file: Path, document: Mapping[str, Any]) -> Cluster:
    """k accelerators and l CPUs; every accelerator has a link to the host's memory.

    Links are free, because the problem has its own transfer times. A tensor between two
    accelerators goes through the host and pays its time twice, as in the paper.
    """
    n_accelerators = _count(file, document, "maxFPGAs")
    n_cpus = _count(file, document, "maxCPUs")
    memory = _number(file, document, "maxSizePerFPGA", "the workload")
    if n_accelerators + n_cpus > _MOST_DEVICES:
        raise FileFormatError(f"workload '{file}' has more than {_MOST_DEVICES} devices")
    if n_accelerators + n_cpus == 0:
        raise FileFormatError(f"workload '{file}' has neither accelerators nor CPUs")
    accelerators = tuple(
        Device(f"acc:{i}", kind="accelerator", memory_bytes=memory) for i in range(n_accelerators)
    )
    cpus = tuple(Device(f"cpu:{i}", pays_transfers=False) for i in range(n_cpus))
    host = cpus[0].name if cpus else "host"
    hosts = tuple(cpu.name for cpu in cpus) or (host,)
    pairs = [(device.name, end) for device in accelerators for end in hosts]
    pairs += [(a, b) for a in hosts for b in hosts if a < b]
    links = tuple(Link(*ends) for a, b in pairs for ends in ((a, b), (b, a)))
    return Cluster((*accelerators, *cpus), links, host=host)


def _graph(
    file: Path, nodes: list[dict[str, Any]], edges: list[dict[str, Any]]
) -> tuple[ComputationGraph, list[float]]:
    """The graph and the transfer time of each of its tensors."""
    builder = GraphBuilder()
    colours: dict[Any, int] = {}
    op_of: dict[Any, int] = {}
    for node in nodes:
        if not isinstance(node.get("id"), int | str):
            raise FileFormatError(f"workload '{file}': a node has no number or text as 'id'")
        what = f"node {node['id']}"
        if node["id"] in op_of:
            raise GraphError(f"workload '{file}': two nodes have the id {node['id']}")
        colour = node.get("colorClass")
        if not isinstance(colour, int | str | None):
            raise FileFormatError(f"workload '{file}': 'colorClass' of {what} must be a number")
        weight = builder.add_weight(_number(file, node, "size", what))
        op_of[node["id"]] = builder.add_op(
            str(node["id"]),
            _kind(str(node.get("name", ""))),
            phase=BACKWARD if _flag(file, node, "isBackwardNode", otherwise=False) else FORWARD,
            colocation=-1 if colour is None else colours.setdefault(colour, len(colours)),
            weights=[weight],
        )
    transfers = _connect(file, builder, op_of, edges)
    try:
        return builder.build(as_read=True), transfers
    except GraphError as error:
        raise GraphError(f"workload '{file}': {error}") from None


def _connect(
    file: Path, builder: GraphBuilder, op_of: Mapping[Any, int], edges: list[dict[str, Any]]
) -> list[float]:
    """Add a tensor per node with out-edges, and return their transfer times."""
    outputs: dict[int, dict[int, None]] = {}
    cost: dict[int, float] = {}
    size: dict[int, float] = {}
    for edge in edges:
        what = f"edge {edge.get('sourceId')} -> {edge.get('destId')}"
        for key in ("sourceId", "destId"):
            if not isinstance(edge.get(key), int | str) or edge[key] not in op_of:
                raise GraphError(f"workload '{file}': {what}: '{key}' names no node")
        source = op_of[edge["sourceId"]]
        outputs.setdefault(source, {})[op_of[edge["destId"]]] = None
        cost[source] = max(cost.get(source, 0.0), _number(file, edge, "cost", what))
        size_bytes = _number(file, edge, "size", what) if "size" in edge else 0.0
        size[source] = max(size.get(source, 0.0), size_bytes)
    for source, consumers in sorted(outputs.items()):
        tensor = builder.add_tensor(source, size[source])
        for consumer in consumers:
            builder.connect(tensor, consumer)
    return [cost[source] for source in sorted(outputs)]


def _seconds(file: Path, nodes: list[dict[str, Any]], cluster: Cluster) -> Any:
    seconds = np.empty((len(nodes), cluster.n_devices))
    on_accelerator = np.array([device.kind == "accelerator" for device in cluster.devices])
    for row, node in enumerate(nodes):
        what = f"node {node['id']}"
        seconds[row, ~on_accelerator] = _number(file, node, "cpuLatency", what)
        fast = _number(file, node, "fpgaLatency", what)
        runs = _flag(file, node, "supportedOnFpga", otherwise=True)
        seconds[row, on_accelerator] = fast if runs else math.inf
    return frozen_floats(seconds)


def _kind(name: str) -> str:
    """The kind in a node's name, for example ``"MatMul"`` in ``"bert/MatMul14_Grad"``."""
    word = re.split(r"[_.]", name.rsplit("/", 1)[-1])[0]
    return re.sub(r"\d+", "", word) or "Node"
