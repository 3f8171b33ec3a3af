"""Catalogue of real devices and links, and clusters made of them (data: ``catalogue.yaml``)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from placewright.core.cluster import Cluster, Device, Link
from placewright.errors import ClusterError, UnknownNameError

_PREFIX = "catalogue:"
_PRECISIONS = ("f32", "tf32", "bf16", "f16", "i8")
_INSTEAD = ("f16", "bf16", "f32")  # tried in this order if a device lacks the wanted precision


@dataclass(frozen=True)
class CatalogueDevice:
    """A device of the catalogue.

    Attributes:
        name: in the catalogue.
        description: the vendor's name.
        kind: ``"cpu"``, ``"gpu"``, ``"npu"`` or ``"accelerator"``.
        memory_bytes: of the device; of a CPU, as much as it can address.
        bandwidth: peak bytes per second of that memory.
        peak: precision -> peak operations per second.
        efficiency: ``"matmul"``, ``"convolution"``, ``"vector"``, ``"bandwidth"`` -> assumed
            fraction of the peak.
        launch_seconds: to start a kernel, assumed.
        source: of the rates.
    """

    name: str
    description: str
    kind: str
    memory_bytes: float
    bandwidth: float
    peak: Mapping[str, float]
    efficiency: Mapping[str, float]
    launch_seconds: float
    source: str

    def precision(self, wanted: str) -> str:
        """`wanted` if the device has it, else the most accurate precision that it has."""
        return next(p for p in (wanted, *_INSTEAD, *self.peak) if p in self.peak)

    @property
    def vector_peak(self) -> float:
        """Operations per second outside matrix products: the f32 rate, or the slowest stated."""
        return self.peak.get("f32", min(self.peak.values()))


@dataclass(frozen=True)
class CatalogueLink:
    """A link of the catalogue: rates of large transfers in one direction.

    Attributes:
        name: in the catalogue.
        bandwidth: bytes per second, the assumed efficiency included.
        latency_seconds: per transfer.
        source: of the nominal rate.
    """

    name: str
    bandwidth: float
    latency_seconds: float
    source: str


def device_names() -> tuple[str, ...]:
    """Names of all devices of the catalogue."""
    return tuple(_document()["devices"])


def link_names() -> tuple[str, ...]:
    """Names of all links of the catalogue."""
    return tuple(_document()["links"])


def cluster_names() -> tuple[str, ...]:
    """Names of all clusters of the catalogue."""
    return tuple(_document()["clusters"])


@functools.cache
def device_entry(name: str) -> CatalogueDevice:
    """The device called `name`.

    Raises:
        UnknownNameError: the catalogue has no such device.
    """
    document = _document()
    if name not in document["devices"]:
        raise UnknownNameError("catalogue device", name, device_names())
    entry = document["devices"][name]
    assumed = {**document["assumptions"][entry["kind"]], **entry}
    parts = ("matmul", "convolution", "vector", "bandwidth")
    return CatalogueDevice(
        name=name,
        description=entry["name"],
        kind=entry["kind"],
        memory_bytes=entry["memory_gib"] * 2.0**30,
        bandwidth=entry["bandwidth_gb_per_s"] * 1e9,
        peak={precision: rate * 1e12 for precision, rate in entry["peak_tflops"].items()},
        efficiency={part: float(assumed[part]) for part in parts},
        launch_seconds=assumed["launch_us"] * 1e-6,
        source=entry["source"],
    )


@functools.cache
def link_entry(name: str) -> CatalogueLink:
    """The link called `name`.

    Raises:
        UnknownNameError: the catalogue has no such link.
    """
    document = _document()
    if name not in document["links"]:
        raise UnknownNameError("catalogue link", name, link_names())
    entry = document["links"][name]
    reached = entry["bandwidth_gb_per_s"] * document["assumptions"]["link_efficiency"]
    return CatalogueLink(name, reached * 1e9, entry["latency_us"] * 1e-6, entry["source"])


def entry_of(device: Device) -> CatalogueDevice:
    """The catalogue's entry of a device, by the device's fingerprint.

    Raises:
        ClusterError: the device is not of the catalogue.
    """
    if not device.fingerprint.startswith(_PREFIX):
        raise ClusterError(
            f"device '{device.name}' is not of the catalogue; give it the fingerprint "
            f"'{_PREFIX}NAME' with one of {', '.join(device_names())}"
        )
    return device_entry(device.fingerprint.removeprefix(_PREFIX))


def catalogue_cluster(
    devices: str | Sequence[str],
    *,
    link: str = "pcie-4-x16",
    peer_link: str | None = None,
    precision: str = "f32",
) -> Cluster:
    """Make a cluster of catalogue devices.

    Devices are named after their kind, and numbered if there are several: ``cpu``, ``gpu:0``,
    ``gpu:1``. The first CPU is the host; without one the host is a memory of its own.

    Args:
        devices: catalogue names, or the name of a cluster (`cluster_names`), which has its links.
        link: between the host and every other device, each with a link of its own.
        peer_link: between every two devices that are not CPUs; None sends through the host.
        precision: of matrix products and convolutions: f32, tf32, bf16, f16 or i8. A device
            without it takes f16, bf16 or f32.

    Raises:
        UnknownNameError: the catalogue lacks a name.
    """
    if precision not in _PRECISIONS:
        raise UnknownNameError("precision", precision, _PRECISIONS)
    if isinstance(devices, str):
        if devices not in _document()["clusters"]:
            raise UnknownNameError("catalogue cluster", devices, cluster_names())
        known = _document()["clusters"][devices]
        devices, link, peer_link = known["devices"], known["link"], known.get("peer_link")
    members = _devices([device_entry(name) for name in devices], precision)
    cpus = [device.name for device in members if device.kind == "cpu"]
    host = cpus[0] if cpus else "host"
    pairs = [(host, device.name, link) for device in members if device.name != host]
    if peer_link is not None:
        peers = [device.name for device in members if device.kind != "cpu"]
        pairs += [(a, b, peer_link) for i, a in enumerate(peers) for b in peers[i + 1 :]]
    links = tuple(
        Link(source, destination, link_entry(name).latency_seconds, link_entry(name).bandwidth)
        for first, second, name in pairs
        for source, destination in ((first, second), (second, first))
    )
    return Cluster(members, links, host=host)


def _devices(entries: Sequence[CatalogueDevice], precision: str) -> tuple[Device, ...]:
    kinds = [entry.kind for entry in entries]
    seen: dict[str, int] = {}
    made = []
    for entry in entries:
        number = seen.get(entry.kind, 0)
        seen[entry.kind] = number + 1
        several = kinds.count(entry.kind) > 1
        made.append(
            Device(
                f"{entry.kind}:{number}" if several else entry.kind,
                kind=entry.kind,
                memory_bytes=entry.memory_bytes,
                options={"precision": entry.precision(precision)},
                fingerprint=f"{_PREFIX}{entry.name}",
            )
        )
    return tuple(made)


@functools.cache
def _document() -> Mapping[str, Any]:
    text = resources.files("placewright.profiling").joinpath("catalogue.yaml").read_text("utf-8")
    document: Mapping[str, Any] = yaml.safe_load(text)
    return document
