"""Catalogue of real devices and links, and clusters made of them (data: ``catalogue.yaml``)."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import numpy as np
import yaml

from placewright.core.arrays import FloatArray
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.data_sheet import PRECISIONS
from placewright.errors import ClusterError, UnknownNameError

_PREFIX = "catalogue:"
_PARTS = ("matmul", "convolution", "vector", "bandwidth")
_LINK = "pcie-4-x16"  # unless another is named
_DESKTOP = "cpu-desktop"  # the CPU if no model is named
_NEAR = 4  # names to suggest
_LISTED_BY = "placewright devices --catalogue"
_INSTEAD = ("f16", "bf16", "f32")  # tried in this order if a device lacks the wanted precision


@dataclass(frozen=True)
class Fit:
    """Efficiencies that were fitted to measured ops of several devices of a family."""

    name: str  # of the family
    precision: str  # of the products that were measured
    least_seconds: float  # at the peak, of the ops that were fitted; smaller ones have no interval
    sizes: tuple[float, ...]  # seconds at the peak at which `efficiency` is known, ascending
    # class of ops (`roofline.FITTED_CLASSES`) -> share of the peak at each size
    efficiency: Mapping[str, tuple[float, ...]]
    # class -> least and greatest measured seconds over predicted, nine times in ten
    interval: Mapping[str, tuple[float, float]]
    model_interval: tuple[float, float]  # the same of whole models
    launch_seconds: float  # to start a kernel
    source: str  # of the measurements

    def share(self, name: str, at_peak: FloatArray) -> FloatArray:
        """Share of the peak that ops of a class reach, between the sizes by their logarithm.

        Args:
            at_peak: seconds of the ops at the peak.
        """
        logarithm = np.log(np.maximum(at_peak, self.sizes[0]))
        return np.interp(logarithm, np.log(self.sizes), self.efficiency[name])


@dataclass(frozen=True)
class CatalogueDevice:
    """A device of the catalogue."""

    name: str  # in the catalogue
    description: str  # the vendor's name
    kind: str  # ``"cpu"``, ``"gpu"``, ``"npu"`` or ``"accelerator"``
    memory_bytes: float  # of the device; of a CPU, as much as it can address
    bandwidth: float  # peak bytes per second of that memory
    peak: Mapping[str, float]  # precision -> peak operations per second
    # ``"matmul"``, ``"convolution"``, ``"vector"``, ``"bandwidth"`` -> assumed fraction of the peak
    efficiency: Mapping[str, float]
    launch_seconds: float  # to start a kernel, assumed
    source: str  # of the rates
    # of the device's family; None if nobody has published measurements of such
    fit: Fit | None = None
    # for a processor to send or take a message of a network; None if only its engine's is known
    message_seconds: float | None = None

    def precision(self, wanted: str) -> str:
        """`wanted` if the device has it, else the first of f16, bf16 and f32 that it has."""
        return next(p for p in (wanted, *_INSTEAD, *self.peak) if p in self.peak)

    @property
    def vector_peak(self) -> float:
        """Operations per second outside matrix products: the f32 rate, or the slowest stated."""
        return self.peak.get("f32", min(self.peak.values()))


@dataclass(frozen=True)
class CatalogueLink:
    """A link of the catalogue: rates of large transfers in one direction."""

    name: str  # in the catalogue
    bandwidth: float  # bytes per second, the assumed efficiency included
    latency_seconds: float  # per transfer
    source: str  # of the nominal rate


@dataclass(frozen=True)
class EngineRates:
    """Rates and overheads of an engine of language models on a kind of device."""

    bandwidth: float  # share of the memory's bandwidth that weights and caches reach
    rows: tuple[float, ...]  # of matrix products, ascending
    products: tuple[float, ...]  # share of the peak that products with so many rows reach
    scores: float  # share of the peak that attention reaches on its cache
    launch_seconds: float  # to start a kernel
    message_seconds: float  # to hand a tensor to another device, besides the link
    reserve_bytes: float  # that driver and engine keep on a device
    source: str  # of the numbers

    def share(self, rows: float) -> float:
        """Share of the peak that products of so many rows reach."""
        return float(np.interp(np.log(max(rows, 1.0)), np.log(self.rows), self.products))


@dataclass(frozen=True)
class Between:
    """Sums that an engine makes over devices that share a module."""

    form: str  # ``"ring"``, or ``"star"``, in which the first device exchanges with each other
    element_bytes: float  # of a number of the hidden state between devices
    link: float  # share of the link's rate that is reached
    collective_seconds: float  # of a sum, besides its bytes
    # kind of module -> version before which devices exchange slices of it instead of sums
    slices_before: Mapping[str, tuple[int, int]]
    head_before: tuple[int, int]  # version before which the first device computes the head alone


def speed_interval(engine: str, phase: str) -> tuple[float, float] | None:
    """Factors of a predicted speed between which nine of ten measured ones lie; None if unknown.

    Args:
        phase: ``"prefill"`` or ``"decode"``.
    """
    found = _document()["engines"][engine].get("interval")
    return None if found is None else (found[phase][0], found[phase][1])


def between_devices(engine: str) -> Between:
    """Sums that an engine of the catalogue makes over devices."""
    entry = _document()["engines"][engine]["between"]
    slices, head = entry.get("slices_before", {}), entry.get("head_before", (0, 0))
    return Between(
        entry["form"],
        entry["element_bytes"],
        entry["link"],
        entry["collective_us"] * 1e-6,
        {kind: (version[0], version[1]) for kind, version in slices.items()},
        (head[0], head[1]),
    )


@functools.cache
def engine_rates(engine: str, kind: str) -> EngineRates:
    """Rates of an engine on a kind of device; those of another kind if the catalogue lacks it.

    Raises:
        UnknownNameError: the catalogue has no such engine.
    """
    engines = _document()["engines"]
    if engine not in engines:
        raise UnknownNameError("engine", engine, tuple(engines))
    rates = engines[engine]
    entry = rates.get(kind) or rates.get("gpu") or rates["cpu"]
    return EngineRates(
        entry["bandwidth"],
        tuple(map(float, entry["rows"])),
        tuple(entry["products"]),
        entry["scores"],
        entry["launch_us"] * 1e-6,
        entry["message_us"] * 1e-6,
        entry["reserve_gib"] * 2.0**30,
        entry["source"],
    )


def device_names() -> tuple[str, ...]:
    """Names of all devices of the catalogue."""
    return tuple(_document()["devices"])


def link_names() -> tuple[str, ...]:
    """Names of all links of the catalogue."""
    return tuple(_document()["links"])


def cluster_names() -> tuple[str, ...]:
    """Names of all clusters of the catalogue."""
    return tuple(_document()["clusters"])


@dataclass(frozen=True)
class Listing:
    """Entries of the catalogue, in its order."""

    devices: tuple[CatalogueDevice, ...]
    links: tuple[CatalogueLink, ...]
    clusters: Mapping[str, tuple[str, ...]]  # name -> the catalogue's names of its devices


def listing(pattern: str = "") -> Listing:
    """The entries of the catalogue whose names contain each word of a pattern, also in a word.

    Names of a device are those of the catalogue, the vendor, PyTorch and OpenVINO; case and
    punctuation do not matter.

    Raises:
        UnknownNameError: there is no such entry; the message has near names.

    >>> [device.name for device in listing("RTX 40").devices]
    ['gpu-rtx-4060-ti-16gb', 'gpu-rtx-4070-ti-super', 'gpu-rtx-4090']
    """
    document, parts = _document(), _plain(pattern).split()
    if pattern.strip() and not parts:
        device_entry(pattern)  # refuses it, and suggests others

    def matching(section: str) -> list[str]:
        entries: Mapping[str, Any] = document[section]
        texts = {
            name: _plain(" ".join([name, entry.get("name", ""), *entry.get("aliases", ())]))
            for name, entry in entries.items()
        }
        return [name for name, text in texts.items() if all(part in text for part in parts)]

    found = Listing(
        tuple(device_entry(name) for name in matching("devices")),
        tuple(link_entry(name) for name in matching("links")),
        {name: tuple(document["clusters"][name]["devices"]) for name in matching("clusters")},
    )
    if not (found.devices or found.links or found.clusters):
        device_name(pattern)  # raises
    return found


@functools.cache
def device_entry(name: str) -> CatalogueDevice:
    """The device called `name`, see `device_name`.

    Raises:
        UnknownNameError: the catalogue has no such device.
    """
    document = _document()
    known = device_name(name)
    entry = document["devices"][known]
    assumed = {**document["assumptions"][entry["kind"]], **entry}
    return CatalogueDevice(
        name=known,
        description=entry["name"],
        kind=entry["kind"],
        memory_bytes=entry["memory_gib"] * 2.0**30,
        bandwidth=entry["bandwidth_gb_per_s"] * 1e9,
        peak={precision: rate * 1e12 for precision, rate in entry["peak_tflops"].items()},
        efficiency={part: float(assumed[part]) for part in _PARTS},
        launch_seconds=assumed["launch_us"] * 1e-6,
        source=entry["source"],
        fit=fit_named(entry["fit"]) if "fit" in entry else None,
        message_seconds=entry["message_us"] * 1e-6 if "message_us" in entry else None,
    )


def fit_names() -> tuple[str, ...]:
    """Names of all families with fitted efficiencies."""
    return tuple(_document()["fits"])


@functools.cache
def fit_named(name: str) -> Fit:
    """The fitted efficiencies of a family of devices.

    Raises:
        UnknownNameError: the catalogue has no such family.
    """
    fits = _document()["fits"]
    if name not in fits:
        raise UnknownNameError("family of fitted efficiencies", name, fit_names())
    entry = fits[name]
    return Fit(
        name=name,
        precision=entry["precision"],
        least_seconds=entry["least_us"] * 1e-6,
        sizes=tuple(size * 1e-6 for size in entry["sizes_us"]),
        efficiency={key: tuple(row) for key, row in entry["efficiency"].items()},
        interval={key: (row[0], row[1]) for key, row in entry["interval"].items()},
        model_interval=(entry["model_interval"][0], entry["model_interval"][1]),
        launch_seconds=entry["launch_us"] * 1e-6,
        source=entry["source"],
    )


def device_name(name: str) -> str:
    """The catalogue's name of a device that PyTorch or OpenVINO call `name`.

    Upper case, trade marks and punctuation do not matter: ``"NVIDIA A100-SXM4-80GB"`` and
    ``"gpu-a100-80gb"`` are the same device.

    Raises:
        UnknownNameError: the catalogue has no such device; the message has near names.
    """
    known, plain = _names(), _plain(name)
    if plain in known:
        return known[plain]
    near = _near_devices(name)
    kinds = {plain.partition(" ")[0]} if near == () else {_kind_of(other) for other in near}
    like = [other for other in device_names() if _kind_of(other) in kinds]
    raise UnknownNameError(
        "catalogue device", name, like or device_names(), near=near[:_NEAR], listed_by=_LISTED_BY
    )


def _kind_of(name: str) -> str:
    return name.partition("-")[0]


def is_device_name(name: str) -> bool:
    """True if the catalogue has a device of a name, see `device_name`."""
    return _plain(name) in _names()


def _near_devices(name: str) -> tuple[str, ...]:
    """Devices with the words of a name, then those of like names; of its kind if it has one."""
    known, plain = _names(), _plain(name)
    containing = [other for other in known if set(plain.split()) <= set(other.split())]
    like = difflib.get_close_matches(plain, known, n=2 * _NEAR)
    near = dict.fromkeys(known[found] for found in (*containing, *like))
    kind = plain.partition(" ")[0]
    same = tuple(other for other in near if _kind_of(other) == kind)
    return same if kind in map(_kind_of, device_names()) else tuple(near)


@functools.cache
def _names() -> Mapping[str, str]:
    """Plain name -> the catalogue's name."""
    devices = _document()["devices"]
    return {
        _plain(given): name
        for name, entry in devices.items()
        for given in (name, *entry.get("aliases", ()))
    }


def _plain(name: str) -> str:
    """A name in lower case, without trade marks, and with spaces for punctuation."""
    text = re.sub(r"\((r|tm)\)|®|™", "", name.lower())
    return " ".join(re.findall(r"[a-z0-9.+]+", text))


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
    """The catalogue's entry of a device, by the device's fingerprint, or that of its data sheet.

    A device with a data sheet of its own has the efficiencies, fitted ones included, of the
    catalogue device that its fingerprint names, else those assumed for its kind.

    Raises:
        ClusterError: the device is not of the catalogue and has no data sheet.
    """
    sheet = device.data_sheet
    entry = (
        device_entry(device.fingerprint.removeprefix(_PREFIX))
        if device.fingerprint.startswith(_PREFIX)
        else None
    )
    if sheet is None and entry is None:
        raise ClusterError(
            f"device '{device.name}' is not of the catalogue; give it peak and bandwidth, or the "
            f"fingerprint '{_PREFIX}NAME' with one of {', '.join(device_names())}"
        )
    if sheet is None or entry is None:
        return entry or _own_entry(device)
    return replace(entry, peak=sheet.peak, bandwidth=sheet.bandwidth, source="the cluster")


def has_data_sheet(device: Device) -> bool:
    """True if the costs of a device come from a data sheet, of the catalogue or its own."""
    return device.data_sheet is not None or device.fingerprint.startswith(_PREFIX)


def with_precision(cluster: Cluster, precision: str | None) -> Cluster:
    """Let the devices of a cluster, which have data sheets, compute in a precision if they can.

    Args:
        cluster: its devices keep their options if `precision` is None.
        precision: of all floating-point data; a device without it takes f16, bf16 or f32.
    """
    if precision is None:
        return cluster
    devices = tuple(
        replace(
            device,
            options={**device.options, "precision": entry_of(device).precision(precision)},
        )
        for device in cluster.devices
    )
    return replace(cluster, devices=devices)


def _own_entry(device: Device) -> CatalogueDevice:
    """The entry of a device with a data sheet that the catalogue does not have."""
    sheet, assumptions = device.data_sheet, _document()["assumptions"]
    assert sheet is not None
    kinds = [kind for kind in assumptions if kind != "link_efficiency"]
    if device.kind not in kinds:
        raise ClusterError(
            f"device '{device.name}' has kind '{device.kind}'; costs from a data sheet need kind "
            f"{', '.join(kinds)}"
        )
    assumed = assumptions[device.kind]
    return CatalogueDevice(
        name=device.name,
        description=device.name,
        kind=device.kind,
        memory_bytes=device.memory_bytes,
        bandwidth=sheet.bandwidth,
        peak=sheet.peak,
        efficiency={part: float(assumed[part]) for part in _PARTS},
        launch_seconds=assumed["launch_us"] * 1e-6,
        source="the cluster",
    )


def catalogue_cluster(
    devices: str | Sequence[str],
    *,
    link: str = _LINK,
    peer_link: str | None = None,
    precision: str | None = None,
) -> Cluster:
    """Make a cluster of catalogue devices.

    Devices are named after their kind, and numbered if there are several: ``cpu``, ``gpu:0``,
    ``gpu:1``. The first CPU is the host; without one the host is a memory of its own.

    Args:
        devices: catalogue names, or the name of a cluster (`cluster_names`), which has its links.
        link: between the host and every other device, each with a link of its own.
        peer_link: between every two devices that are not CPUs; None sends through the host.
        precision: of all floating-point data: f32, tf32, bf16, f16 or i8; None leaves each op the
            precision of its own data. A device without it takes f16, bf16 or f32.

    Raises:
        UnknownNameError: the catalogue lacks a name.
    """
    if precision is not None and precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS)
    if isinstance(devices, str):
        if devices not in _document()["clusters"]:
            near = [*difflib.get_close_matches(devices, cluster_names()), *_near_devices(devices)]
            known = (*cluster_names(), *device_names())
            what = "cluster or device of the catalogue"
            near = near[:_NEAR]
            if devices in device_names():
                what = "cluster of the catalogue (devices are given as a list)"
            raise UnknownNameError(what, devices, known, near=near, listed_by=_LISTED_BY)
        known = _document()["clusters"][devices]
        devices, link, peer_link = known["devices"], known["link"], known.get("peer_link")
    members = _devices([device_entry(name) for name in devices], precision)
    cpus = [device.name for device in members if device.kind == "cpu"]
    host = cpus[0] if cpus else "host"
    return linked(Cluster(members, host=host), link, peer_link)


def named_cluster(names: Sequence[str]) -> Cluster:
    """Make a cluster of catalogue devices under the names that the user gave, with usual links.

    ``rtx-4090`` is short for ``gpu-rtx-4090``, and ``cpu`` for a desktop's. Names become lower
    case. Devices of one name are numbered.

    Args:
        names: of devices; the first CPU is the host.

    Raises:
        UnknownNameError: the catalogue lacks a name.
    """
    entries = [device_entry(whole_name(name)) for name in names]
    names = [name.lower() for name in names]
    devices = tuple(
        replace(
            device,
            name=f"{name}:{names[:at].count(name)}" if names.count(name) > 1 else name,
        )
        for at, (name, device) in enumerate(zip(names, _devices(entries, None), strict=True))
    )
    cpus = [device.name for device in devices if device.kind == "cpu"]
    return linked(Cluster(devices, host=cpus[0] if cpus else "host"))


def whole_name(name: str) -> str:
    """The name with ``gpu-`` before it if the catalogue has that; ``cpu`` is a desktop's.

    >>> whole_name("rtx-4090")
    'gpu-rtx-4090'
    """
    name = name.strip()
    if name.lower() == "cpu":
        return _DESKTOP
    prefixed = f"gpu-{name}"
    return prefixed if is_device_name(prefixed) and not is_device_name(name) else name


def linked(cluster: Cluster, link: str = _LINK, peer_link: str | None = None) -> Cluster:
    """Connect the devices of a cluster, in place of its links.

    Args:
        link: between the host and every other device, each with a link of its own.
        peer_link: between every two devices that are not CPUs; None sends through the host.

    Raises:
        UnknownNameError: the catalogue lacks a name.
    """
    host = cluster.host
    pairs = [(host, device.name, link) for device in cluster.devices if device.name != host]
    if peer_link is not None:
        peers = [device.name for device in cluster.devices if device.kind != "cpu"]
        pairs += [(a, b, peer_link) for i, a in enumerate(peers) for b in peers[i + 1 :]]
    links = tuple(
        Link(source, destination, link_entry(name).latency_seconds, link_entry(name).bandwidth)
        for first, second, name in pairs
        for source, destination in ((first, second), (second, first))
    )
    return replace(cluster, links=links)


def _devices(entries: Sequence[CatalogueDevice], precision: str | None) -> tuple[Device, ...]:
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
                options={} if precision is None else {"precision": entry.precision(precision)},
                fingerprint=f"{_PREFIX}{entry.name}",
            )
        )
    return tuple(made)


@functools.cache
def _document() -> Mapping[str, Any]:
    text = resources.files("placewright.profiling").joinpath("catalogue.yaml").read_text("utf-8")
    document: Mapping[str, Any] = yaml.safe_load(text)
    return document
