"""Frameworks that read files of a format of their own, to which they convert other models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from placewright.errors import StalePlanError
from placewright.execution.exported_program import ProgramFile
from placewright.execution.framework import (
    BuiltModule,
    Find,
    FoundModel,
    ModelInMemory,
    ReadOptions,
)
from placewright.execution.state_pairs import asked_of
from placewright.io.content import content_hash, existing_path

if TYPE_CHECKING:
    from placewright.core.graph import ComputationGraph
    from placewright.core.problem import Objective
    from placewright.core.source import ModelSource
    from placewright.frameworks.conversion import Converter


@dataclass(frozen=True)
class FileReader:
    """Functions of a library that reads files."""

    # reads a file of the framework's own format, with `shapes`, `fold_constants` and, if there is
    # any, `state`
    read_file: Callable[..., tuple[ComputationGraph, ModelSource]]
    files_of: Callable[[Path], tuple[Path, ...]]  # lists all files of the model at a path
    converter: Converter  # converts PyTorch models to files of that format


class FileFramework(ABC):
    """The part of a `Framework` that follows from its reader of files."""

    objectives: ClassVar[tuple[Objective, ...]] = ("latency", "throughput")
    instead: ClassVar[Mapping[str, str]] = MappingProxyType({})
    reads_modules: ClassVar[bool] = False
    reads_folders: ClassVar[bool] = False
    fuses_ops: ClassVar[bool] = True
    converts_programs: ClassVar[bool] = True
    compile_options: ClassVar[Mapping[str, str]] = MappingProxyType({})  # it always compiles

    @abstractmethod
    def reader(self) -> FileReader:
        """The functions of the library, which is imported for them."""

    def read(
        self, name: str, find: Find, options: ReadOptions
    ) -> tuple[ComputationGraph, ModelSource]:
        """Read a file of the framework's own format, to which other models are converted first."""
        return self._read(name, find, options)

    def again(self, source: ModelSource, find: Find) -> tuple[ComputationGraph, ModelSource]:
        """Read a model again, with the shapes, constants and state of its source."""
        fold = source.options.get("fold_constants") != "no"
        state = asked_of(source.options)
        return self._read(source.path, find, ReadOptions(source.shapes, fold, state=state))

    def runnable(self, source: ModelSource, find: Find) -> ModelSource:
        """The source with the path of a file; a model in memory is converted to one.

        Raises:
            StalePlanError: the file has changed.
        """
        model, reader = find(source.path), self.reader()
        if isinstance(model, ModelInMemory):
            file = _file(reader.converter, model, model.build(False))
            source = replace(source, path=str(file))
        path = existing_path(source.path)
        digest = content_hash(path if path.is_dir() else path.parent, reader.files_of(path))
        if digest != source.sha256:
            raise StalePlanError(
                f"model '{source.path}' has changed: its sha256 is {digest[:12]}, expected "
                f"{source.sha256[:12]}; place it again"
            )
        return source

    def _read(
        self, name: str, find: Find, options: ReadOptions
    ) -> tuple[ComputationGraph, ModelSource]:
        model, reader = find(name), self.reader()
        built = model.build(False) if isinstance(model, ModelInMemory) else None
        state = {"state": options.state} if options.state else {}
        graph, source = reader.read_file(
            _file(reader.converter, model, built),
            shapes=options.shapes,
            fold_constants=options.fold_constants,
            **state,
        )
        return graph, source if built is None else replace(built.named_ports(source), path=name)


def _file(converter: Converter, model: FoundModel, built: BuiltModule | None) -> Path:
    if isinstance(model, ModelInMemory):
        assert built is not None
        name = model.name.partition(":")[2]  # without its origin, such as ``zoo:``
        return converter.file_of_module(
            name, built.module, built.example_inputs, built.input_names, version=model.version
        )
    return converter.file_of_program(model) if isinstance(model, ProgramFile) else model
