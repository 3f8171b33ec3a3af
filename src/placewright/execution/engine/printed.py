"""Traces of llama.cpp: places of tensors and caches in its log, tokens in its session."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from placewright.errors import RuntimeFailure

_LAYER = re.compile(r"layer +(\d+) assigned to device ([^\s,]+)")
_MOVED = re.compile(r"tensor (\S+) \(.*\) buffer type overridden to (\S+)")
_BUFFER = re.compile(r"(\S+) +(model|KV|RS|compute) buffer size = +([\d.]+) MiB")
_DEVICE = re.compile(r"^\s*(\S+): (.*)\((\d+) MiB, (\d+) MiB free\)", re.MULTILINE)
_MIB = 2.0**20
HOST = "CPU"
ROUNDING = 0.005 * _MIB  # bytes: sizes are printed in hundredths of a MiB


@dataclass(frozen=True)
class Printed:
    """Places of layers, tensors and buffers, as the engine prints them."""

    layers: Mapping[int, str]  # number of a layer -> the engine's device; the head is the last
    moved: Mapping[str, str]  # tensor -> buffer, of those that lie elsewhere than their layer
    # weights, caches, compute: buffer -> bytes
    weights: Mapping[str, float]
    caches: Mapping[str, float]
    compute: Mapping[str, float]
    # number of printed sizes that a sum has, by kind and buffer
    lines: Mapping[tuple[str, str], int]


def printed_places(log: str) -> Printed:
    """The places in a log at debug level of a process that loaded one model once.

    >>> log = "load_tensors: layer   0 assigned to device CPU, is_swa = 0"
    >>> printed_places(log).layers
    {0: 'CPU'}
    """
    sizes: dict[str, dict[str, float]] = {"model": {}, "KV": {}, "compute": {}}
    lines: dict[tuple[str, str], int] = {}
    for name, what, text in _BUFFER.findall(log):
        kind = "KV" if what == "RS" else what
        buffer = _buffer(name)
        # A buffer of compute that is printed again replaces the earlier one.
        before = 0.0 if kind == "compute" else sizes[kind].get(buffer, 0.0)
        sizes[kind][buffer] = before + float(text) * _MIB
        lines[kind, buffer] = 1 if kind == "compute" else lines.get((kind, buffer), 0) + 1
    return Printed(
        {int(layer): device for layer, device in _LAYER.findall(log)},
        {tensor: _buffer(name) for tensor, name in _MOVED.findall(log)},
        sizes["model"],
        sizes["KV"],
        sizes["compute"],
        lines,
    )


def _buffer(name: str) -> str:
    """The buffer, or `HOST` for all that lie in RAM: a GPU's backend pins its pages there."""
    return HOST if name.startswith(HOST) or name.endswith("_Host") else name


def printed_devices(text: str) -> dict[str, float]:
    """Free bytes of each device that the engine lists; some backends list devices without memory.

    >>> printed_devices("  CUDA0: NVIDIA H100 80GB HBM3 (81079 MiB, 80552 MiB free)")
    {'CUDA0': 84464893952.0}
    """
    return {name: float(free) * _MIB for name, _, _, free in _DEVICE.findall(text)}


def printed_cards(text: str) -> dict[str, str]:
    """Description and total memory of each device that the engine lists.

    >>> printed_cards("  CUDA0: NVIDIA H100 80GB HBM3 (81079 MiB, 80552 MiB free)")
    {'CUDA0': 'NVIDIA H100 80GB HBM3 81079 MiB'}
    """
    return {name: f"{what}{total} MiB" for name, what, total, _ in _DEVICE.findall(text)}


def session_tokens(path: Path) -> list[int]:
    """The tokens of a session file: prompt and generated ones.

    Raises:
        RuntimeFailure: the file is not there, or has another format.
    """
    try:
        with path.open("rb") as file:
            magic, version, count = struct.unpack("<4sII", file.read(12))
            if magic != b"nsgg":
                raise RuntimeFailure(
                    f"the engine's session has an unknown format {magic!r}/{version}"
                )
            return list(struct.unpack(f"<{count}i", file.read(4 * count)))
    except (OSError, struct.error) as error:
        raise RuntimeFailure(f"the engine wrote no session: {error}") from None
