"""Exported programs with open dimensions, exported again with fixed ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from placewright.errors import InputError
from placewright.execution.exported_program import tensor_inputs
from placewright.io.content import one_line

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_LOG = logging.getLogger(__name__)


def has_open_dimensions(program: ExportedProgram) -> bool:
    """True where an input has a dimension that is a symbol."""
    return any(not isinstance(d, int) for value in _inputs(program).values() for d in value.shape)


def fixed_program(
    program: ExportedProgram, shapes: Mapping[str, tuple[int, ...]]
) -> ExportedProgram:
    """The program for one shape of each input; the same program where no dimension is open.

    Args:
        program: as it was loaded.
        shapes: input name -> dimensions; other inputs keep those of the example inputs.

    Raises:
        InputError: the program does not take these shapes.
    """
    if not has_open_dimensions(program):
        return program
    import torch
    from torch.export.graph_signature import TensorArgument

    values = _inputs(program)
    wanted = {name: _shape(name, value, shapes.get(name)) for name, value in values.items()}
    _check_ranges(program, values, wanted)
    made = iter(
        torch.zeros(wanted[name], dtype=value.dtype, device=value.device)
        for name, value in values.items()
    )
    pytree = torch.utils._pytree
    leaves = [
        next(made) if isinstance(argument, TensorArgument) else getattr(argument, "value", None)
        for argument in _arguments(program)
    ]
    positional, named = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    try:
        with torch.no_grad():
            module = program.module(check_guards=False)
            found: ExportedProgram = torch.export.export(module, positional, named, strict=False)
    except Exception as error:  # whatever an operator leads to
        listed = ", ".join(f"{name}={list(shape)}" for name, shape in wanted.items())
        raise InputError(
            f"argument `shapes`: the exported PyTorch model does not take {listed}: "
            f"{one_line(error)}"
        ) from error
    return found


def _check_ranges(
    program: ExportedProgram, values: Mapping[str, Any], wanted: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuse what the program was not exported for: other ranks, ranges, or unequal symbols."""
    known: dict[str, int] = {}
    for name, value in values.items():
        shape = wanted[name]
        fault = f"argument `shapes` {name}: the exported PyTorch model takes {list(value.shape)}"
        if len(shape) != len(value.shape):
            raise InputError(f"{fault}, not {list(shape)}")
        for extent, d in zip(shape, value.shape, strict=True):
            if isinstance(d, int):
                if extent != d:
                    raise InputError(f"{fault}, not {list(shape)}")
                continue
            allowed = program.range_constraints.get(d.node.expr)
            if allowed is not None and not allowed.lower <= extent <= allowed.upper:
                raise InputError(
                    f"{fault} with {d} from {allowed.lower} to {allowed.upper}, got {extent}"
                )
            if known.setdefault(str(d), extent) != extent:
                raise InputError(f"{fault} with one {d}, got {known[str(d)]} and {extent}")


def _shape(name: str, value: Any, wanted: tuple[int, ...] | None) -> tuple[int, ...]:
    example = tuple(d if isinstance(d, int) else int(d.node.hint) for d in value.shape)
    if wanted is not None:
        return tuple(wanted)
    if any(not isinstance(d, int) for d in value.shape):
        _LOG.warning(
            "input '%s' has open dimensions; taking %s of its example (argument `shapes` chooses "
            "others)", name, list(example),
        )  # fmt: skip
    return example


def _inputs(program: ExportedProgram) -> dict[str, Any]:
    """Name of each tensor input -> the value that stands for it in the graph."""
    held = {node.name: node.meta.get("val") for node in program.graph.nodes}
    return {name: held[name] for name in tensor_inputs(program)}


def _arguments(program: ExportedProgram) -> list[Any]:
    """The flattened arguments of a call, tensors and constants."""
    from torch.export.graph_signature import InputKind

    specs = program.graph_signature.input_specs
    return [spec.arg for spec in specs if spec.kind == InputKind.USER_INPUT]
