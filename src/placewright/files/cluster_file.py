"""Cluster files: devices, links and the host as YAML that users write by hand.

Foreign YAML: a few kilobytes can stand for gigabytes, so the size is counted first.

An alias stands for the whole node of its anchor: nine lines of nine aliases stand for 9^9 nodes.
The parser's events give the number of nodes before any node is created.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, JsonValue, WithJsonSchema

from placewright.core.cluster import Cluster, Device, Link
from placewright.core.data_sheet import DataSheet, TokenRates
from placewright.core.pools import Pools
from placewright.core.processors import check_spelling
from placewright.core.quantities import (
    parse_bandwidth,
    parse_bytes,
    parse_hourly_price,
    parse_operations,
    parse_seconds,
    parse_watts,
)
from placewright.errors import ClusterError, FileFormatError, UnknownNameError
from placewright.files.schema import Float, Strict, validated
from placewright.io.json_text import read_text
from placewright.io.opened import shown_name
from placewright.io.written import write_text

CLUSTER_FORMAT = "placewright.cluster/1"
MAX_FILE_BYTES = 4 << 20
_KINDS = ("cpu", "gpu", "npu", "accelerator")
_MOST_DEVICES = 4096  # links have matrices of all pairs

# "inf", which JSON lacks, and quantities such as "2GiB" are text.
_QUANTITY = WithJsonSchema({"type": ["number", "string"]})
Bytes = Annotated[float, BeforeValidator(parse_bytes), _QUANTITY]
Seconds = Annotated[float, BeforeValidator(parse_seconds), _QUANTITY]
Bandwidth = Annotated[float, BeforeValidator(parse_bandwidth), _QUANTITY]
Operations = Annotated[float, BeforeValidator(parse_operations), _QUANTITY]
Watts = Annotated[float, BeforeValidator(parse_watts), _QUANTITY]
HourlyPrice = Annotated[float, BeforeValidator(parse_hourly_price), _QUANTITY]
_NO_LIMIT: dict[str, JsonValue] = {"default": "inf"}


class TokensEntry(Strict):
    """Measured rates for language models; see `core.data_sheet.TokenRates`."""

    rows: list[Float]
    products: dict[str, list[Float]]
    scores: list[Float]
    launch: Seconds
    per_pass: Seconds
    source: str = ""


class PowerEntry(Strict):
    """Power while all streams compute, and at all other times; a table of energy needs no busy."""

    example = "{busy: 65 W, idle: 10 W}"

    busy: Watts | None = None
    idle: Watts = 0.0


class DeviceEntry(Strict):
    """One device; see `core.cluster.Device` for the meaning of each field."""

    example = '{name: "cpu:0", memory: 2GiB}'

    name: str
    kind: str = "cpu"
    memory: Bytes = Field(math.inf, json_schema_extra=_NO_LIMIT)
    streams: int = 1
    dispatch: Seconds = 0.0
    cut: Seconds = 0.0
    cut_per_byte: Seconds = 0.0
    layout: Seconds = 0.0
    layout_per_byte: Seconds = 0.0
    memory_domain: str | None = None
    overlaps_transfers: bool = False
    pays_transfers: bool = True
    replicas: int = 1
    replica_bandwidth: Bandwidth | None = None
    members: list[DeviceEntry] = Field(default_factory=list)
    options: dict[str, str] = Field(default_factory=dict)
    fingerprint: str = ""
    speed_scatter: float | None = None
    peak: dict[str, Operations] | None = None
    bandwidth: Bandwidth | None = None
    tokens: TokensEntry | None = None
    pool: str | dict[str, Float] | None = None
    segments: int | None = None
    segment_ops: int | None = None
    power: PowerEntry | None = None
    price: HourlyPrice | None = None
    processors: list[str] = Field(default_factory=list)
    split_share: float = 0.0


class LinkEntry(Strict):
    """One link; ``both: true`` means two directions, each with its own channel."""

    example = '{from: host, to: "gpu:0", latency: 10us, bandwidth: 31GB/s}'

    source: str = Field(alias="from")
    destination: str = Field(alias="to")
    latency: Seconds = 0.0
    bandwidth: Bandwidth = Field(math.inf, json_schema_extra=_NO_LIMIT)
    channel: str | None = None
    queues: bool = True
    both: bool = False
    occupies: Literal["nobody", "receiver", "sender", "both"] | None = None


class ClusterDocument(Strict):
    """The whole file; without `links`, the caller may measure them."""

    format: Literal["placewright.cluster/1"]
    host: str = "host"
    devices: list[DeviceEntry]
    links: list[LinkEntry] | None = None
    contention: dict[str, list[Float]] = Field(default_factory=dict)
    prediction_error: float | None = None
    pools: dict[str, Bytes] = Field(default_factory=dict)
    shares_weights: bool = False
    call_seconds: Seconds = 0.0


def read_cluster(path: Path | str) -> Cluster:
    """Read a cluster file.

    >>> cluster = pw.read_cluster("cluster.yaml")
    >>> cluster.device_names, cluster.memory_bytes
    (('cpu', 'gpu'), array([           inf, 8.58993459e+09]))

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is not YAML, or a field is wrong.
        ClusterError: devices and links do not form a valid cluster.
        UnknownNameError: there is no such kind of devices.
    """
    return read_cluster_and_links(path)[0]


def read_cluster_and_links(path: Path | str) -> tuple[Cluster, bool]:
    """The cluster of a file, and whether the file has an entry for links; errors as `read_cluster`.

    Without the entry the caller chooses links, and an empty list of links stays empty.
    """
    data = yaml_value(read_text(path, limit=MAX_FILE_BYTES), path)
    document = validated(ClusterDocument, data, path, CLUSTER_FORMAT)
    cluster = cluster_of(document)
    check_spelling(cluster.devices)
    _check_kinds(cluster.devices)
    return cluster, document.links is not None


def _check_kinds(devices: Iterable[Device]) -> None:
    """Refuse kinds that are wrong in what people write; a program may have others."""
    for device in devices:
        if device.kind not in _KINDS:
            raise UnknownNameError(f"kind of device '{device.name}'", device.kind, _KINDS)
        _check_kinds(device.members)


def write_cluster(path: Path | str, cluster: Cluster) -> None:
    """Write a cluster file that `read_cluster` reads back.

    Raises:
        InputError: the file cannot be written; an earlier one stays intact.
        UnknownNameError: there is no such kind of devices.
    """
    _check_kinds(cluster.devices)
    data = cluster_data(cluster)
    write_text(path, yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def cluster_of(document: ClusterDocument) -> Cluster:
    """The cluster that a document describes.

    Raises:
        ClusterError: devices and links do not form a valid cluster, or are too many.
    """
    if len(document.devices) > _MOST_DEVICES:
        raise ClusterError(
            f"a cluster has at most {_MOST_DEVICES} devices, got {len(document.devices)}; describe "
            "equal ones as one device with replicas"
        )
    links: list[Link] = []
    for entry in document.links or []:
        ends = [(entry.source, entry.destination)]
        if entry.both:
            ends.append((entry.destination, entry.source))
        links += [
            Link(a, b, entry.latency, entry.bandwidth, entry.channel, entry.queues, entry.occupies)
            for a, b in ends
        ]
    devices = tuple(_device(entry) for entry in document.devices)
    contention = {domain: tuple(factors) for domain, factors in document.contention.items()}
    return Cluster(
        devices,
        tuple(links),
        document.host,
        contention,
        document.prediction_error,
        document.pools,
        document.shares_weights,
        document.call_seconds,
    )


def _device(entry: DeviceEntry) -> Device:
    return Device(
        name=entry.name,
        kind=entry.kind,
        memory_bytes=entry.memory,
        streams=entry.streams,
        dispatch_seconds=entry.dispatch,
        cut_seconds=entry.cut,
        cut_seconds_per_byte=entry.cut_per_byte,
        layout_seconds=entry.layout,
        layout_seconds_per_byte=entry.layout_per_byte,
        memory_domain=entry.memory_domain,
        overlaps_transfers=entry.overlaps_transfers,
        pays_transfers=entry.pays_transfers,
        replicas=entry.replicas,
        replica_bandwidth=entry.replica_bandwidth,
        members=tuple(_device(member) for member in entry.members),
        options=entry.options,
        fingerprint=entry.fingerprint,
        speed_scatter=entry.speed_scatter,
        data_sheet=_data_sheet(entry),
        pool=entry.pool,
        max_segments=entry.segments,
        max_segment_ops=entry.segment_ops,
        busy_watts=None if entry.power is None else entry.power.busy,
        idle_watts=None if entry.power is None else entry.power.idle,
        price_per_hour=entry.price,
        processors=tuple(entry.processors),
        split_share=entry.split_share,
    )


def _data_sheet(entry: DeviceEntry) -> DataSheet | None:
    """The data sheet of a device's own peaks; None if it has none."""
    if entry.peak is None and entry.bandwidth is None and entry.tokens is None:
        return None
    if entry.peak is None or entry.bandwidth is None:
        missing = "peak" if entry.peak is None else "bandwidth"
        raise ClusterError(
            f"device '{entry.name}' has no {missing}; a data sheet needs both, for example "
            "peak: {f16: 101 TFLOPS, f32: 12.7 TFLOPS} and bandwidth: 360GB/s"
        )
    try:
        return DataSheet(entry.peak, entry.bandwidth, _token_rates(entry.tokens))
    except ClusterError as error:
        raise ClusterError(f"device '{entry.name}': {error}") from None


def _token_rates(entry: TokensEntry | None) -> TokenRates | None:
    if entry is None:
        return None
    products = {name: tuple(row) for name, row in entry.products.items()}
    rows, scores = tuple(entry.rows), tuple(entry.scores)
    return TokenRates(rows, products, scores, entry.launch, entry.per_pass, entry.source)


def cluster_data(cluster: Cluster) -> dict[str, Any]:
    """The cluster as data of its file; inf is the text ``"inf"``."""
    devices = [_device_data(device) for device in cluster.devices]
    links = [
        {
            "from": link.source,
            "to": link.destination,
            "latency": link.latency_seconds,
            "bandwidth": _number(link.bandwidth),
            "channel": link.channel,
            **({} if link.queues else {"queues": False}),
            **_known({"occupies": link.occupies}),
        }
        for link in cluster.links
    ]
    contention = {domain: list(factors) for domain, factors in cluster.contention.items()}
    return {
        "format": CLUSTER_FORMAT,
        "host": cluster.host,
        "devices": devices,
        "links": links,
        "contention": contention,
        **_known({"prediction_error": cluster.prediction_error}),
        **_pools_data(cluster),
        **({"shares_weights": True} if cluster.shares_weights else {}),
        **({"call_seconds": cluster.call_seconds} if cluster.call_seconds else {}),
    }


def _device_data(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "kind": device.kind,
        "memory": _number(device.memory_bytes),
        "streams": device.streams,
        "dispatch": device.dispatch_seconds,
        "cut": device.cut_seconds,
        "cut_per_byte": device.cut_seconds_per_byte,
        "layout": device.layout_seconds,
        "layout_per_byte": device.layout_seconds_per_byte,
        "memory_domain": device.memory_domain,
        "overlaps_transfers": device.overlaps_transfers,
        "pays_transfers": device.pays_transfers,
        **_replica_data(device),
        "options": dict(device.options),
        "fingerprint": device.fingerprint,
        **_known({"speed_scatter": device.speed_scatter}),
        **_sheet_data(device.data_sheet),
        **({} if device.pool is None else {"pool": _pool_data(device.pool)}),
        **_known({"segments": device.max_segments, "segment_ops": device.max_segment_ops}),
        **_power_data(device),
        **_known({"price": device.price_per_hour}),
        **({"processors": list(device.processors)} if device.processors else {}),
        **({"split_share": device.split_share} if device.split_share else {}),
    }


def _pool_data(pool: Pools) -> Any:
    return dict(pool) if isinstance(pool, Mapping) else pool


def _power_data(device: Device) -> dict[str, Any]:
    if device.busy_watts is None and device.idle_watts is None:
        return {}
    return {"power": {**_known({"busy": device.busy_watts}), "idle": device.idle_watts or 0.0}}


def _sheet_data(sheet: DataSheet | None) -> dict[str, Any]:
    if sheet is None:
        return {}
    data: dict[str, Any] = {"peak": dict(sheet.peak), "bandwidth": sheet.bandwidth}
    if (rates := sheet.tokens) is not None:
        products = {name: list(row) for name, row in rates.products.items()}
        lists = {"rows": list(rates.rows), "products": products, "scores": list(rates.scores)}
        data["tokens"] = {**vars(rates), **lists}
    return data


def _pools_data(cluster: Cluster) -> dict[str, Any]:
    """The pools; nothing without any, so that files of earlier versions keep their hashes."""
    pools = {name: _number(size) for name, size in cluster.pools.items()}
    return {"pools": pools} if pools else {}


def _replica_data(device: Device) -> dict[str, Any]:
    """Entries of a group of replicas; none for a single device."""
    bandwidth = device.replica_bandwidth
    if device.replicas == 1 and not device.members and bandwidth is None:
        return {}
    members = [_device_data(member) for member in device.members]
    return {
        "replicas": device.replicas,
        "replica_bandwidth": None if bandwidth is None else _number(bandwidth),
        **({"members": members} if members else {}),
    }


def _known(fields: dict[str, float | str | None]) -> dict[str, float | str]:
    """Drop unknown fields, so that files of earlier versions keep their hashes."""
    return {name: value for name, value in fields.items() if value is not None}


def _number(value: float) -> float | str:
    return float(value) if math.isfinite(value) else "inf"


_MAX_NODES = 1_000_000
_DEEPEST = 100
_LONGEST = 10_000  # characters of a value
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_OPENING = (yaml.SequenceStartEvent, yaml.MappingStartEvent)
_CLOSING = (yaml.SequenceEndEvent, yaml.MappingEndEvent)


def yaml_value(text: str, path: object) -> Any:
    """The value of a YAML text.

    Raises:
        FileFormatError: it is not YAML, or its aliases stand for too many nodes.
    """
    try:
        _require_bounded(text)
        _require_once(yaml.compose(text, Loader=_LOADER))
        value = yaml.load(text, Loader=_LOADER)  # a safe loader creates plain data only
        _require_plain(value)
        return value
    except FileFormatError as error:
        raise FileFormatError(f"file '{shown_name(str(path))}': {error}") from None
    except (LookupError, AttributeError):  # of the library, for a value such as `!!float ''`
        raise FileFormatError(
            f"file '{shown_name(str(path))}' is not valid YAML: a value does not fit its tag"
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError, TypeError) as error:
        line = " ".join(str(error).replace(' in "<unicode string>",', " at").split())
        raise FileFormatError(f"file '{shown_name(str(path))}' is not valid YAML: {line}") from None


def _require_bounded(text: str) -> None:
    """Refuse aliases that stand for more than a million nodes, deep nesting and long values."""
    sizes: dict[str, int] = {}  # anchor -> nodes
    open_nodes: list[tuple[str | None, int]] = []  # anchor, nodes before it
    total = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise FileFormatError(
                    f"alias '{shown_name(event.anchor)}' stands for what holds it"
                )
            total += sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if len(event.value) > _LONGEST:  # "1:1:1:..." is a number to the base 60
                raise FileFormatError(f"a value has more than {_LONGEST} characters")
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, _OPENING):
            open_nodes.append((event.anchor, total))
            sizes.pop(event.anchor or "", None)
            total += 1
            if len(open_nodes) > _DEEPEST:
                raise FileFormatError(f"it is nested more than {_DEEPEST} levels deep")
        elif isinstance(event, _CLOSING):
            anchor, before = open_nodes.pop()
            if anchor:
                sizes[anchor] = total - before
        if total > _MAX_NODES:
            raise FileFormatError(f"it stands for more than {_MAX_NODES} values; write them out")


def _require_once(root: Any) -> None:
    """Refuse a key that stands twice in one mapping, which YAML forbids and the library takes."""
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        if not isinstance(node, yaml.MappingNode):
            waiting += node.value
            continue
        keys = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((name for (_, name), count in Counter(keys).items() if count > 1), None)
        if twice is not None:
            raise FileFormatError(f"key '{shown_name(twice)}' stands twice")
        waiting += [part for pair in node.value for part in pair]


def _require_plain(value: Any) -> None:
    """Refuse integers of more than 64 bits, texts that cannot be printed, and sets."""
    if isinstance(value, dict):
        for key, entry in value.items():
            _require_plain(key)
            _require_plain(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            _require_plain(entry)
    elif isinstance(value, set):
        raise FileFormatError("it holds a set, which has no order; write a list")
    elif isinstance(value, str):
        if not value.isprintable() and any(letter in value for letter in "\0\r\n"):
            raise FileFormatError(f"the text '{shown_name(value)}' has more than one line")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise FileFormatError("an integer in it has more than 64 bits")
