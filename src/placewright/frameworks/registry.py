"""Registry of frameworks: each is a folder beside this file, with a declaration."""

from __future__ import annotations

import importlib
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from placewright.errors import UnknownNameError
from placewright.execution.framework import (
    Find,
    Framework,
    ModelReader,
    PreparesProcess,
    found_path,
)

if TYPE_CHECKING:
    from pathlib import Path

    from placewright.core.source import ModelSource
    from placewright.execution.runtime import Runtime

# One line per framework: the name of its folder, whose declaration.py has FRAMEWORK. Without a name
# in the request, the first installed framework that can do the request is taken.
FRAMEWORKS: tuple[str, ...] = (
    "openvino",
    "onnxruntime",
    "torch",
)

# Folders whose declaration.py has READER: they read models that no framework here runs.
READERS: tuple[str, ...] = ("language",)


def framework_names() -> tuple[str, ...]:
    """Names of all frameworks, in alphabetical order."""
    return tuple(sorted(FRAMEWORKS))


def frameworks() -> tuple[Framework, ...]:
    """All frameworks, first choice first."""
    return tuple(_declared(name) for name in FRAMEWORKS)


def framework_named(name: str) -> Framework:
    """The framework called `name`.

    Raises:
        UnknownNameError: the name is not registered.
    """
    if name not in FRAMEWORKS:
        raise UnknownNameError("runtime", name, framework_names())
    return _declared(name)


def is_installed(framework: Framework) -> bool:
    """True if the packages of a framework's runtime are installed; nothing is imported."""
    return all(_is_found(package) for package in framework.packages)


def framework_of(source: ModelSource) -> Framework | None:
    """The framework that knows the op names of a source; None if there is none."""
    return next((x for x in frameworks() if source.format in x.formats), None)


def readers() -> tuple[ModelReader, ...]:
    """All readers of models that no framework runs."""
    return tuple(_declared_reader(name) for name in READERS)


def reader_of_file(name: str) -> ModelReader | None:
    """The reader of a name with its prefix or suffix; None if there is none."""
    for reader in readers():
        if name.startswith(reader.prefix) or name.lower().endswith(reader.suffixes):
            return reader
    return None


def path_in(name: str) -> str:
    """The path in a model's name, without the prefix of a reader."""
    reader = reader_of_file(name)
    return name if reader is None else name.removeprefix(reader.prefix)


def make_runtime(name: str, find: Find = found_path) -> Runtime:
    """The runtime of the framework called `name`.

    Raises:
        UnknownNameError: the name is not registered.
        MissingExtraError: its library is not installed.
    """
    return framework_named(name).runtime(find)


def prepare_process() -> None:
    """Let frameworks change settings of the process, before its first thread starts."""
    for framework in frameworks():
        if isinstance(framework, PreparesProcess):
            framework.prepare_process()


def _is_found(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # an import hook refuses it, or it is blocked
        return False


@cache
def _declared(name: str) -> Framework:
    module = importlib.import_module(f"placewright.frameworks.{name}.declaration")
    return cast(Framework, module.FRAMEWORK)


@cache
def _declared_reader(name: str) -> ModelReader:
    module = importlib.import_module(f"placewright.frameworks.{name}.declaration")
    return cast(ModelReader, module.READER)


def companions_of_model(path: Path) -> tuple[Path, ...]:
    """Other files that a model file refers to, as far as it can be read; nothing is refused."""
    suffix = path.suffix.lower()
    both: tuple[Framework | ModelReader, ...] = (*frameworks(), *readers())
    reader = next((reader for reader in both if suffix in reader.suffixes), None)
    return () if reader is None else reader.companions(path)


def stamp_of_file(path: Path) -> object:
    """A value that changes with time, size or place of a model file and of its companions."""
    own = _status(path)
    return (str(path), *map(_status, (path, *_companions(path, own)))) if own else str(path)


def _status(file: Path) -> tuple[object, ...]:
    try:
        status = file.stat()
    except OSError:
        return ()
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


@lru_cache
def _companions(path: Path, status: tuple[object, ...]) -> tuple[Path, ...]:
    """Other files of a model; it is read for their names once for each `status`."""
    return companions_of_model(path)
