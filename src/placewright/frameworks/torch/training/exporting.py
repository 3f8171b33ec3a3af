"""Export of a module in the modes of training."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.errors import InputError
from placewright.frameworks.torch.pt2.file import load_program
from placewright.frameworks.torch.reading.calls import draws_random_numbers
from placewright.frameworks.torch.reading.reader import export_reason, exported_module
from placewright.frameworks.torch.training.eager import EagerStep, eager_step
from placewright.io.content import existing_path

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

_LOG = logging.getLogger(__name__)


def exported_step(
    model: torch.nn.Module | Path | str, example_inputs: Any, *, dropout: bool
) -> tuple[ExportedProgram, EagerStep | None]:
    """Export a module in the modes of training, and run a step of it in these.

    Parts that the user has in evaluation mode stay in it, such as frozen batch normalisation. A
    module that is in evaluation mode as a whole trains as after ``train()``.

    Args:
        model: a module, or the path of a ``.pt2`` file, which has no other mode.
        example_inputs: positional inputs, or a mapping by the names of its arguments.
        dropout: False switches parts to evaluation mode that draw random numbers.

    Raises:
        InputError: the module cannot be exported.
    """
    if isinstance(model, Path | str):
        return load_program(existing_path(model)), None
    modes = {part: part.training for part in model.modules()}
    try:
        _set_modes(model, modes, dropout)
        exported = _exported(model, example_inputs, dropout)
        return exported, eager_step(model, example_inputs)
    except InputError:
        raise
    except Exception as error:  # tracing runs the module's own code
        raise InputError(
            f"module {type(model).__name__} cannot be exported: {export_reason(error)}"
        ) from error
    finally:
        for part, mode in modes.items():
            part.training = mode


def _exported(model: torch.nn.Module, examples: Any, dropout: bool) -> ExportedProgram:
    """Export a module in its modes; without dropout, nothing in the program draws numbers."""
    if dropout:
        return exported_module(model, examples)
    try:
        exported = exported_module(model, examples)
        while _switch_off(model, exported):
            exported = exported_module(model, examples)
        return exported
    except InputError:
        raise
    except Exception as error:  # a branch on random numbers, such as layers left out at random
        _set_evaluation(model)
        exported = exported_module(model, examples)
        _LOG.warning(
            "module %s cannot be exported in training mode (%s): all of it but batch normalisation "
            "trains in evaluation mode; with dropout it is refused instead",
            type(model).__name__,
            export_reason(error),
        )
        return exported


def _set_modes(model: torch.nn.Module, modes: Mapping[Any, bool], dropout: bool) -> None:
    """Set the modes in which a step is traced."""
    import torch

    own = model.training
    for part, mode in modes.items():
        drops = (
            isinstance(part, torch.nn.RNNBase | torch.nn.MultiheadAttention) and part.dropout > 0
        )
        is_random = drops or isinstance(part, torch.nn.modules.dropout._DropoutNd)
        part.training = (mode or not own) and (dropout or not is_random)


def _set_evaluation(model: torch.nn.Module) -> None:
    import torch

    for part in model.modules():
        part.training = isinstance(part, torch.nn.modules.batchnorm._BatchNorm)


def _switch_off(model: torch.nn.Module, exported: ExportedProgram) -> bool:
    """Set evaluation mode in parts whose own calls draw random numbers; return whether any was."""
    changed = False
    for node in exported.graph.nodes:
        if node.op == "call_function" and draws_random_numbers(node):
            paths = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
            part = model.get_submodule(paths[-1]) if paths else model
            changed |= part.training
            part.training = False
    return changed
