"""Conversion of PyTorch models to ``.onnx`` files, which ONNX Runtime then reads."""

from __future__ import annotations

import ast
import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.errors import InputError, MissingExtraError
from placewright.execution.exported_program import (
    INTERFACE_KEY,
    Interface,
    ProgramFile,
    plain_results,
)
from placewright.frameworks.file_reader import converted_file
from placewright.io.content import UniqueNames, content_hash, one_line

if TYPE_CHECKING:
    import torch

_EXPORT = 1  # increase it if the same model would be exported to another file
_INTERFACE = "interface 1"  # change it if the interface of a .pt2 file would be written otherwise
_LARGEST_MESSAGE = 1 << 30  # bytes; a protocol buffer ends at 2 GiB
_SCOPES = "pkg.torch.onnx.name_scopes"


def onnx_file_of(
    name: str,
    module: torch.nn.Module,
    example_inputs: Sequence[torch.Tensor],
    input_names: Sequence[str] = (),
    *,
    version: str = "",
    folder: Path | None = None,
) -> Path:
    """Export a module to an ``.onnx`` file, once; later calls return the same file.

    The file's name holds a hash of `name`, `version`, the example inputs' shapes and the versions
    of torch, onnx and onnxscript: a change of any of them makes another file.

    Args:
        name: of the model.
        module: in evaluation mode.
        example_inputs: positional inputs; their shapes are fixed.
        input_names: names of the inputs.
        version: of whatever determines architecture and weights.
        folder: of the files; None is ``placewright/models`` in the user's cache folder.

    Raises:
        InputError: the module cannot be exported, or the file cannot be written.
        MissingExtraError: torch, onnx or onnxscript is not installed.
    """
    shapes = [tuple(example.shape) for example in example_inputs]

    def export() -> Any:
        what = f"module {type(module).__name__}"
        with plain_results(module):
            return _exported(module, tuple(example_inputs), list(input_names) or None, what)

    return _file(name, [version, shapes], export, folder)


def onnx_file_of_program(held: ProgramFile, *, folder: Path | None = None) -> Path:
    """Export a program in a file to an ``.onnx`` file, once; later calls find it by content.

    Raises:
        InputError: it cannot be read or exported, or the result not written.
        FileFormatError: the file is damaged, or holds more than data.
        MissingExtraError: torch, onnx or onnxscript is not installed.
    """
    digest = content_hash(held.path.parent, [held.path])

    def export() -> Any:
        program, interface = held.load(held.path)
        model = _exported(program, None, None, str(held.path))
        keep_interface(model, interface)
        return model

    return _file(held.path.stem, [digest, _INTERFACE], export, folder)


def _exported(model: Any, inputs: Any, input_names: list[str] | None, what: str) -> Any:
    """Export a model to an ``onnx.ModelProto`` whose nodes are named after their modules."""
    torch, _, _ = _libraries()
    try:
        with torch.no_grad(), _without_warnings():
            program = torch.onnx.export(
                model, inputs, input_names=input_names, dynamo=True, verbose=False
            )
        made = program.model_proto
    except Exception as error:  # tracing runs the module's own code
        raise InputError(f"{what} cannot be exported to ONNX: {one_line(error)}") from error
    _name_by_module(made)
    return made


def _name_by_module(model: Any) -> None:
    """Name nodes after their modules, such as ``encoder.layer.3.output.dense/MatMul``.

    All other notes of the exporter, such as paths of source files, are removed.
    """
    unique = UniqueNames()
    for node in model.graph.node:
        notes = {entry.key: entry.value for entry in node.metadata_props}
        scopes = ast.literal_eval(notes.get(_SCOPES, "[]"))
        module = str(scopes[-2]) if len(scopes) > 1 else ""
        node.name = unique(f"{module}/{node.op_type}" if module else node.op_type)
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        value.ClearField("metadata_props")
    model.ClearField("metadata_props")
    model.graph.ClearField("metadata_props")


def _file(name: str, key: Sequence[object], make: Callable[[], Any], folder: Path | None) -> Path:
    torch, onnx, onnxscript = _libraries()

    def save(model: Any, path: Path) -> None:
        size = sum(len(held.raw_data) for held in model.graph.initializer)
        is_large, data = size > _LARGEST_MESSAGE, f"{path.name}.data"
        onnx.save(model, str(path), save_as_external_data=is_large, location=data)

    versions = (torch.__version__, onnx.__version__, onnxscript.__version__)
    return converted_file(name, (_EXPORT, *key, *versions), ".onnx", make, save, folder)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress remarks about packages that a model does not need and constants not folded."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _libraries() -> tuple[Any, Any, Any]:
    what = "exporting a PyTorch model to ONNX"
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", what) from None
    try:
        import onnx
        import onnxscript
    except ImportError as error:
        package = str(error.name or "onnxscript").partition(".")[0]
        raise MissingExtraError(package, "onnxruntime", what) from None
    return torch, onnx, onnxscript


def keep_interface(model: Any, interface: Interface) -> None:
    """Write the interface of a PyTorch program into the ``onnx.ModelProto`` made of it."""
    model.metadata_props.add(key=INTERFACE_KEY, value=interface.text())


def kept_interface(model: Any) -> Interface | None:
    """Read the interface that `keep_interface` wrote; None if there is none."""
    for entry in model.metadata_props:
        if entry.key == INTERFACE_KEY:
            return Interface.of_text(entry.value)
    return None
