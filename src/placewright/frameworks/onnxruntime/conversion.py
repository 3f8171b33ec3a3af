"""Conversion of PyTorch models to ``.onnx`` files, which ONNX Runtime then reads."""

from __future__ import annotations

import ast
import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.errors import InputError, MissingExtraError, optional_library
from placewright.execution.exported_program import (
    EXPORTING,
    INTERFACE_KEY,
    Interface,
    plain_results,
)
from placewright.frameworks.conversion import Converter
from placewright.io.content import UniqueNames, one_line
from placewright.io.model_parts import every_message
from placewright.io.onnx_saved import save_onnx

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

_SCOPES = "pkg.torch.onnx.name_scopes"


class OnnxConverter(Converter):
    """PyTorch's exporter to ONNX."""

    suffix = ".onnx"
    number = 2

    def versions(self) -> tuple[str, ...]:
        """Versions of torch, onnx and onnxscript."""
        return tuple(str(library.__version__) for library in _libraries())

    def of_module(
        self,
        module: torch.nn.Module,
        example_inputs: Sequence[torch.Tensor],
        input_names: Sequence[str],
    ) -> Any:
        """See `Converter.of_module`."""
        what = f"module {type(module).__name__}"
        with EXPORTING, plain_results(module):
            return _exported(module, tuple(example_inputs), list(input_names) or None, what)

    def of_program(self, program: ExportedProgram, path: str, input_names: Sequence[str]) -> Any:
        """See `Converter.of_program`; names of inputs come from the program itself."""
        return _exported(program, None, None, path)

    def keep_interface(self, model: Any, interface: Interface) -> None:
        """See `Converter.keep_interface`; `kept_interface` reads it."""
        model.metadata_props.add(key=INTERFACE_KEY, value=interface.text())

    def save(self, model: Any, path: Path) -> None:
        """See `Converter.save`; weights of more than a GiB go to a file of their own."""
        save_onnx(model, path)


def _exported(model: Any, inputs: Any, input_names: list[str] | None, what: str) -> Any:
    """Export a model to an ``onnx.ModelProto`` whose nodes are named after their modules."""
    torch, _, _ = _libraries()
    try:
        with EXPORTING, torch.no_grad(), _without_warnings():
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
    for message in every_message(model):
        for note in ("metadata_props", "doc_string"):
            if note in message.DESCRIPTOR.fields_by_name:
                message.ClearField(note)


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
    torch = optional_library("torch", "torch", what)
    try:
        import onnx
        import onnxscript
    except ImportError as error:
        package = str(error.name or "onnxscript").partition(".")[0]
        raise MissingExtraError(package, "onnxruntime", what) from None
    return torch, onnx, onnxscript


def kept_interface(model: Any) -> Interface | None:
    """Read the interface that `OnnxConverter.keep_interface` wrote; None if there is none."""
    for entry in model.metadata_props:
        if entry.key == INTERFACE_KEY:
            return Interface.of_text(entry.value)
    return None
