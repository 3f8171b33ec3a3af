"""Policies on disk: safetensors with JSON metadata, never pickle; written atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from placewright.errors import FileFormatError, InputError

FORMAT = "placewright.policy/1"


@dataclass(frozen=True)
class Checkpoint:
    """A policy file.

    Attributes:
        placer: registry name of the placer that made it.
        metadata: what its network needs to be built again, JSON values.
        tensors: named parameters (and, for resuming, the optimiser's state).
    """

    placer: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def save_checkpoint(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write a policy file; an interrupted write leaves the old one.

    Raises:
        InputError: the folder does not exist.
    """
    target = Path(path)
    if not target.resolve().parent.is_dir():
        raise InputError(f"folder '{target.parent}' of '{target.name}' does not exist")
    header = {
        "format": FORMAT,
        "placer": checkpoint.placer,
        "metadata": json.dumps(dict(checkpoint.metadata), sort_keys=True),
    }
    tensors = {name: value.detach().contiguous() for name, value in checkpoint.tensors.items()}
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    partial.write_bytes(save(tensors, metadata=header))
    partial.replace(target)


def load_checkpoint(path: str | Path, placer: str | None = None) -> Checkpoint:
    """Read a policy file.

    Raises:
        FileFormatError: it is missing, damaged, of another format, or of another placer.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except (OSError, SafetensorError) as error:
        raise FileFormatError(f"policy '{path}' cannot be read: {error}") from error
    if header.get("format") != FORMAT:
        found = header.get("format", "none")
        raise FileFormatError(f"policy '{path}': format is '{found}', expected '{FORMAT}'")
    if placer is not None and header["placer"] != placer:
        raise FileFormatError(
            f"policy '{path}' was trained for placer '{header['placer']}', not '{placer}'"
        )
    return Checkpoint(header["placer"], json.loads(header["metadata"]), tensors)
