"""Policies on disk: safetensors with JSON metadata, never pickle; written atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from placewright.errors import FileFormatError, InputError
from placewright.io.opened import require_regular, usable_name
from placewright.io.written import write_files

FORMAT = "placewright.policy/1"


@dataclass(frozen=True)
class Checkpoint:
    """A policy file.

    Attributes:
        path: of the file.
        placer: registry name of the placer that made it.
        metadata: JSON values from which its network is built.
        tensors: named parameters (and, for resuming, the state of the optimiser and the trainee).
    """

    path: str
    placer: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def setting(self, name: str) -> Any:
        """An entry of the metadata.

        Raises:
            FileFormatError: it is absent.
        """
        if name not in self.metadata:
            raise FileFormatError(f"policy '{self.path}' does not say '{name}'; train it again")
        return self.metadata[name]

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Tensors whose names start with `prefix` and a dot, without this prefix."""
        return {
            name.removeprefix(f"{prefix}."): value
            for name, value in self.tensors.items()
            if name.startswith(f"{prefix}.")
        }

    def give_to(self, policy: nn.Module) -> None:
        """Set a network's parameters.

        Raises:
            FileFormatError: the file's parameters are not those of the network.
        """
        tensors = self.under("policy")
        for name, value in policy.state_dict().items():
            if name not in tensors or tensors[name].shape != value.shape:
                raise FileFormatError(
                    f"policy '{self.path}': parameter '{name}' is missing or not of shape "
                    f"{tuple(value.shape)}; train it again"
                )
        policy.load_state_dict(tensors, strict=False)


def save_checkpoint(checkpoint: Checkpoint) -> None:
    """Write a policy file to its path; an interrupted write leaves the old one.

    Raises:
        InputError: the folder does not exist.
    """
    target = usable_name(checkpoint.path)
    if not target.resolve().parent.is_dir():
        raise InputError(f"folder '{target.parent}' of '{target.name}' does not exist")
    header = {
        "format": FORMAT,
        "placer": checkpoint.placer,
        "metadata": json.dumps(dict(checkpoint.metadata), sort_keys=True),
    }
    tensors = {name: value.detach().contiguous() for name, value in checkpoint.tensors.items()}
    write_files({target: _in_one_order(save(tensors, metadata=header))})


def _in_one_order(data: bytes) -> bytes:
    """A safetensors file with a sorted header: the library writes its entries in random order."""
    size = int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8 : 8 + size]), sort_keys=True, separators=(",", ":"))
    padded = header.encode() + b" " * (-len(header.encode()) % 8)  # tensors begin at multiples of 8
    return len(padded).to_bytes(8, "little") + padded + data[8 + size :]


def load_checkpoint(path: str | Path, placer: str | None = None) -> Checkpoint:
    """Read a policy file.

    Raises:
        InputError: it is missing or no regular file.
        FileFormatError: it is damaged, of another format, or of another placer.
    """
    require_regular(path)
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except (OSError, SafetensorError, ValueError) as error:
        raise FileFormatError(f"policy '{path}' cannot be read: {error}") from error
    if header.get("format") != FORMAT:
        actual = header.get("format", "none")
        raise FileFormatError(f"policy '{path}': format is '{actual}', expected '{FORMAT}'")
    trained_for = header.get("placer", "none")
    if placer is not None and trained_for != placer:
        raise FileFormatError(
            f"policy '{path}' was trained for placer '{trained_for}', not '{placer}'"
        )
    try:
        metadata = dict(json.loads(header.get("metadata", "")))
    except (ValueError, TypeError, RecursionError) as error:
        raise FileFormatError(f"policy '{path}': its metadata is damaged ({error})") from error
    return Checkpoint(str(path), trained_for, metadata, tensors)
