"""Policies on disk: safetensors with JSON metadata, never pickle; written atomically."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from placewright.errors import FileFormatError, InputError
from placewright.io.opened import require_regular, usable_name
from placewright.io.written import write_files

FORMAT = "placewright.policy/1"
LARGEST_COUNT = 65_536  # of anything that a policy file counts, its episodes excepted


@dataclass(frozen=True)
class Checkpoint:
    """A policy file."""

    path: str  # of the file
    placer: str  # registry name of the placer that made it
    metadata: Mapping[str, Any]  # JSON values from which its network is built
    # named parameters (and, for resuming, the state of the optimiser and the trainee)
    tensors: Mapping[str, Tensor]

    def setting(self, name: str) -> Any:
        """An entry of the metadata.

        Raises:
            FileFormatError: it is absent.
        """
        if name not in self.metadata:
            raise FileFormatError(f"policy '{self.path}' does not say '{name}'; train it again")
        return self.metadata[name]

    def count(self, name: str, least: int = 1, most: int = LARGEST_COUNT) -> int:
        """An entry of the metadata that is a whole number from `least` to `most`.

        Raises:
            FileFormatError: it is absent, or anything else.
        """
        value = self.setting(name)
        if type(value) is not int or not least <= value <= most:  # True is no number
            raise FileFormatError(
                f"policy '{self.path}': '{name}' must be a whole number from {least} to {most}, "
                f"got {json.dumps(value)[:40]}; train it again"
            )
        return value

    def like(self, name: str, example: object) -> Any:
        """An entry of the metadata of the same type as `example`.

        Raises:
            FileFormatError: it is absent, or of another type.
        """
        value = self.setting(name)
        if type(value) is not type(example):
            raise FileFormatError(
                f"policy '{self.path}': '{name}' must be a value such as {json.dumps(example)}, "
                f"got {json.dumps(value)[:40]}; train it again"
            )
        return value

    def check_network(self, build: Callable[[], nn.Module]) -> None:
        """Compare the file's parameters with those of a network before that takes any memory.

        Args:
            build: makes the network; here it is built without values.

        Raises:
            FileFormatError: a parameter is missing or of another shape.
        """
        with torch.device("meta"):
            self._check_parameters(build())

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
        self._check_parameters(policy)
        policy.load_state_dict(self.under("policy"), strict=False)

    def _check_parameters(self, policy: nn.Module) -> None:
        tensors = self.under("policy")
        for name, value in policy.state_dict().items():
            if name not in tensors or tensors[name].shape != value.shape:
                raise FileFormatError(
                    f"policy '{self.path}': parameter '{name}' is missing or not of shape "
                    f"{tuple(value.shape)}; train it again"
                )


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
        FileFormatError: it is damaged, of another format, of another placer, or a parameter in it
            is not finite, or of a type in which no policy is written.
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
    for name, value in tensors.items():
        if value.dtype not in (torch.float32, torch.float64):
            raise FileFormatError(
                f"policy '{path}': '{name}' must be float32 or float64, got "
                f"{str(value.dtype).removeprefix('torch.')}; train it again"
            )
    checkpoint = Checkpoint(str(path), trained_for, metadata, tensors)
    for name, value in checkpoint.under("policy").items():
        if not torch.isfinite(value).all():
            raise FileFormatError(
                f"policy '{path}': parameter '{name}' has values that are no finite numbers; "
                "train it again"
            )
    return checkpoint
