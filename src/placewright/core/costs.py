"""The cost table: seconds of each unit on each device; and problems of plain arrays and graphs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from placewright.core.arrays import FloatArray, frozen_floats, kept_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.execution_models import MaxLoad
from placewright.core.graph import ComputationGraph
from placewright.core.pools import Pools
from placewright.core.processors import check_spelling
from placewright.errors import CostError, FieldError, GraphError

LONGEST = 1e300  # seconds or bytes in all: products and sums of a few such are still finite


@dataclass(frozen=True, eq=False)
class CostTable:
    """Seconds of each unit on each device.

    Attributes:
        seconds: shape (n_units, n_devices), float64, >= 0; inf where the device cannot run it.
            Other numbers are converted, and an array that may change is copied.
        source: where the numbers come from: ``"measured"``, ``"roofline"``, ``"recorded"``,
            ``"workload"`` or a word of the caller's own.

    Raises:
        CostError: a negative or NaN entry, another shape, or a sum of 1e300 s or more, whose
            products overflow: an op that ends at infinity would seem never to run.
    """

    seconds: FloatArray
    source: str = "measured"

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "seconds", kept_floats(self.seconds))
        except (TypeError, ValueError):
            raise CostError("costs must be a units x devices matrix of numbers") from None
        if self.seconds.ndim != 2:
            raise CostError(f"costs must be a units x devices matrix, got {self.seconds.ndim} axes")
        wrong = np.argwhere(np.isnan(self.seconds) | (self.seconds < 0))
        if len(wrong):
            unit, device = (int(index) for index in wrong[0])
            value = self.seconds[unit, device]
            raise CostError(f"cost of unit {unit} on device {device} must be >= 0 s, got {value}")
        # Without a copy: the table of a large problem takes half a gibibyte.
        longest = self.seconds.max(axis=1, initial=0.0, where=np.isfinite(self.seconds))
        with np.errstate(over="ignore"):
            total = longest.sum()
        if not total < LONGEST:
            unit = int(longest.argmax())
            device = int(np.flatnonzero(self.seconds[unit] == longest[unit])[0])
            raise CostError(
                f"costs add up to {LONGEST:g} s or more; unit {unit} takes {longest[unit]} s on "
                f"device {device}; inf says that a device cannot run a unit"
            )

    @property
    def n_units(self) -> int:
        """Number of units."""
        return int(self.seconds.shape[0])

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return int(self.seconds.shape[1])


_OF_NODE = ("kind", "flops", "weight_bytes", "inputs", "output_bytes")
_OF_EDGE = ("bytes", "tensor", "is_output")
_OF_CLUSTER = ("host", "streams", "channels", "pools", "processors")
_MAPPINGS = ("pins", "limits", "pools")
_ARRAYS = ("transfer_seconds", "op_working_bytes", "op_joules")  # of `Problem`
_LONGEST_SHOWN = 80  # characters of a wrong value in a message


def plain_graph(graph: Any) -> ComputationGraph:
    """Convert a NetworkX ``DiGraph``, or a graph with its attributes; ours is returned as it is.

    Nodes are ops in the graph's own order, named by their text, with the attributes `kind`, `flops`
    and `weight_bytes`. `inputs` of a node, name -> bytes, are graph inputs that it reads; nodes
    that give the same name read the same one. An edge is a tensor of `bytes`; edges of one node
    that give the same `tensor` are one tensor, which crosses once to each device, and is a graph
    output, too, if an edge has `is_output`. A node with `output_bytes`, or without successors,
    makes a graph output of so many bytes.

    Raises:
        GraphError: it is no directed graph, has a cycle, a value is negative or no number, or the
            name of an attribute is nearly one of these. Others are ignored.
    """
    if isinstance(graph, ComputationGraph):
        return graph
    has_parts = hasattr(graph, "nodes") and hasattr(graph, "edges")
    if isinstance(graph, type) or not (has_parts and _is_directed(graph)):
        raise GraphError(
            f"a graph is a ComputationGraph or a NetworkX DiGraph, got {type(graph).__name__}"
        )
    builder = GraphBuilder()
    index = _add_ops(builder, graph)
    tensors: dict[tuple[int, Any], tuple[int, float]] = {}
    for number, (source, target, attributes) in enumerate(graph.edges(data=True)):
        _require_spelling(f"edge '{source}' -> '{target}'", attributes, _OF_EDGE)
        size = _number(f"edge '{source}' -> '{target}'", attributes, "bytes")
        name = attributes.get("tensor")
        name = ("edge", number) if name is None else name
        try:
            hash(name)
        except TypeError:
            raise GraphError(
                f"edge '{source}' -> '{target}': 'tensor' must be a name, got {_shown(name)}"
            ) from None
        key = (index[source], name)
        if key not in tensors:
            tensors[key] = builder.add_tensor(index[source], size), size
        tensor, known = tensors[key]
        _require_one_size(f"tensor '{name}' of '{source}'", "edge", known, size)
        builder.connect(tensor, index[target])
        is_output = attributes.get("is_output", False)
        if not isinstance(is_output, bool | int | np.bool_):
            raise GraphError(
                f"edge '{source}' -> '{target}': 'is_output' must be True or False, got "
                f"{_shown(is_output)}"
            )
        if is_output:
            builder.mark_output(tensor)
    read = {op for op, _ in tensors}
    for node, attributes in graph.nodes(data=True):
        if index[node] not in read or "output_bytes" in attributes:
            size = _number(f"node '{node}'", attributes, "output_bytes")
            builder.add_tensor(index[node], size, is_output=True)
    return builder.build()


def _add_ops(builder: GraphBuilder, graph: Any) -> dict[Any, int]:
    """Add ops with their weights and graph inputs; node -> op."""
    index: dict[Any, int] = {}
    entering: dict[str, tuple[int, float]] = {}
    for node, attributes in graph.nodes(data=True):
        _require_spelling(f"node '{node}'", attributes, _OF_NODE)
        weight = _number(f"node '{node}'", attributes, "weight_bytes")
        weights = [builder.add_weight(weight)] if weight else []
        kind, flops = attributes.get("kind", "op"), _number(f"node '{node}'", attributes, "flops")
        index[node] = builder.add_op(str(node), str(kind), flops=flops, weights=weights)
        inputs = attributes.get("inputs", {})
        if not isinstance(inputs, Mapping):
            raise GraphError(f"inputs of '{node}' are a mapping, name -> bytes, got {inputs!r}")
        for name in inputs:
            size = _number(f"inputs of '{node}'", inputs, name)
            if name not in entering:
                entering[name] = builder.add_input(size), size
            tensor, known = entering[name]
            _require_one_size(f"input '{name}'", "node", known, size)
            builder.connect(tensor, index[node])
    return index


def _number(what: str, attributes: Mapping[str, Any], name: str) -> float:
    """Value of an attribute, 0 if there is none; the graph's builder refuses negative ones."""
    value = attributes.get(name, 0.0)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number):
        raise GraphError(f"{what}: '{name}' must be a number, got {value!r}")
    return number


def _require_one_size(what: str, where: str, known: float, size: float) -> None:
    if size != known:
        raise GraphError(f"{what} has {known:g} bytes on one {where} and {size:g} on another")


def _require_spelling(what: str, attributes: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse an attribute whose name is nearly a known one."""
    for name in attributes:
        near = [] if name in known else get_close_matches(str(name), known, 1, 0.8)
        if near:
            raise GraphError(f"{what} has an attribute '{name}'; did you mean '{near[0]}'?")


def _is_directed(graph: Any) -> bool:
    return bool(getattr(graph, "is_directed", lambda: False)())


def plain_cluster(
    n_devices: int,
    links: tuple[ArrayLike, ArrayLike],
    memory: ArrayLike | None,
    names: Sequence[str] | None,
    *,
    host: str | None = None,
    streams: ArrayLike = 1,
    channels: Any = None,
    pools: Mapping[str, tuple[float, Sequence[str] | Mapping[str, float]]] | None = None,
) -> Cluster:
    """Make a cluster with a link between every two devices that have bandwidth.

    A host that is no device is a memory of its own: it has the last row and column of each array of
    links, whose shape is then (n_devices + 1, n_devices + 1).

    Args:
        links: seconds of latency and bytes per second of bandwidth, each one number or an array of
            shape (n_devices, n_devices), from row to column; bandwidth 0 is no link.
        memory: bytes of each device, shape (n_devices,), or one number for all; None is no limit.
        names: of the devices; None are ``device:0`` ...
        host: name of the memory where graph inputs start and outputs end; None is the first device.
        streams: ops that each device runs at once, shape (n_devices,), or one number for all.
        channels: name of the channel of each link, in the shape of `links`, or one name for all;
            links of one name wait for each other, and None (or an empty text) is its own channel.
        pools: memory pool -> bytes and names of the devices that share them; or bytes and device ->
            share of its bytes, for devices in several pools.

    Raises:
        FieldError: a shape does not fit, or a name is used twice.
        ClusterError: a value is out of range.
    """
    called = [f"device:{at}" for at in range(n_devices)] if names is None else _texts(names)
    if len(called) != n_devices:
        raise FieldError("devices", f"names {len(called)} devices, but seconds has {n_devices}")
    repeated = [name for name in called if called.count(name) > 1]
    if repeated:
        raise FieldError("devices", f"names '{repeated[0]}' twice")
    home = called[0] if host is None and called else str(host)
    ends = called if home in called else [*called, home]
    square = (len(ends), len(ends))
    if not isinstance(links, Sequence | np.ndarray) or len(links) != 2:
        raise FieldError("links", f"must be a pair, latency and bandwidth, got {_shown(links)}")
    latency, bandwidth = (
        _filled(name, given, square)
        for name, given in zip(("latency", "bandwidth"), links, strict=True)
    )
    shared = _shared_channels(channels, square)
    sizes = _filled("memory", math.inf if memory is None else memory, (n_devices,))
    at_once = _filled("streams", streams, (n_devices,))
    if not (np.isfinite(at_once) & (at_once == np.floor(at_once))).all():
        raise FieldError("streams", f"are whole numbers, got {at_once.tolist()}")
    pool_of = _pool_of({} if pools is None else pools, called)
    devices = [
        Device(
            name,
            kind="accelerator",
            memory_bytes=size,
            streams=int(count),
            pool=pool_of.get(name),
        )
        for name, size, count in zip(called, sizes.tolist(), at_once.tolist(), strict=True)
    ]
    pairs = [(a, b) for a in range(len(ends)) for b in range(len(ends)) if a != b]
    between = tuple(
        Link(ends[a], ends[b], float(latency[a, b]), float(bandwidth[a, b]), shared[a][b])
        for a, b in pairs
        if bandwidth[a, b] != 0
    )
    shared_bytes = {
        name: _filled(f"pools: bytes of '{name}'", size, ()).item()
        for name, (size, _) in (pools or {}).items()
    }
    return Cluster(tuple(devices), between, host=home, pools=shared_bytes)


def _texts(names: Any) -> list[str]:
    """The names of devices as a list.

    Raises:
        FieldError: they are no list of texts.
    """
    is_list = isinstance(names, Sequence | np.ndarray) and not isinstance(names, str)
    if not is_list or not all(isinstance(name, str) for name in names):
        raise FieldError("devices", f"must be a list of names, got {_shown(names)}")
    return list(names)


def with_processors(cluster: Cluster, names: Mapping[str, Sequence[str]] | None) -> Cluster:
    """Name the processors of some devices of a cluster.

    Args:
        names: device -> processors that compute when it does; others have one of their own.

    Raises:
        FieldError: there is no such device, or the names are no lists of texts.
        ClusterError: a name is misspelt, most likely.
    """
    given: Any = {} if names is None else names
    if not isinstance(given, Mapping):
        raise FieldError("processors", f"must be lists of names by device, got {given!r}")
    for name, listed in given.items():
        if name not in cluster.device_index:
            raise FieldError("processors", f"names '{name}', which is no device")
        is_list = isinstance(listed, Sequence) and not isinstance(listed, str)
        if not is_list or not all(isinstance(processor, str) for processor in listed):
            raise FieldError("processors", f"of '{name}' must be a list of names, got {listed!r}")
    devices = tuple(
        replace(device, processors=tuple(given.get(device.name, ()))) for device in cluster.devices
    )
    check_spelling(devices)
    return replace(cluster, devices=devices)


def _pool_of(
    pools: Mapping[str, tuple[float, Sequence[str] | Mapping[str, float]]], devices: Sequence[str]
) -> dict[str, Pools]:
    """The pool of each device that is in one, or pool -> share."""
    pool_of: dict[str, dict[str, float]] = {}
    for pool, given in pools.items():
        if not isinstance(given, Sequence) or len(given) != 2:
            raise FieldError("pools", f"'{pool}' must be bytes and names, got {_shown(given)}")
        if isinstance(given[1], str) or not isinstance(given[1], Collection):
            raise FieldError(
                "pools",
                f"'{pool}' must have a list of devices, or shares by device, got "
                f"{_shown(given[1])}",
            )
        shares = given[1].items() if isinstance(given[1], Mapping) else [(x, 1.0) for x in given[1]]
        for device, share in shares:
            if device not in devices:
                raise FieldError("pools", f"pool '{pool}' names {device!r}, which is no device")
            number = _filled(f"pools: share of '{device}'", share, ()).item()
            pool_of.setdefault(device, {})[pool] = number
    for device, own in pool_of.items():
        if len(own) > 1 and sum(own.values()) == len(own):
            raise FieldError(
                "pools",
                f"'{device}' is in pools {' and '.join(map(repr, own))}; give its share of each, "
                "which add up to 1",
            )
    return {
        device: next(iter(own)) if list(own.values()) == [1.0] else own
        for device, own in pool_of.items()
    }


def plain_options(
    options: Mapping[str, Any], fields: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the options of `Problem.from_costs` into those of the cluster and of the problem.

    Arrays are converted. Objective throughput and execution model max-load imply each other.

    Args:
        options: values by name.
        fields: names of all fields of `Problem`.

    Raises:
        FieldError: a name is of neither, or follows from the arrays, or a value is of another kind.
    """
    of_arrays = ("graph", "cluster", "costs", "units")
    of_problem = [name for name in fields if name not in of_arrays]
    for name in options:
        if name not in (*_OF_CLUSTER, *of_problem):
            known = ", ".join((*_OF_CLUSTER, *of_problem))
            raise FieldError(name, f"is no field of plain costs; known: {known}")
        is_left_out = options[name] is None and name in _OF_CLUSTER
        if name in _MAPPINGS and not (isinstance(options[name], Mapping) or is_left_out):
            raise FieldError(name, f"must map names to values, got {_shown(options[name])}")
    cluster = {name: value for name, value in options.items() if name in _OF_CLUSTER}
    problem = {name: value for name, value in options.items() if name in of_problem}
    for name in _ARRAYS:
        if problem.get(name) is not None:
            problem[name] = frozen_floats(plain_numbers(name, problem[name]))
    if "resident_inputs" in problem:
        problem["resident_inputs"] = _tensors(problem["resident_inputs"])
    if "limits" in problem:
        problem["limits"] = {
            quantity: _filled(f"limits of {quantity}", amount, ()).item()
            for quantity, amount in problem["limits"].items()
        }
    if problem.get("objective") == "throughput":
        problem.setdefault("execution_model", MaxLoad())
    if isinstance(problem.get("execution_model"), MaxLoad):
        problem.setdefault("objective", "throughput")
    return cluster, problem


def _tensors(given: Any) -> tuple[int, ...]:
    """Numbers of tensors, of one or several; None is none."""
    numbers = np.atleast_1d(plain_numbers("resident_inputs", () if given is None else given))
    if numbers.ndim != 1 or not np.isfinite(numbers).all() or (numbers % 1 != 0).any():
        raise FieldError("resident_inputs", f"must be numbers of tensors, got {_shown(given)}")
    return tuple(int(number) for number in numbers)


def _shared_channels(given: Any, shape: tuple[int, ...]) -> list[list[str | None]]:
    """Name of the channel of each link, or None; rows are sources."""
    names = np.asarray(given, dtype=object)
    if names.shape not in ((), shape):
        raise FieldError("channels", f"has shape {names.shape}, expected {shape} or one name")
    rows = np.broadcast_to(names, shape).tolist()
    return [[_channel_name(name) for name in row] for row in rows]


def _channel_name(name: Any) -> str | None:
    """A name as text; None, empty text and False are a channel of its own, 0 is a name."""
    is_own = name is None or name == "" or (isinstance(name, bool | np.bool_) and not name)
    return None if is_own else str(name)


def plain_numbers(name: str, given: ArrayLike) -> FloatArray:
    """Convert an argument to an array of numbers.

    Raises:
        FieldError: it has a text, a date, a mapping, a complex number or rows of unequal length.
    """
    try:
        plain = np.asarray(given)
        is_text = plain.dtype.kind == "O" and any(
            isinstance(part, str | bytes | None) for part in plain.ravel().tolist()
        )
        if plain.dtype.kind not in "cUSmM" and not is_text:
            return np.asarray(plain, dtype=np.float64)
        raise TypeError
    except (TypeError, ValueError, OverflowError):
        raise FieldError(
            name, f"must be numbers, in rows of one length, got {_shown(given)}"
        ) from None


def _shown(given: Any) -> str:
    """A wrong value on one line of a message."""
    shown = " ".join(repr(given).split())
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]} ..."


def _filled(name: str, given: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    values = plain_numbers(name, given)
    if values.shape not in ((), shape):
        raise FieldError(name, f"has shape {values.shape}, expected {shape} or one number")
    return frozen_floats(np.broadcast_to(values, shape))
