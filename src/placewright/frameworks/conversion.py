"""Frameworks that read files of their own, to which PyTorch models are converted.

Each model is converted once. Without a cache folder it is converted once per process.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from placewright.errors import InputError, StalePlanError
from placewright.execution.exported_program import Interface, ProgramFile
from placewright.execution.framework import (
    BuiltModule,
    Find,
    FoundModel,
    ModelInMemory,
    ReadOptions,
)
from placewright.execution.state_pairs import asked_of
from placewright.io.content import content_hash, existing_path, one_line
from placewright.io.scratch import folder_instead, scratch_folder, tell_lost_cache
from placewright.io.written import move_files

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from placewright.core.graph import ComputationGraph
    from placewright.core.problem import Objective
    from placewright.core.source import ModelSource

_LOG = logging.getLogger(__name__)
_LONGEST_NAME = 150  # bytes, as file systems allow no more than 255 with all that is added
# Change it if the interface of a .pt2 file would be written otherwise, or a program refused.
_INTERFACE = "interface 2"
_MADE_INSTEAD: dict[Path, Path] = {}  # file of the cache -> that in the temporary folder


class Converter(ABC):
    """A library's converter, with a cache of the files that it made."""

    suffix: ClassVar[str]  # of the files
    number: ClassVar[int]  # increase it if the same model would be converted to another file

    @abstractmethod
    def versions(self) -> tuple[str, ...]:
        """Versions of the libraries that take part.

        Raises:
            MissingExtraError: a library is not installed.
        """

    @abstractmethod
    def of_module(
        self,
        module: torch.nn.Module,
        example_inputs: Sequence[torch.Tensor],
        input_names: Sequence[str],
    ) -> Any:
        """Convert a module in evaluation mode; empty `input_names` keep those of ``forward``.

        Raises:
            InputError: it cannot be converted.
        """

    @abstractmethod
    def of_program(self, program: ExportedProgram, path: str, input_names: Sequence[str]) -> Any:
        """Convert a program, which came from the file at a path.

        Raises:
            InputError: it cannot be converted.
        """

    @abstractmethod
    def keep_interface(self, model: Any, interface: Interface) -> None:
        """Write the interface of a PyTorch program into the model made of it."""

    @abstractmethod
    def save(self, model: Any, path: Path) -> None:
        """Write the model to a path, and its other files into the same folder.

        The model cannot be used afterwards.
        """

    def file_of_module(
        self,
        name: str,
        module: torch.nn.Module,
        example_inputs: Sequence[torch.Tensor],
        input_names: Sequence[str] = (),
        *,
        version: str = "",
        folder: Path | None = None,
    ) -> Path:
        """Convert a module to a file, once; later calls return the same file.

        The file's name holds a hash of `name`, `version`, the example inputs' shapes and
        `versions`: a change of any of them makes another file.

        Args:
            module: in evaluation mode.
            example_inputs: positional inputs; their shapes are fixed.
            input_names: names of the inputs; empty keeps those of ``forward``.
            version: of whatever determines architecture and weights.
            folder: of the files; None is ``placewright/models`` in the user's cache folder.

        Raises:
            InputError: the module cannot be converted, or the file cannot be written.
            MissingExtraError: a library is not installed.
        """
        shapes = [tuple(example.shape) for example in example_inputs]
        return self._file(
            name,
            [version, shapes],
            lambda: self.of_module(module, example_inputs, input_names),
            folder,
        )

    def file_of_program(self, held: ProgramFile, *, folder: Path | None = None) -> Path:
        """Convert a program in a file to a file, once; later calls find it by content.

        Raises:
            InputError: it cannot be read or converted, or the result not written.
            FileFormatError: the file is damaged, or holds more than data.
            MissingExtraError: a library is not installed.
        """
        digest = content_hash(held.path.parent, [held.path])

        def convert() -> Any:
            program, interface = held.load(held.path)
            model = self.of_program(program, str(held.path), interface.inputs)
            self.keep_interface(model, interface)
            return model

        return self._file(held.path.stem, [digest, _INTERFACE], convert, folder)

    def _file(
        self, name: str, key: Sequence[object], convert: Callable[[], Any], folder: Path | None
    ) -> Path:
        """The file of a converted model, which is made if it does not exist yet.

        If the cache folder cannot be written to, the file is in a temporary folder, after a
        warning, and is removed when the process ends.

        Args:
            name: of the model; the file's name starts with its beginning.
            key: everything on which the result depends; another key makes another file.
            convert: makes the model, a second time if it could not be saved.
            folder: of the files; None is ``placewright/models`` in the user's cache folder.

        Raises:
            InputError: the file cannot be written to `folder`, or to the temporary folder.
        """
        home = _cache_folder() if folder is None else folder
        text = "\0".join(map(str, (name, self.number, *key, *self.versions())))
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        shown = name.replace("/", "-").encode()[:_LONGEST_NAME].decode(errors="ignore")
        target = home / f"{shown}-{digest}{self.suffix}"
        made = _MADE_INSTEAD.get(target, target)
        if os.path.exists(made):  # False as well if the folder is closed to us
            return made
        _LOG.info("converting %s to %s", name, target)
        reason = self._made(convert, target)
        if reason and folder is None:
            tell_lost_cache(home, reason)
            with contextlib.suppress(OSError):  # else the first reason stays
                made = _MADE_INSTEAD[target] = folder_instead() / target.name
            if made != target:
                reason = self._made(convert, made)
        if reason:
            raise InputError(f"file '{target}' cannot be written: {reason}")
        return made

    def _made(self, convert: Callable[[], Any], target: Path) -> str:
        """Convert a model and save it as `target`.

        Returns:
            "", or the reason why it cannot be saved; `target` is unchanged then. Nothing is
            converted for a folder to which nobody can write.
        """
        with contextlib.ExitStack() as stack:
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                scratch = stack.enter_context(scratch_folder(target.parent, ".converting-"))
            except OSError as error:
                return one_line(error)
            model, made = convert(), scratch / target.name
            try:
                self.save(model, made)
                besides = [file for file in sorted(scratch.iterdir()) if file != made]
                # The model comes last, so that its data are complete once it exists.
                move_files({file: target.with_name(file.name) for file in (*besides, made)})
            except (OSError, RuntimeError, ValueError) as error:
                return one_line(error)
        return ""


def _cache_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("placewright")) / "models"


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
        model, reader = find(name), self.reader()
        built = _built(model)
        state = {"state": options.state} if options.state else {}
        graph, source = reader.read_file(
            _file(reader.converter, model, built),
            shapes=options.shapes,
            fold_constants=options.fold_constants,
            **state,
        )
        if built is not None:
            source = built.named_ports(source)
        # A converted file is never named: it goes with the cache folder.
        return graph, source if isinstance(model, Path) else replace(source, path=name)

    def again(self, source: ModelSource, find: Find) -> tuple[ComputationGraph, ModelSource]:
        """Read a model again, with the shapes, constants and state of its source."""
        fold = source.options.get("fold_constants") != "no"
        state = asked_of(source.options)
        return FileFramework.read(
            self, source.path, find, ReadOptions(source.shapes, fold, state=state)
        )

    def runnable(self, source: ModelSource, find: Find) -> ModelSource:
        """The source with the path of a file; a model in memory or program is converted to one.

        Raises:
            StalePlanError: the file has changed.
        """
        model, reader, name = find(source.path), self.reader(), source.path
        if not isinstance(model, Path):
            file = _file(reader.converter, model, _built(model))
            source = replace(source, path=str(file))
        path = existing_path(source.path)
        digest = content_hash(path if path.is_dir() else path.parent, reader.files_of(path))
        if digest != source.sha256:
            raise StalePlanError(
                f"model '{name}' has changed: its sha256 is {digest[:12]}, expected "
                f"{source.sha256[:12]}; place it again"
            )
        return source


def _built(model: FoundModel) -> BuiltModule | None:
    return model.build(False) if isinstance(model, ModelInMemory) else None


def _file(converter: Converter, model: FoundModel, built: BuiltModule | None) -> Path:
    if isinstance(model, ModelInMemory):
        assert built is not None
        name = model.name.partition(":")[2]  # without its origin, such as ``zoo:``
        return converter.file_of_module(
            name, built.module, built.example_inputs, built.input_names, version=model.version
        )
    return converter.file_of_program(model) if isinstance(model, ProgramFile) else model
