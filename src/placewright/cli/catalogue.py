"""The list of catalogue devices, links and clusters that `devices --catalogue` prints."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from placewright.cli.output import print_json, print_line

if TYPE_CHECKING:
    from placewright.profiling.catalogue import CatalogueDevice, CatalogueLink, Listing

_RATES = ("f32", "f16", "bf16", "i8")
DEVICE_COLUMNS = ("device", "memory", "bandwidth", *_RATES, "made as")
LINK_COLUMNS = ("link", "bandwidth", "latency")
CLUSTER_COLUMNS = ("cluster", "devices")
HOW_TO_NAME = (
    "A language model takes --devices rtx-4090,cpu, other models take "
    "--devices catalogue:gpu-rtx-4090,cpu-desktop or a cluster as --devices catalogue:4gpu.",
    "f32, f16, bf16 and i8 are peaks of dense products in TFLOPS, or TOPS for integers.",
)


def print_catalogue(pattern: str, as_json: bool) -> None:
    """Print the entries of the catalogue that match a pattern.

    Raises:
        UnknownNameError: there is none; the message has near names.
    """
    from placewright.profiling.catalogue import listing

    found = listing(pattern)
    if as_json:
        print_json(_data(found))
        return
    tables = (
        (DEVICE_COLUMNS, [device_row(device) for device in found.devices]),
        (LINK_COLUMNS, [link_row(link) for link in found.links]),
        (CLUSTER_COLUMNS, [cluster_row(name, found.clusters[name]) for name in found.clusters]),
    )
    for columns, rows in tables:
        if rows:
            _print_aligned([list(columns), *rows])
            print_line("")
    for line in HOW_TO_NAME:
        print_line(line)


def device_row(device: CatalogueDevice) -> list[str]:
    """The cells of `DEVICE_COLUMNS`."""
    from placewright.core.quantities import format_bytes

    rates = [f"{device.peak[name] / 1e12:.4g}" if name in device.peak else "-" for name in _RATES]
    memory = format_bytes(device.memory_bytes).replace(".00", "")
    return [device.name, memory, f"{device.bandwidth / 1e9:g} GB/s", *rates, device.description]


def link_row(link: CatalogueLink) -> list[str]:
    """The cells of `LINK_COLUMNS`."""
    from placewright.core.quantities import format_duration

    return [link.name, f"{link.bandwidth / 1e9:.4g} GB/s", format_duration(link.latency_seconds)]


def cluster_row(name: str, devices: tuple[str, ...]) -> list[str]:
    """The cells of `CLUSTER_COLUMNS`; equal devices are counted."""
    counts = Counter(devices)
    texts = [one if count == 1 else f"{count} x {one}" for one, count in counts.items()]
    return [name, ", ".join(texts)]


def _data(found: Listing) -> dict[str, Any]:
    return {
        "devices": [
            {
                "name": device.name,
                "description": device.description,
                "kind": device.kind,
                "memory_bytes": device.memory_bytes,
                "bytes_per_second": device.bandwidth,
                "operations_per_second": dict(device.peak),
                "fitted": None if device.fit is None else device.fit.name,
                "source": device.source,
            }
            for device in found.devices
        ],
        "links": [
            {
                "name": link.name,
                "bytes_per_second": link.bandwidth,
                "latency_seconds": link.latency_seconds,
                "source": link.source,
            }
            for link in found.links
        ],
        "clusters": {name: list(devices) for name, devices in found.clusters.items()},
    }


def _print_aligned(rows: list[list[str]]) -> None:
    """Print a table whose names are never cut, so that users can copy them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *middle, last in rows:
        cells = [cell.rjust(width) for cell, width in zip(middle, widths[1:], strict=False)]
        print_line("  ".join([first.ljust(widths[0]), *cells, last]))
