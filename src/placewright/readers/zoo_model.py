"""A PyTorch module as an OpenVINO IR file: what the OpenVINO runtime reads for a zoo model."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.errors import InputError, MissingExtraError
from placewright.readers.content import one_line

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger(__name__)


def openvino_model_of(
    module: torch.nn.Module, example_inputs: Sequence[torch.Tensor], input_names: Sequence[str] = ()
) -> Any:
    """Convert a module through ``torch.export``.

    Input shapes are those of the examples, and what depends on shapes alone is folded.

    Args:
        module: in evaluation mode.
        example_inputs: positional inputs.
        input_names: names of the inputs in the result; empty keeps those of ``forward``.

    Returns:
        An ``openvino.Model``.

    Raises:
        InputError: the module cannot be exported or converted.
        MissingExtraError: torch or openvino is not installed.
    """
    torch, openvino = _libraries()
    try:
        with torch.no_grad():
            program = torch.export.export(module, tuple(example_inputs))
        model = openvino.convert_model(program)
    except Exception as error:  # both raise whatever the module's code or an operator leads to
        raise InputError(
            f"module {type(module).__name__} cannot be converted: {one_line(error)}"
        ) from error
    for number, (port, example) in enumerate(zip(model.inputs, example_inputs, strict=True)):
        if input_names:
            port.get_tensor().set_names({input_names[number]})
            port.get_node().set_friendly_name(input_names[number])
        port.get_node().set_partial_shape(openvino.PartialShape(list(example.shape)))
    model.validate_nodes_and_infer_types()
    from openvino.passes import ConstantFolding, Manager

    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(model)
    return model


def openvino_file_of(
    name: str,
    module: torch.nn.Module,
    example_inputs: Sequence[torch.Tensor],
    input_names: Sequence[str] = (),
    *,
    version: str = "",
    folder: Path | None = None,
) -> Path:
    """The IR file (f32 weights) of a module, converted once and then found again.

    The name holds a hash of `name`, `version`, the example inputs' shapes and the versions of
    torch and openvino: a change of any of them makes another file.

    Args:
        name: of the model.
        module: in evaluation mode.
        example_inputs: positional inputs.
        input_names: names of the inputs.
        version: of whatever determines architecture and weights.
        folder: where files are kept; None is ``placewright/models`` in the user's cache folder.

    Raises:
        InputError: the module cannot be converted, or the file cannot be written.
        MissingExtraError: torch or openvino is not installed.
    """
    torch, openvino = _libraries()
    kept = _cache_folder() if folder is None else folder
    shapes = [tuple(example.shape) for example in example_inputs]
    key = "\0".join(map(str, (name, version, shapes, torch.__version__, openvino.__version__)))
    stem = f"{name.replace('/', '-')}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    target = kept / f"{stem}.xml"
    if target.exists() and target.with_suffix(".bin").exists():
        return target
    _LOG.info("converting %s to %s", name, target)
    model = openvino_model_of(module, example_inputs, input_names)
    try:
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept) as scratch:
            made = Path(scratch) / f"{stem}.xml"
            openvino.save_model(model, str(made), compress_to_fp16=False)
            # Weights first: whoever finds the .xml finds its .bin complete.
            os.replace(made.with_suffix(".bin"), target.with_suffix(".bin"))
            os.replace(made, target)
    except (OSError, RuntimeError) as error:
        raise InputError(f"file '{target}' cannot be written: {one_line(error)}") from None
    return target


def _cache_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("placewright")) / "models"


def _libraries() -> tuple[Any, Any]:
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", "converting a PyTorch module") from None
    try:
        import openvino
    except ImportError:
        raise MissingExtraError("openvino", "openvino", "converting a PyTorch module") from None
    return torch, openvino
