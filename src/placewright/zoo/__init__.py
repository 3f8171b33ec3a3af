"""Models with seeded random weights; nothing is downloaded.

Listing names works without torch: the modules that need it are imported when a model is built.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from placewright.errors import MissingExtraError, UnknownNameError

if TYPE_CHECKING:
    from placewright.zoo.model import ZooModel

ZOO_VERSION = 1  # goes up when a model's architecture, weights or example inputs change

# Name -> "module:function", and the arguments of that function for each variant.
_BUILDERS: dict[str, tuple[str, Mapping[str, Mapping[str, Any]]]] = {
    "inception_v3": (
        "convolutional:inception_v3",
        {"tiny": {"size": 75, "classes": 10}, "small": {"size": 149}},
    ),
    "resnet50": ("convolutional:resnet50", {"tiny": {"size": 32, "classes": 10}}),
    "bert_base": (
        "transformer:bert_base",
        {"tiny": {"layers": 2, "hidden": 64, "sequence": 16}, "short": {"sequence": 8}},
    ),
    "gpt2": ("transformer:gpt2", {"tiny": {"layers": 2, "hidden": 64, "sequence": 16}}),
    "gnmt": (
        "recurrent:gnmt",
        {"tiny": {"layers": 2, "hidden": 32, "steps": 4, "batch": 2, "vocabulary": 100}},
    ),
    "rnnlm": (
        "recurrent:rnnlm",
        {
            "tiny": {"hidden": 32, "steps": 4, "batch": 2, "vocabulary": 100},
            "wide": {"hidden": 2048},
            "enlarged": {
                "hidden": 2048,
                "layers": 1,
                "steps": 10,
                "vocabulary": 1000,
                "separate_gates": True,
            },
        },
    ),
    "nasnet_a": ("convolutional:nasnet_a", {"tiny": {"size": 64, "filters": 8, "repeats": 1}}),
    "moe": ("transformer:moe", {"tiny": {"layers": 2, "hidden": 32, "experts": 4, "sequence": 8}}),
}


def names() -> tuple[str, ...]:
    """All model names."""
    return tuple(_BUILDERS)


def variants(name: str) -> tuple[str, ...]:
    """The variants of a model; the first one is the published size.

    Raises:
        UnknownNameError: there is no such model.
    """
    if name not in _BUILDERS:
        raise UnknownNameError("zoo model", name, names())
    return ("default", *_BUILDERS[name][1])


def build(name: str, *, variant: str = "default") -> ZooModel:
    """Build a model in evaluation mode; the same name gives the same weights on every call.

    Args:
        name: one of `names()`.
        variant: one of `variants(name)`; ``"tiny"`` has the same kinds of layers, fewer or smaller
            ones, and small inputs.

    Raises:
        UnknownNameError: there is no such model or variant.
        MissingExtraError: torch, or transformers for models of it, is not installed.
    """
    if variant not in variants(name):
        raise UnknownNameError(f"variant of zoo model {name}", variant, variants(name))
    target, options = _BUILDERS[name]
    module, _, function = target.partition(":")
    for package in ("torch", "transformers") if module == "transformer" else ("torch",):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "zoo", f"zoo model '{name}'")
    builder = getattr(importlib.import_module(f"placewright.zoo.{module}"), function)
    return cast("ZooModel", builder(**options.get(variant, {})))
