"""Costs without measurement: the roofline model over a catalogue of real devices.

Williams, Waterman, Patterson: "Roofline: an insightful visual performance model for multicore
architectures", CACM 2009. An op takes as long as its arithmetic at the peak rate or its bytes at
the peak bandwidth, whichever is longer. Both rates are scaled by an efficiency, and every kernel
adds the time to start it. Efficiencies are fitted to measured ops, by class and size
(`catalogue.Fit`), if op tables of such devices are public. If not, they are assumed, one for each
kind of work, and predictions are too low for small ops, which do not fill a device.

Rates and bytes follow the precision of each op's data. Without a wish of the user each op computes
in the precision of its own data. A device that lacks it takes another: data that this is too narrow
for is stored narrower, all other data as it is. The device's option ``precision`` is a wish: all
floating-point data is stored in it then, and weights of integers stay what they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import FloatArray, IntArray, frozen_floats
from placewright.core.cluster import Cluster, Device
from placewright.core.costs import CostTable
from placewright.core.data_sheet import PRECISION, DataSheet
from placewright.core.execution_models import ExecutionModel, default_model
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.problem import Objective, Problem
from placewright.core.source import ModelSource
from placewright.profiling.catalogue import CatalogueDevice, Fit, catalogue_cluster, entry_of

_DTYPES = {"tf32": "f32"}  # of data that a precision computes with, if it has another name
WIDTHS = {"f64": 8.0, "f32": 4.0, "tf32": 4.0, "bf16": 2.0, "f16": 2.0, "i8": 1.0}
_OWN = ("i8", "f16", "bf16", "f32")  # of data, in ascending order of what an op needs
_RANK = {"i4": 0, "u4": 0, "i8": 0, "u8": 0, "f16": 1, "bf16": 2, "f32": 3, "f64": 3, "": 3}
# Rates of a mid-range device of each kind, of which only the ratio counts
_TYPICAL = {
    "cpu": DataSheet({"f32": 1e12}, 5e10),
    "gpu": DataSheet({"f32": 2e13}, 5e11),
    "npu": DataSheet({"f32": 5e12}, 1e11),
    "accelerator": DataSheet({"f32": 2e13}, 5e11),
}
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
    wish = device.options.get(PRECISION)
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
    dtypes, of_weight = _weights_as_read(graph, own)
    scales = [
        scale(dtypes[weight] or own[op])
        for weight, op in zip(weights.tolist(), ops.tolist(), strict=True)
    ]
    sizes = of_weight[weights] * np.array(scales, dtype=np.float64)
    of_weights = np.bincount(ops, weights=sizes, minlength=graph.n_ops)
    return graph.tensor_bytes * of_tensor, np.asarray(of_weights, dtype=np.float64)


def _weights_as_read(graph: ComputationGraph, own: tuple[str, ...]) -> tuple[list[str], FloatArray]:
    """Type and bytes of each weight; one of f32 that ops of half precision read has theirs.

    OpenVINO's processors convert such weights to f32, and its graph counts them so. An op that
    reads only weights, such as a conversion of one to f16, reads them as they are.
    """
    dtypes = list(graph.weight_dtypes or ("",) * len(graph.weight_bytes))
    reads_tensors = np.diff(graph.op_inputs.indptr) > 0
    readers: dict[int, set[str]] = {}
    for weight, op in zip(graph.op_weights.indices, graph.op_weights.row_of_each(), strict=True):
        read_as = own[op] if reads_tensors[op] else dtypes[weight]
        readers.setdefault(int(weight), set()).add(read_as)
    sizes = np.array(graph.weight_bytes)
    for weight, (precision, *others) in readers.items():
        if dtypes[weight] == "f32" and not others and precision in ("f16", "bf16"):
            dtypes[weight] = precision
            sizes[weight] *= WIDTHS[precision] / WIDTHS["f32"]
    return dtypes, sizes


def _scale(device: Device, entry: CatalogueDevice) -> Callable[[str], float]:
    """Factor by which the bytes of data of a type change on a device."""
    wish = device.options.get(PRECISION)
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
        wanted = _wanted(dtype)
        computed = entry.precision(wanted)
        return WIDTHS[computed] / WIDTHS[dtype] if WIDTHS[computed] < WIDTHS[wanted] else 1.0

    return scale


def _wanted(dtype: str) -> str:
    """The precision of data of a type, without a wish."""
    return "f32" if dtype == "f64" else dtype


def as_stored(graph: ComputationGraph, cluster: Cluster) -> ComputationGraph:
    """The graph with the bytes of its data as the devices store it, for memory and copies.

    Where devices store data of one type in several precisions, the widest counts.

    Args:
        cluster: of devices with data sheets, which may have the option ``precision``.
    """
    entries = [(device, entry_of(device)) for device in cluster.devices]
    scales = [_scale(device, entry) for device, entry in entries]
    own = own_precisions(graph)

    def widest(dtype: str) -> tuple[float, str]:
        at = int(np.argmax([scale(dtype) for scale in scales]))
        factor, (device, entry) = scales[at](dtype), entries[at]
        name = entry.precision(device.options.get(PRECISION) or _wanted(dtype))
        return factor, dtype if factor == 1.0 else _DTYPES.get(name, name)

    tensors = [widest(dtype or "f32") for dtype in graph.tensor_dtypes]
    of_weight, weight_bytes = _weights_as_read(graph, own)
    is_as_read = np.array_equal(weight_bytes, graph.weight_bytes)
    for weight, op in zip(graph.op_weights.indices, graph.op_weights.row_of_each(), strict=True):
        of_weight[weight] = of_weight[weight] or own[op]
    weights = [widest(dtype) for dtype in of_weight]
    if is_as_read and all(factor == 1.0 for factor, _ in (*tensors, *weights)):
        return graph
    return replace(
        graph,
        tensor_bytes=frozen_floats(graph.tensor_bytes * [factor for factor, _ in tensors]),
        tensor_dtypes=tuple(dtype for _, dtype in tensors),
        weight_bytes=frozen_floats(weight_bytes * [factor for factor, _ in weights]),
        weight_dtypes=tuple(dtype for _, dtype in weights),
    )


CONVOLUTION, MATMUL, VECTOR = "convolution", "matmul", "vector"
NARROW = "narrow"  # products whose smallest extent does not fill the tiles of a kernel
SOFTMAX, NORMALISATION, LOOKUP, COPY = "softmax", "normalisation", "lookup", "copy"
TRAFFIC_CLASSES = (VECTOR, SOFTMAX, NORMALISATION, LOOKUP, COPY)
FITTED_CLASSES = (MATMUL, NARROW, *TRAFFIC_CLASSES)
_NARROW_EXTENT = 128  # largest smallest extent of a narrow product

# Kinds in lower case and without punctuation.
_CONVOLUTION = re.compile(
    r"(group|fused|qlinear|deform(able)?)?conv(olution)?(transpose|integer)?[123]?d?"
    r"(backprop(data|filter)|backward)?"
)
_MATMUL = re.compile(
    r"b?mm|addb?mm|baddbmm|matmul|gemm|linear|einsum|(scaleddotproduct.*)"
    r"|(dynamicquantize)?(lstm|gru|rnn)(cell|sequence)?|(fused|qlinear|dynamicquantize)matmul"
    r"|(q|q?linear|fused)gemm|innerproduct|matmulinteger(tofloat)?|matmulnbits"
    r"|(q|multihead|groupquery)?attention"
)
# The operations of a branch or of a loop's body are those of its products, if it has any.
_BODY = re.compile(r"if|cond|(while)?loop|scan|mapimpl|tensoriterator")
_FREE = frozenset(
    {
        *(
            "constant",
            "parameter",
            "result",
            "shapeof",
            "shape",
            "size",
            "reshape",
            "squeeze",
            "unsqueeze",
            "view",
        ),
        *("unsafeview", "alias", "detach", "expand", "identity", "flatten", "assign", "readvalue"),
    }
)
_LOOKUP = frozenset(
    {
        *("gather", "gathernd", "gatherelements", "gatherblockquantized"),
        *("embedding", "embeddingbag", "indexselect", "index"),
    }
)
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
    return MATMUL if _MATMUL.fullmatch(kind) or has_body(kind) else VECTOR


def has_body(kind: str) -> bool:
    """True if ops of a kind run branches or bodies, which are assumed to consist of products."""
    return _BODY.fullmatch(kind) is not None


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


def roofline_problem(
    graph: ComputationGraph,
    cluster: Cluster | str,
    objective: Objective = "latency",
    *,
    execution_model: ExecutionModel | None = None,
    source: ModelSource | None = None,
) -> Problem:
    """Make a problem whose costs come from the roofline model.

    Its graph has the bytes of `as_stored`.

    Args:
        cluster: of catalogue devices (`profiling.catalogue.catalogue_cluster`), or its name.
        execution_model: None is `max-load` for throughput and `event` for the others.

    Raises:
        ClusterError: a device is not of the catalogue.
        UnknownNameError: the catalogue has no cluster of that name.
    """
    devices = catalogue_cluster(cluster) if isinstance(cluster, str) else cluster
    chosen = execution_model or default_model(objective)
    return Problem(
        as_stored(graph, devices),
        devices,
        roofline_costs(graph, devices),
        Grouping.identity(graph.n_ops),
        objective=objective,
        execution_model=chosen,
        source=source,
    )


def roofline_costs(
    graph: ComputationGraph, cluster: Cluster, *, fitted: bool | Fit = True
) -> CostTable:
    """Seconds of each op on each device of a cluster of catalogue devices.

    Args:
        cluster: of catalogue devices, or of devices with data sheets.
        fitted: take the efficiencies that the catalogue has from measured ops, if there are any;
            False takes those that it assumes, a `Fit` is used in place of the catalogue's.

    Raises:
        ClusterError: a device is not of the catalogue.
    """
    sheets = _Ops(graph)
    columns = [_seconds_on(sheets, device, fitted) for device in cluster.devices]
    return CostTable(frozen_floats(np.stack(columns, axis=1)), source="roofline")


def typical_seconds(graph: ComputationGraph, device: Device) -> FloatArray:
    """Seconds of each op on a common device of a kind, shape (n_ops,), for shares without timers.

    Only ratios between ops count; all are 1 if every op only renames or describes data.

    Args:
        device: of kind ``cpu``, ``gpu`` or ``npu``; another kind counts as ``accelerator``.
    """
    kind = device.kind if device.kind in _TYPICAL else "accelerator"
    common = replace(device, kind=kind, data_sheet=_TYPICAL[kind], fingerprint="", options={})
    seconds = _seconds_on(_Ops(graph), common, fitted=False)
    return seconds if seconds.any() else np.ones(graph.n_ops)


def sheet_lines(
    graph: ComputationGraph, cluster: Cluster, wanted: str | None = None
) -> tuple[str, ...]:
    """Describe the precision in which each device computes products, and the source of its costs.

    There is one line for each device, and none for a graph without products. One whose products
    all lie in loops and branches has lines of the devices that lack the wanted precision.

    Args:
        graph: with flops; the shares are of the flops of its products and convolutions.
        cluster: of devices with data sheets.
        wanted: the precision that the user asked for.
    """
    own = own_precisions(graph)
    kinds = plain_kinds(graph)
    has_bodies = any(map(has_body, kinds))
    is_product = np.array([work_of(kind) != VECTOR and not has_body(kind) for kind in kinds])
    flops = np.where(is_product, graph.op_flops, 0.0)
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
            lines.append(f"{device.name}: products run in {told}{why}; {_trust(entry, shares)}")
        elif lacks and has_bodies:
            lines.append(f"{device.name}: rates of loops and branches are assumed{why}")
    return tuple(lines)


def _trust(entry: CatalogueDevice, shares: Mapping[str, float]) -> str:
    """The expected error of costs whose matrix products run in some precisions, as text."""
    fit = entry.fit
    if fit is None or any(share > 0 and used != fit.precision for used, share in shares.items()):
        return "how fast they run is assumed"
    low, high = fit.model_interval
    return f"nine of ten measured models took {low:.2f} to {high:.2f} times such costs"


@dataclass(frozen=True)
class Interval:
    """Range that holds the measured seconds of nine of ten ops."""

    # low, high: seconds, shape (n_ops, n_devices); 0 and inf if nothing was fitted for an op: for a
    # convolution, a product in half precision, and an op that its launch decides
    low: FloatArray
    high: FloatArray


def roofline_interval(graph: ComputationGraph, cluster: Cluster) -> Interval:
    """The interval of each entry of `roofline_costs`.

    Raises:
        ClusterError: a device is not of the catalogue.
    """
    ops, seconds = _Ops(graph), roofline_costs(graph, cluster).seconds
    low, high = np.zeros(seconds.shape), np.full(seconds.shape, np.inf)
    for column, device in enumerate(cluster.devices):
        fit = entry_of(device).fit
        if fit is not None:
            peak = at_peak(graph, device, fit.precision)
            for op, name in enumerate(peak.classes):
                if name and peak.seconds[op] >= fit.least_seconds:
                    least, greatest = fit.interval[name]
                    low[op, column] = least * seconds[op, column]
                    high[op, column] = greatest * seconds[op, column]
    low[ops.free], high[ops.free] = 0.0, 0.0
    return Interval(frozen_floats(low), frozen_floats(high))


@dataclass(frozen=True)
class AtPeak:
    """Seconds of ops if a device reached its peaks."""

    seconds: FloatArray  # the larger term of each op's roofline, shape (n_ops,)
    # class of each op whose efficiency decides its seconds, one of `FITTED_CLASSES`; ""
    # for convolutions, for products in another precision and for products that their bytes decide
    classes: tuple[str, ...]


def at_peak(graph: ComputationGraph, device: Device, precision: str = "f32") -> AtPeak:
    """Seconds of each op at the peaks of a device, and its class for fits of products.

    Args:
        precision: of the products that are fitted.

    Raises:
        ClusterError: the device is not of the catalogue.
    """
    ops = _Ops(graph)
    terms = _terms(ops, device)
    seconds = np.where(ops.free, 0.0, np.maximum(terms.arithmetic, terms.traffic))
    return AtPeak(frozen_floats(seconds), tuple(_classes(ops, terms, precision)))


class _Ops:
    """Properties of a graph's ops that no device changes, computed once."""

    def __init__(self, graph: ComputationGraph) -> None:
        kinds = plain_kinds(graph)
        self.graph, self.own = graph, own_precisions(graph)
        self.work = [work_of(kind) for kind in kinds]
        self.traffic = [traffic_of(kind) for kind in kinds]
        self.lookup = np.array([reads_table(kind) for kind in kinds])
        self.free = np.array([is_free(kind) for kind in kinds])
        self.has_body = [has_body(kind) for kind in kinds]
        self.narrow = narrow_products(graph)


@dataclass(frozen=True)
class _Terms:
    """Both terms of the roofline of each op on a device, at the peaks; shape (n_ops,) each."""

    arithmetic: FloatArray
    traffic: FloatArray
    precisions: tuple[str, ...]


def _terms(ops: _Ops, device: Device) -> _Terms:
    entry = entry_of(device)
    precisions = precisions_on(ops.own, device, entry)
    peaks = np.array(
        [
            entry.vector_peak if work == VECTOR else entry.peak[precision]
            for work, precision in zip(ops.work, precisions, strict=True)
        ]
    )
    moved = _moved(ops, *bytes_on(ops.graph, ops.own, device, entry))
    return _Terms(ops.graph.op_flops / peaks, moved / entry.bandwidth, precisions)


def _moved(ops: _Ops, tensor_bytes: FloatArray, weights: FloatArray) -> FloatArray:
    """Bytes that each op reads and writes, shape (n_ops,).

    Inputs, weights and outputs count once each; a look-up reads no more of its table than it
    returns.
    """
    graph = ops.graph

    def per_op(of: IntArray, tensors: IntArray) -> FloatArray:
        sums = np.bincount(of, weights=tensor_bytes[tensors], minlength=graph.n_ops)
        return np.asarray(sums, dtype=np.float64)

    reading = per_op(graph.op_inputs.row_of_each(), graph.op_inputs.indices)
    writing = per_op(graph.op_outputs.row_of_each(), graph.op_outputs.indices)
    return reading + writing + np.where(ops.lookup, np.minimum(weights, writing), weights)


def _seconds_on(ops: _Ops, device: Device, fitted: bool | Fit) -> FloatArray:
    """Column of the cost table for a device, shape (n_ops,)."""
    entry, terms = entry_of(device), _terms(ops, device)
    fit = fitted if isinstance(fitted, Fit) else entry.fit
    if fit is None or fitted is False:
        arithmetic, traffic = _assumed(ops, terms, entry)
        launch = entry.launch_seconds
    else:
        arithmetic, traffic = _fitted(ops, terms, entry, fit)
        launch = fit.launch_seconds
    return np.where(ops.free, 0.0, np.maximum(arithmetic, traffic) + launch)


def _assumed(ops: _Ops, terms: _Terms, entry: CatalogueDevice) -> tuple[FloatArray, FloatArray]:
    """Both terms with the efficiencies that the catalogue assumes for a kind of device."""
    shares = np.array([entry.efficiency[work] for work in ops.work])
    return terms.arithmetic / shares, terms.traffic / entry.efficiency["bandwidth"]


def _fitted(
    ops: _Ops, terms: _Terms, entry: CatalogueDevice, fit: Fit
) -> tuple[FloatArray, FloatArray]:
    """Both terms with efficiencies of the ops' classes and sizes, where these were measured."""
    arithmetic, _ = _assumed(ops, terms, entry)
    of_products = _product_classes(ops, terms, fit.precision)
    for name in (MATMUL, NARROW):
        at = np.flatnonzero(np.array(of_products) == name)
        arithmetic[at] = terms.arithmetic[at] / fit.share(name, terms.arithmetic[at])
    traffic = np.zeros(len(arithmetic))
    classes = np.array(ops.traffic)
    for name in TRAFFIC_CLASSES:
        at = np.flatnonzero(classes == name)
        traffic[at] = terms.traffic[at] / fit.share(name, terms.traffic[at])
    return arithmetic, traffic


def _product_classes(ops: _Ops, terms: _Terms, precision: str) -> list[str]:
    """Class of each product in a precision; "" for other ops, and for bodies of unknown ops."""
    is_product = [
        work == MATMUL and not body and used == precision
        for work, body, used in zip(ops.work, ops.has_body, terms.precisions, strict=True)
    ]
    return [
        (NARROW if narrow else MATMUL) if product else ""
        for product, narrow in zip(is_product, ops.narrow, strict=True)
    ]


def _classes(ops: _Ops, terms: _Terms, precision: str) -> list[str]:
    """The class whose efficiency decides the seconds of each op; "" if none was fitted."""
    products = _product_classes(ops, terms, precision)
    by_arithmetic = (terms.arithmetic > terms.traffic).tolist()
    return [
        product if bound else traffic if work == VECTOR else ""
        for product, traffic, work, bound in zip(
            products, ops.traffic, ops.work, by_arithmetic, strict=True
        )
    ]
