"""Models that a framework reads as files of its own format, whatever they were before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from placewright.errors import StalePlanError
from placewright.execution.exported_program import ProgramFile
from placewright.execution.framework import (
    BuiltModule,
    Find,
    FoundModel,
    ModelInMemory,
    ReadOptions,
)
from placewright.io.content import content_hash, existing_path

if TYPE_CHECKING:
    from placewright.core.graph import ComputationGraph
    from placewright.core.source import ModelSource


class ReadsFile(Protocol):
    """A function that reads a file."""

    def __call__(
        self, path: Path, *, shapes: Mapping[str, tuple[int, ...]], fold_constants: bool
    ) -> tuple[ComputationGraph, ModelSource]: ...


@dataclass(frozen=True)
class FileReader:
    """Reads files, and what becomes a file first.

    Attributes:
        read_file: reads a file of the framework's own format.
        files_of: all files that make up the model at a path.
        file_of_module: converts (a model in memory, its module), once; then finds it again.
        file_of_program: the same for a PyTorch program in a file.
    """

    read_file: ReadsFile
    files_of: Callable[[Path], tuple[Path, ...]]
    file_of_module: Callable[[ModelInMemory, BuiltModule], Path]
    file_of_program: Callable[[ProgramFile], Path]

    def read(
        self, name: str, find: Find, options: ReadOptions
    ) -> tuple[ComputationGraph, ModelSource]:
        """See `Framework.read`."""
        found = find(name)
        built = found.build(False) if isinstance(found, ModelInMemory) else None
        graph, source = self.read_file(
            self._file(found, built), shapes=options.shapes, fold_constants=options.fold_constants
        )
        return graph, source if built is None else replace(built.named_ports(source), path=name)

    def again(self, source: ModelSource, find: Find) -> tuple[ComputationGraph, ModelSource]:
        """See `Framework.again`."""
        fold = source.options.get("fold_constants") != "no"
        return self.read(source.path, find, ReadOptions(source.shapes, fold))

    def runnable(self, source: ModelSource, find: Find) -> ModelSource:
        """See `Framework.runnable`."""
        found = find(source.path)
        if isinstance(found, ModelInMemory):
            source = replace(source, path=str(self._file(found, found.build(False))))
        path = existing_path(source.path)
        digest = content_hash(path if path.is_dir() else path.parent, self.files_of(path))
        if digest != source.sha256:
            raise StalePlanError(
                f"model '{source.path}' has changed: its sha256 is {digest[:12]}, expected "
                f"{source.sha256[:12]}; place it again"
            )
        return source

    def _file(self, found: FoundModel, built: BuiltModule | None) -> Path:
        if isinstance(found, ModelInMemory):
            assert built is not None
            return self.file_of_module(found, built)
        return self.file_of_program(found) if isinstance(found, ProgramFile) else found
