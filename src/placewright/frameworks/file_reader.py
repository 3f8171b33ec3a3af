"""Reading of models as files of a framework's own format, with conversion and its cache."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from placewright.errors import InputError, StalePlanError
from placewright.execution.exported_program import ProgramFile
from placewright.execution.framework import (
    BuiltModule,
    Find,
    FoundModel,
    ModelInMemory,
    ReadOptions,
)
from placewright.execution.state_pairs import asked_of
from placewright.io.content import content_hash, existing_path, one_line
from placewright.io.lost_cache import folder_instead, tell_lost_cache
from placewright.io.scratch import scratch_folder
from placewright.io.written import move_files

if TYPE_CHECKING:
    from placewright.core.graph import ComputationGraph
    from placewright.core.source import ModelSource

_LOG = logging.getLogger(__name__)
Model = TypeVar("Model")


class ConvertsModule(Protocol):
    """A function that converts a PyTorch module to a file of the framework's own format."""

    def __call__(
        self,
        name: str,
        module: Any,
        example_inputs: Sequence[Any],
        input_names: Sequence[str],
        *,
        version: str,
    ) -> Path: ...


@dataclass(frozen=True)
class FileReader:
    """Reader of files, and of models that are converted to files first.

    Attributes:
        read_file: reads a file of the framework's own format, with `shapes`, `fold_constants` and,
            if there is any, `state`.
        files_of: lists all files of the model at a path.
        file_of_module: converts a PyTorch module once, and returns the file.
        file_of_program: converts a PyTorch program in a file once, and returns the file.
    """

    read_file: Callable[..., tuple[ComputationGraph, ModelSource]]
    files_of: Callable[[Path], tuple[Path, ...]]
    file_of_module: ConvertsModule
    file_of_program: Callable[[ProgramFile], Path]

    def read(
        self, name: str, find: Find, options: ReadOptions
    ) -> tuple[ComputationGraph, ModelSource]:
        """See `Framework.read`."""
        model = find(name)
        built = model.build(False) if isinstance(model, ModelInMemory) else None
        state = {"state": options.state} if options.state else {}
        graph, source = self.read_file(
            self._file(model, built),
            shapes=options.shapes,
            fold_constants=options.fold_constants,
            **state,
        )
        return graph, source if built is None else replace(built.named_ports(source), path=name)

    def again(self, source: ModelSource, find: Find) -> tuple[ComputationGraph, ModelSource]:
        """See `Framework.again`."""
        fold = source.options.get("fold_constants") != "no"
        state = asked_of(source.options)
        return self.read(source.path, find, ReadOptions(source.shapes, fold, state=state))

    def runnable(self, source: ModelSource, find: Find) -> ModelSource:
        """See `Framework.runnable`."""
        model = find(source.path)
        if isinstance(model, ModelInMemory):
            source = replace(source, path=str(self._file(model, model.build(False))))
        path = existing_path(source.path)
        digest = content_hash(path if path.is_dir() else path.parent, self.files_of(path))
        if digest != source.sha256:
            raise StalePlanError(
                f"model '{source.path}' has changed: its sha256 is {digest[:12]}, expected "
                f"{source.sha256[:12]}; place it again"
            )
        return source

    def _file(self, model: FoundModel, built: BuiltModule | None) -> Path:
        if isinstance(model, ModelInMemory):
            assert built is not None
            name = model.name.partition(":")[2]  # without its origin, such as ``zoo:``
            return self.file_of_module(
                name, built.module, built.example_inputs, built.input_names, version=model.version
            )
        return self.file_of_program(model) if isinstance(model, ProgramFile) else model


def converted_file(
    name: str,
    key: Sequence[object],
    suffix: str,
    convert: Callable[[], Model],
    save: Callable[[Model, Path], None],
    folder: Path | None = None,
) -> Path:
    """Return the file of a converted model, and make it if it does not exist yet.

    If the cache folder cannot be written to, the file is in a temporary folder, after a warning.
    Args:
        name: of the model; the file's name starts with it.
        key: everything on which the result depends; another key makes another file.
        suffix: of the file.
        convert: makes the model.
        save: writes the model to a path, and its other files into the same folder.
        folder: of the files; None is ``placewright/models`` in the user's cache folder.

    Raises:
        InputError: the file cannot be written to `folder`, or to the temporary folder.
    """
    home = _cache_folder() if folder is None else folder
    text = "\0".join(map(str, (name, *key)))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    target = home / f"{name.replace('/', '-')}-{digest}{suffix}"
    if target.exists():
        return target
    _LOG.info("converting %s to %s", name, target)
    model = convert()
    try:
        return _saved(model, target, save)
    except (OSError, RuntimeError, ValueError) as error:
        if folder is not None:
            raise InputError(f"file '{target}' cannot be written: {one_line(error)}") from None
        tell_lost_cache(home, one_line(error))
    try:
        return _saved(model, folder_instead() / target.name, save)
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"file '{target}' cannot be written: {one_line(error)}") from None


def _saved(model: Model, target: Path, save: Callable[[Model, Path], None]) -> Path:
    """Save a model as `target`.

    Raises:
        OSError, RuntimeError, ValueError: it cannot be saved; `target` is unchanged.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(target.parent, ".converting-") as scratch:
        made = scratch / target.name
        save(model, made)
        besides = [file for file in sorted(scratch.iterdir()) if file != made]
        # The model comes last, so that its data are complete once it exists.
        move_files({file: target.with_name(file.name) for file in (*besides, made)})
    return target


def _cache_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("placewright")) / "models"
