"""A functional PyTorch graph with its state: what a runtime executes, segment by segment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from placewright.core.graph import ComputationGraph
from placewright.core.source import ModelSource
from placewright.errors import InputError
from placewright.frameworks.torch.reading.fx_interface import FxInterface, plain_call, tensors_in

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

_SEED = 20170612  # of example values where a program carries none


def no_plain_call(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Of a program that was made without a model behind it."""
    raise InputError("this program has no model behind it that could be run unsplit")


@dataclass(frozen=True)
class FxProgram:
    """One inference or one training step. Ops of the computation graph are its calls, by name.

    Attributes:
        module: placeholders, calls of functional ATen operators with ``meta["val"]``, the output.
        state: placeholder -> parameter, buffer, optimizer state or constant; tied ones are one
            tensor object.
        inputs: placeholders of the graph inputs, in the order of the graph's input tensors.
        outputs: nodes that hold the graph outputs; of a training step the loss alone.
        updates: state placeholder -> node that holds its value after the step; empty for inference.
        example_inputs: graph input placeholder -> a valid value.
        plain: runs the model as PyTorch does, without our graph: values of all inputs in their
            order -> all outputs in theirs; state stays as it is.
    """

    module: torch.fx.GraphModule
    state: Mapping[str, torch.Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    updates: Mapping[str, str] = field(default_factory=dict)
    example_inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    plain: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]] = no_plain_call


@dataclass(frozen=True)
class ReadProgram:
    """A PyTorch model or training step, read.

    Attributes:
        graph: its ops; a training step's have phases, colocation classes and resident bytes.
        source: where it came from.
        program: what a runtime executes.
    """

    graph: ComputationGraph
    source: ModelSource
    program: FxProgram


def inference_program(
    program: ExportedProgram, examples: Any = (), original: ExportedProgram | None = None
) -> FxProgram:
    """A functional exported program as it stands.

    Args:
        program: from `frameworks.torch.reading.inference.functional_program`.
        examples: arguments that hold one tensor per input; none takes those that the program
            carries, else made-up ones.
        original: the program before it was made functional.
    """
    import torch

    interface = FxInterface.of(program)
    nodes = {node.name: node for node in program.graph.nodes}
    inputs = [nodes[name] for name in interface.inputs]
    given = tensors_in(examples) or _carried(program)
    if len(given) != len(inputs):
        given = [example_of(node.meta["val"]) for node in inputs]
    return FxProgram(
        torch.fx.GraphModule(program.graph_module, program.graph),
        state_of(program),
        interface.inputs,
        interface.outputs,
        {},
        {node.name: value for node, value in zip(inputs, given, strict=True)},
        plain_call(program if original is None else original),
    )


def state_of(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Placeholder -> parameter, buffer or constant of an exported program, tied ones one object."""
    signature = program.graph_signature
    held: Mapping[str, Any] = {**program.constants, **program.state_dict}
    targets = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    of_memory: dict[tuple[object, ...], torch.Tensor] = {}
    state = {}
    for placeholder, target in targets.items():
        value = held[target].detach()
        state[placeholder] = of_memory.setdefault(_memory_of(value), value)
    return state


def example_of(value: torch.Tensor) -> torch.Tensor:
    """A made-up value of the shape and dtype of a (fake) tensor: standard normal, or zeros where
    only zero is certain to be valid."""
    import torch

    shape = [int(extent) for extent in value.shape]
    if not value.dtype.is_floating_point:
        return torch.zeros(shape, dtype=value.dtype)
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randn(shape, generator=generator).to(value.dtype)


def _memory_of(value: torch.Tensor) -> tuple[object, ...]:
    """Equal for tensors that are the same view of the same memory."""
    if value.numel() == 0 or not value.untyped_storage().data_ptr():
        return (id(value),)
    return (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)


def _carried(program: ExportedProgram) -> list[torch.Tensor]:
    return [] if program.example_inputs is None else tensors_in(program.example_inputs)
