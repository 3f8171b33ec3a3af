"""Inputs, outputs and state of an exported program, as its module's caller sees them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placewright.execution.exported_program import tensor_inputs

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


@dataclass(frozen=True)
class FxInterface:
    """The tensors that a program takes and returns, nested arguments flattened.

    Attributes:
        inputs: placeholders, in the order of positional, then named arguments.
        input_names: ``x``, ``pair_0``, ``options_scale``: as PyTorch calls them.
        outputs: nodes that hold the outputs, in the order of the module's own result.
        output_names: the path of each in the result: a key, ``output_0`` in a tuple, ``output``
            where there is only one.
        state: paths of all parameters and buffers, those that no op reads among them.
    """

    inputs: tuple[str, ...]
    input_names: tuple[str, ...]
    outputs: tuple[str, ...]
    output_names: tuple[str, ...]
    state: tuple[str, ...]

    @classmethod
    def of(cls, program: ExportedProgram) -> FxInterface:
        """The interface of any exported program, functional or not."""
        from torch.export.graph_signature import OutputKind, TensorArgument

        inputs = [str(name) for name in tensor_inputs(program)]
        specs = program.graph_signature.output_specs
        of_user = [spec.arg for spec in specs if spec.kind == OutputKind.USER_OUTPUT]
        found = [
            (str(argument.name), name)
            for argument, name in zip(of_user, _paths(program, len(of_user)), strict=True)
            if isinstance(argument, TensorArgument)
        ]
        state = dict.fromkeys([*program.state_dict, *program.graph_signature.buffers])
        return cls(
            tuple(inputs),
            tuple(inputs),
            tuple(node for node, _ in found),
            tuple(name for _, name in found),
            tuple(state),
        )


def tensors_in(example_inputs: Any) -> list[torch.Tensor]:
    """The tensors in nested arguments, flattened as PyTorch does."""
    import torch

    leaves = torch.utils._pytree.tree_leaves(example_inputs)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def called(program: ExportedProgram, module: Any, values: Sequence[torch.Tensor]) -> list[Any]:
    """Call the module of a program with the values of all its tensor inputs, in their order.

    Returns:
        The tensors of its result, flattened.
    """
    import torch
    from torch.export.graph_signature import InputKind, TensorArgument

    pytree = torch.utils._pytree
    left = iter(values)
    leaves = [
        next(left) if isinstance(spec.arg, TensorArgument) else getattr(spec.arg, "value", None)
        for spec in program.graph_signature.input_specs
        if spec.kind == InputKind.USER_INPUT
    ]
    in_spec = program.call_spec.in_spec
    positional, named = pytree.tree_unflatten(leaves, in_spec)
    return tensors_in(module(*positional, **named))


def plain_call(program: ExportedProgram) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    """A function that runs the program as its own library does: values in, outputs out.

    State that the program changes is as it was afterwards.
    """
    import torch

    @functools.cache
    def made() -> Any:
        return program.module(check_guards=False)

    def run(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        module = made()
        kept = {name: value.detach().clone() for name, value in module.named_buffers()}
        with torch.no_grad():
            # A result may be a buffer itself, which is put back below.
            found = [value.clone() for value in called(program, module, values)]
            for name, value in module.named_buffers():
                value.copy_(kept[name])
        return found

    return run


def _paths(program: ExportedProgram, n_outputs: int) -> list[str]:
    """A name for each leaf of the result."""
    import torch

    pytree = torch.utils._pytree
    spec = program.call_spec.out_spec
    numbered = [f"output_{at}" for at in range(n_outputs)] if n_outputs != 1 else ["output"]
    if spec is None or spec.num_leaves != n_outputs:
        return numbered
    try:
        paths, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(numbered, spec))
    except Exception:  # a class of the user's own that does not tell its keys
        return numbered
    return [_name(path) for path, _ in paths]


def _name(path: Sequence[Any]) -> str:
    import torch

    pytree = torch.utils._pytree
    parts = []
    for key in path:
        if isinstance(key, pytree.MappingKey):
            parts.append(str(key.key))
        elif isinstance(key, pytree.GetAttrKey):
            parts.append(str(key.name))
        else:
            parts.append(str(getattr(key, "idx", key)))
    starts_with_a_name = bool(path) and not isinstance(path[0], pytree.SequenceKey)
    return "_".join(parts if starts_with_a_name else ["output", *parts])
