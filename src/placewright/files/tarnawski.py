"""Workloads of Tarnawski et al. 2020, which carry their own costs, so that a problem is read.

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
from placewright.core.placement import Placement
from placewright.core.problem import Objective, Problem
from placewright.core.source import ModelSource
from placewright.errors import FileFormatError, GraphError
from placewright.io.content import content_hash, existing_path
from placewright.io.json_text import read_json_object

_MOST_DEVICES = 10_000
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

    Op names are the node ids as text, in the order of the file; devices are ``acc:0`` ...
    ``acc:k-1`` and ``cpu:0`` ... ``cpu:l-1``. A node with out-edges has one tensor; should edges
    of one source disagree in their cost, the largest counts (in the published files they agree). A
    node that no accelerator supports costs inf there. CPUs share the host's memory, have no memory
    limit and, under max-load, pay no transfers. A node's size stays resident where it runs.

    Args:
        path: the JSON file.
        objective: what is minimised.
        execution_model: None is `max-load` for throughput and `subgraph` for latency.

    Returns:
        A problem in the file's own time unit (ms) whose units are single ops.

    Raises:
        FileFormatError: not JSON, or a key is missing or of the wrong type.
        GraphError: a cycle, an edge that names an unknown node, two nodes of one id.
        CostError: a negative time.
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
        execution_model=execution_model or _DEFAULT_MODEL[objective],
        transfer_seconds=frozen_floats(transfers),
        time_unit="ms",
        source=ModelSource(str(path), content_hash(file.parent, [file]), "tarnawski"),
    )


def read_split(path: Path | str, problem: Problem) -> Placement:
    """Read a split of a workload's nodes (the published expert splits have this form).

    A node that the split does not name goes where the nodes of its colour class are: expert splits
    of training workloads may list forward nodes only.

    Args:
        path: JSON with ``fpgas`` and ``cpus``, each a list of objects with ``nodes``.
        problem: what `read_workload` returned for the workload.

    Raises:
        FileFormatError: not JSON, a key is missing, or more devices than the problem has.
        GraphError: it names an unknown node, names one twice, or leaves one without a device.
    """
    file = existing_path(path)
    document = read_json_object(file)
    graph, cluster = problem.graph, problem.cluster
    device_of = np.full(graph.n_ops, -1, dtype=np.int64)
    for key, prefix in (("fpgas", "acc"), ("cpus", "cpu")):
        for number, share in enumerate(_rows(file, document, key)):
            members = share.get("nodes")
            if not isinstance(members, list):
                raise FileFormatError(f"split '{file}': entry {number} of '{key}' has no 'nodes'")
            device = cluster.device_index.get(f"{prefix}:{number}")
            if members and device is None:
                raise FileFormatError(
                    f"split '{file}' uses {prefix}:{number}, but the workload has only "
                    f"{', '.join(cluster.device_names)}"
                )
            for node in members:
                op = graph.op_index.get(str(node))
                if op is None or device is None or device_of[op] >= 0:
                    fault = "is not in the workload" if op is None else "is placed twice"
                    raise GraphError(f"split '{file}': node {node} {fault}")
                device_of[op] = device
    return Placement.of(_with_colour_classes(file, graph, device_of))


def _with_colour_classes(file: Path, graph: ComputationGraph, device_of: Any) -> Any:
    """Give unplaced nodes the device of their colour class."""
    of_class: dict[int, int] = {}
    for op, colour in enumerate(graph.op_colocation.tolist()):
        if device_of[op] >= 0 and colour >= 0:
            of_class.setdefault(colour, int(device_of[op]))
    for op, colour in enumerate(graph.op_colocation.tolist()):
        if device_of[op] < 0:
            device_of[op] = of_class.get(colour, -1)
        if device_of[op] < 0:
            raise GraphError(f"split '{file}' gives node {graph.op_names[op]} no device")
    return device_of


def _document(file: Path) -> dict[str, Any]:
    value = read_json_object(file)
    for key in _REQUIRED:
        if key not in value:
            raise FileFormatError(f"workload '{file}' lacks the key '{key}'")
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


def _count(file: Path, document: Mapping[str, Any], key: str) -> int:
    value = _number(file, document, key, "the workload")
    if value != int(value) or value > _MOST_DEVICES:
        raise FileFormatError(
            f"workload '{file}': '{key}' must be a whole number up to {_MOST_DEVICES}, got {value}"
        )
    return int(value)


def _cluster(file: Path, document: Mapping[str, Any]) -> Cluster:
    """k accelerators and l CPUs; every accelerator reaches the host's memory.

    Links are free because the problem carries its own transfer times. A tensor between two
    accelerators goes through the host, so that it pays its time twice, as the paper counts.
    """
    n_accelerators = _count(file, document, "maxFPGAs")
    n_cpus = _count(file, document, "maxCPUs")
    memory = _number(file, document, "maxSizePerFPGA", "the workload")
    if n_accelerators + n_cpus == 0:
        raise FileFormatError(f"workload '{file}' has neither accelerators nor CPUs")
    accelerators = tuple(
        Device(f"acc:{i}", kind="accelerator", memory_bytes=memory) for i in range(n_accelerators)
    )
    cpus = tuple(Device(f"cpu:{i}", pays_transfers=False) for i in range(n_cpus))
    host = cpus[0].name if cpus else "host"
    hosts = tuple(cpu.name for cpu in cpus) or (host,)
    pairs = [(device.name, end) for device in accelerators for end in hosts]
    pairs += [(one, other) for one in hosts for other in hosts if one < other]
    links = tuple(Link(*ends) for one, other in pairs for ends in ((one, other), (other, one)))
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
            phase=BACKWARD if node.get("isBackwardNode") else FORWARD,
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
    """One tensor per node with out-edges; the transfer time of each."""
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
        seconds[row, on_accelerator] = fast if node.get("supportedOnFpga", True) else math.inf
    return frozen_floats(seconds)


def _kind(name: str) -> str:
    """``"bert/MatMul14_Grad"`` -> ``"MatMul"``: the name's last part up to a mark, less digits."""
    word = re.split(r"[_.]", name.rsplit("/", 1)[-1])[0]
    return re.sub(r"\d+", "", word) or "Node"
