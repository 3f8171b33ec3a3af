"""What a model's name means: a file, a model of the zoo, a module in the memory of this process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from placewright.errors import InputError, UnknownNameError
from placewright.execution.framework import (
    BuiltModule,
    Find,
    FoundModel,
    Framework,
    HandsOverPrograms,
    ModelInMemory,
)
from placewright.frameworks.registry import frameworks

ZOO_PREFIX = "zoo:"
MODULE_PREFIX = "module:"

_modules: dict[str, tuple[Any, tuple[Any, ...]]] = {}
_times_remembered: dict[str, int] = {}


def finder(framework: Framework) -> Find:
    """A function that finds models as `framework` reads them.

    A file that only another framework can load is handed over as its program, where `framework`
    converts programs.

    Returns:
        A function that raises InputError for a module of another process and UnknownNameError for
        a model that the zoo lacks; whether a file exists, its reader tells.
    """

    def find(name: str) -> FoundModel:
        if name.startswith(ZOO_PREFIX):
            return _of_zoo(name)
        if name.startswith(MODULE_PREFIX) and framework.reads_modules:
            return _of_memory(name)
        path = Path(name)
        suffix = path.suffix.lower()
        if framework.converts_programs and suffix not in framework.suffixes:
            for other in frameworks():
                if isinstance(other, HandsOverPrograms) and suffix in other.suffixes:
                    return other.program_file(path)
        return path

    return find


def remember_module(module: Any, example_inputs: Sequence[Any]) -> str:
    """Keep a module for as long as this process lives; the name under which it is found."""
    name = f"{MODULE_PREFIX}{type(module).__name__}"
    number = 1
    while name in _modules and _modules[name][0] is not module:
        number += 1
        name = f"{MODULE_PREFIX}{type(module).__name__}#{number}"
    _modules[name] = (module, tuple(example_inputs))
    _times_remembered[name] = _times_remembered.get(name, 0) + 1  # its weights may be others now
    return name


def require_model(name: str) -> None:
    """Refuse a model that does not exist, without reading it.

    Raises:
        InputError: there is no such file.
        UnknownNameError: the zoo has no such model or variant.
        MissingExtraError: the zoo model needs a library that is not installed.
    """
    if name.startswith(ZOO_PREFIX):
        _zoo_variant(name)
    elif not name.startswith(MODULE_PREFIX):
        require_file(name)


def require_file(name: str) -> None:
    """Refuse a name that no file has.

    Raises:
        InputError: there is no such file.
    """
    if not (name and Path(name).exists()):
        raise InputError(
            f"model '{name}' does not exist; give a file, or zoo:NAME for a model built here"
        )


def _zoo_variant(name: str) -> tuple[str, str]:
    """The zoo's own name of a model, and the variant.

    Raises:
        UnknownNameError: the zoo has no such model or variant.
    """
    from placewright import zoo

    known, _, variant = name.removeprefix(ZOO_PREFIX).partition("/")
    variant = variant or "default"
    if variant not in zoo.variants(known):
        raise UnknownNameError(f"variant of zoo:{known}", variant, zoo.variants(known))
    return known, variant


def _of_zoo(name: str) -> ModelInMemory:
    from placewright import zoo

    known, variant = _zoo_variant(name)

    @cache
    def build(is_training: bool) -> BuiltModule:
        model = zoo.build(known, variant=variant)
        if not is_training:
            return BuiltModule(model.module, model.example_inputs, model.input_names)
        from placewright.zoo.training import training_of

        step = training_of(model)
        return BuiltModule(step.module, step.example_inputs, step.input_names)

    return ModelInMemory(name, str(zoo.ZOO_VERSION), build)


def _of_memory(name: str) -> ModelInMemory:
    if name not in _modules:
        raise InputError(
            f"'{name}' was a module in the memory of another process; export it to a .pt2 "
            "file (torch.export.save) and place that"
        )
    module, examples = _modules[name]
    version = str(_times_remembered[name])
    return ModelInMemory(name, version, lambda is_training: BuiltModule(module, examples))
