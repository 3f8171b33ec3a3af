"""Runtimes by name, imported only when asked for."""

from __future__ import annotations

import importlib
from typing import cast

from placewright.errors import UnknownNameError
from placewright.execution.runtime import Runtime

# Name -> "module:class" under placewright.frameworks; one line per runtime.
REGISTRY: dict[str, str] = {
    "onnxruntime": "onnxruntime.runtime:OnnxRuntime",
    "openvino": "openvino.runtime:OpenVinoRuntime",
    "torch": "torch.running.runtime:TorchRuntime",
}


def runtime_names() -> tuple[str, ...]:
    """All registered names, in alphabetical order."""
    return tuple(sorted(REGISTRY))


def make_runtime(name: str, *needed: object) -> Runtime:
    """The runtime called `name`.

    Args:
        name: registered.
        needed: what its class takes; PyTorch's a function from a model source to its program.

    Raises:
        UnknownNameError: the name is not registered.
        MissingExtraError: its library is not installed.
    """
    if name not in REGISTRY:
        raise UnknownNameError("runtime", name, runtime_names())
    module, _, attribute = REGISTRY[name].partition(":")
    found = getattr(importlib.import_module(f"placewright.frameworks.{module}"), attribute)
    return cast(Runtime, found(*needed))
