"""PyTorch programs: a functional graph with its state, and the interface that callers see."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from placewright.core.source import ModelSource
from placewright.errors import InputError
from placewright.execution.exported_program import OwnClasses, tensor_inputs
from placewright.execution.state_pairs import Pairs
from placewright.frameworks.torch.reading.arguments import Arguments
from placewright.frameworks.torch.reading.calls import draws_random_numbers, kind_of
from placewright.frameworks.torch.reading.state import changes_in_place, with_copies

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram
    from torch.fx import Graph

    from placewright.core.graph import ComputationGraph

TRAINING = "torch-training"  # format of the source of a training step
_SEED = 20170612  # of example values, for programs that carry none


def no_plain_call(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Refuse to run: `FxProgram.plain` of a program without a model."""
    raise InputError("this program has no model behind it that could be run unsplit")


@dataclass(frozen=True)
class StepParts:
    """Meaning of the state of a training step."""

    # state placeholder -> its names in a checkpoint, several for tied parameters:
    # ``model.head.weight``, ``optimizer.head.weight.average``
    paths: Mapping[str, tuple[str, ...]]
    scalars: Mapping[str, str]  # number that a step is told -> its placeholder
    scalars_at: Callable[[float], Mapping[str, float]]  # learning rate -> these numbers
    learning_rate: float  # of a step that is told no other
    accumulate: int  # steps whose mean gradient makes one update
    optimizer: str  # its name and settings but the learning rate


@dataclass(frozen=True, eq=False)
class FxProgram:
    """A functional graph of one inference or one training step.

    Ops of the computation graph are the calls of `module`, by name; ``getitem`` only names one
    output of a call, and a call that depends only on state may have been folded away.

    Attributes:
        module: placeholders, calls of functional ATen operators with ``meta["val"]``, the output.
        state: placeholder -> parameter, buffer, optimizer state or constant; tied ones are one
            tensor object.
        inputs: placeholders of the graph inputs, in the order of the graph's input tensors.
        outputs: nodes that hold the graph outputs; of a training step only the loss.
        updates: state placeholder -> node that holds its value after a run.
        in_place: node that may write into the memory of state -> placeholder of that state.
        example_inputs: graph input placeholder -> a valid value.
        step: of a training step; None for inference.
        result: puts values of all outputs into the structure of the model's own result.
        arguments: of the model's own calls.
        plain: runs the model as PyTorch does, without this graph: values of all inputs -> all
            outputs, in the order of `inputs` and of the model's own result; state does not change.
    """

    module: torch.fx.GraphModule
    state: Mapping[str, torch.Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    updates: Mapping[str, str] = field(default_factory=dict)
    example_inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    plain: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]] = no_plain_call
    step: StepParts | None = None
    in_place: Mapping[str, str] = field(default_factory=dict)
    result: Callable[[Sequence[torch.Tensor]], Any] = tuple
    arguments: Arguments = field(default_factory=Arguments)


@dataclass(frozen=True)
class ReadProgram:
    """A PyTorch model or training step that was read."""

    # its ops; those of a training step have phases, colocation classes and resident bytes
    graph: ComputationGraph
    source: ModelSource  # of the model
    program: FxProgram  # for the runtime


def inference_program(
    program: ExportedProgram,
    examples: Any = (),
    original: ExportedProgram | None = None,
    own: OwnClasses | None = None,
    pairs: Pairs = (),
) -> FxProgram:
    """Make the program of one inference from a functional exported program.

    Buffers that the model changes, and inputs that stay, are state. Inputs that stay start at zero.

    Args:
        program: without in-place operators, from ``torch.export``.
        examples: arguments with one tensor per input; without any the program's own examples are
            taken, else made-up ones.
        original: the program before it was made functional.
        own: classes of the module's result that the program does not have.
        pairs: positions (output, input) of values that stay.
    """
    import torch

    own = own or OwnClasses()
    interface = FxInterface.of(program)
    nodes = {node.name: node for node in program.graph.nodes}
    inputs = [nodes[name] for name in interface.inputs]
    values = tensors_in(examples) or (
        [] if program.example_inputs is None else tensors_in(program.example_inputs)
    )
    if len(values) != len(inputs):
        fakes = [node.meta["val"] for node in inputs]
        values = [example_of(fake.shape, fake.dtype) for fake in fakes]
    staying = {at: torch.zeros_like(values[at]) for _, at in pairs}
    changed = _changed_state(program)
    signature = program.graph_signature
    targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    plain = plain_call(
        program if original is None else original,
        {targets[name] for name in changed} | set(program.constants),
    )
    updates = changed | {interface.inputs[at]: interface.outputs[output] for output, at in pairs}
    given = interface.without(pairs)
    updates, given_outputs = with_copies(program.graph, updates, given.outputs)
    kept = {interface.inputs[at]: value for at, value in staying.items()}
    n_outputs, returned = len(interface.outputs), {output for output, _ in pairs}
    shown = [at for at in range(n_outputs) if at not in returned]

    def run(arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        left = iter(arguments)
        every = [staying[at].clone() if at in staying else next(left) for at in range(len(values))]
        outputs = plain(every)
        return [outputs[at] for at in shown]

    return FxProgram(
        torch.fx.GraphModule(program.graph_module, program.graph),
        {**_state_of(program), **kept},
        given.inputs,
        given_outputs,
        updates,
        {
            node.name: value
            for node, value in zip(inputs, values, strict=True)
            if node.name not in kept
        },
        run if pairs else plain,
        in_place=changes_in_place(program.graph, updates, given_outputs),
        result=structured_result(program, shown, own),
        arguments=Arguments.of(program, staying),
    )


def _changed_state(program: ExportedProgram) -> dict[str, str]:
    """Placeholder of each buffer or parameter that a model changes -> node of its new value."""
    from torch.export.graph_signature import OutputKind

    signature = program.graph_signature
    held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    placeholder = {target: name for name, target in held.items()}
    return {
        placeholder[str(spec.target)]: str(spec.arg.name)
        for spec in signature.output_specs
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
    }


def state_behind_outputs(program: ExportedProgram) -> list[str]:
    """Paths of the buffers and parameters that a program changes and computes outputs of.

    Args:
        program: without in-place operators.
    """
    signature = program.graph_signature
    paths = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    outputs = {str(name) for name in signature.user_outputs}
    changed = _changed_state(program)
    return [paths[name] for name in changed if outputs & _dependants(program.graph, name)]


# Kinds that read shape and type of their first tensor alone.
_READ_NO_VALUES = frozenset(
    (
        *("zero", "fill", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like"),
        *("randn_like", "new_zeros", "new_ones", "new_full", "new_empty", "sym_size", "sym_numel"),
    )
)


def _dependants(graph: Graph, state: str) -> set[str]:
    """Names of a placeholder of state and of all nodes whose values depend on it.

    Batch norm in training mode changes its averages, and computes its result without them.
    """
    found = {state}
    for node in graph.nodes:
        kind = kind_of(node)
        first = node.args[0] if node.args and kind in _READ_NO_VALUES else None
        read = found.intersection(each.name for each in node.all_input_nodes if each is not first)
        is_average = read == {state} and "batch_norm" in kind and "no_training" not in kind
        if read and not is_average:
            found.add(node.name)
    return found


def _state_of(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Placeholder -> parameter, buffer or constant; tied ones are one tensor object."""
    of_memory: dict[tuple[object, ...], torch.Tensor] = {}
    return {
        # Without memory only the object shows a tie, and `detach` makes another one.
        name: of_memory.setdefault(memory_of(tensor), tensor.detach())
        for name, tensor in held_tensors(program).items()
    }


def held_tensors(program: ExportedProgram) -> dict[str, Any]:
    """Placeholder -> parameter, buffer or constant of a program."""
    signature = program.graph_signature
    held: Mapping[str, Any] = {**program.constants, **program.state_dict}
    targets = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    return {placeholder: held[target] for placeholder, target in targets.items()}


def example_of(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Make an example input.

    It is standard normal, or zero for integers, of which only zero is certain to be valid.
    """
    import torch

    extents = [int(extent) for extent in shape]
    if not dtype.is_floating_point:
        return torch.zeros(extents, dtype=dtype)
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randn(extents, generator=generator).to(dtype)


def memory_of(value: torch.Tensor) -> tuple[object, ...]:
    """A key, equal for tensors that are the same view of the same memory."""
    if value.numel() == 0 or not value.untyped_storage().data_ptr():
        return (id(value),)
    return (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)


@dataclass(frozen=True)
class FxInterface:
    """Inputs, outputs and state of an exported program as its caller sees them.

    Nested arguments and results are flattened.
    """

    inputs: tuple[str, ...]  # placeholders, in the order of positional, then named arguments
    input_names: tuple[str, ...]  # PyTorch's names: ``x``, ``pair_0``, ``options_scale``
    outputs: tuple[str, ...]  # nodes that hold the outputs, in the order of the module's own result
    # the path of each output in the result: a key, ``output_0`` in a tuple, ``output`` if it is the
    # only one
    output_names: tuple[str, ...]
    state: tuple[str, ...]  # paths of all parameters and buffers, even if no op reads them

    @classmethod
    def of(cls, program: ExportedProgram) -> FxInterface:
        """The interface of an exported program, functional or not."""
        from torch.export.graph_signature import OutputKind, TensorArgument

        inputs = [str(name) for name in tensor_inputs(program)]
        specs = program.graph_signature.output_specs
        of_user = [spec.arg for spec in specs if spec.kind == OutputKind.USER_OUTPUT]
        outputs = [
            (str(argument.name), name)
            for argument, name in zip(of_user, _paths(program, len(of_user)), strict=True)
            if isinstance(argument, TensorArgument)
        ]
        state = dict.fromkeys([*program.state_dict, *program.graph_signature.buffers])
        return cls(
            tuple(inputs),
            tuple(inputs),
            tuple(node for node, _ in outputs),
            tuple(name for _, name in outputs),
            tuple(state),
        )

    def without(self, pairs: Pairs) -> FxInterface:
        """The interface without inputs and outputs that stay, positions (output, input)."""
        returned, kept = {output for output, _ in pairs}, {at for _, at in pairs}

        def other(row: tuple[str, ...], gone: set[int]) -> tuple[str, ...]:
            return tuple(entry for at, entry in enumerate(row) if at not in gone)

        return FxInterface(
            other(self.inputs, kept),
            other(self.input_names, kept),
            other(self.outputs, returned),
            other(self.output_names, returned),
            self.state,
        )


def tensors_in(example_inputs: Any) -> list[torch.Tensor]:
    """Tensors in nested arguments, in PyTorch's order."""
    import torch

    leaves = torch.utils._pytree.tree_leaves(example_inputs)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def called(
    program: ExportedProgram, module: Callable[..., Any], values: Sequence[torch.Tensor]
) -> list[Any]:
    """Call the module of a program with values of all its tensor inputs.

    Returns:
        The tensors of its result.
    """
    positional, named = nested(program, values)
    return tensors_in(module(*positional, **named))


def nested(program: ExportedProgram, values: Sequence[torch.Tensor]) -> tuple[Any, Any]:
    """Positional and named arguments of a program, from values of all its tensor inputs."""
    import torch
    from torch.export.graph_signature import InputKind

    specs = program.graph_signature.input_specs
    leaves = _leaves([spec.arg for spec in specs if spec.kind == InputKind.USER_INPUT], values)
    positional, named = torch.utils._pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return positional, named


def structured_result(
    program: ExportedProgram, shown: Sequence[int], own: OwnClasses
) -> Callable[[Sequence[torch.Tensor]], Any]:
    """A function from outputs to the result of a program, as its module returns it.

    Each call of a plan needs the function, so that it is made once.

    Args:
        shown: positions of the outputs that are given; state that stays is None in the result.
        own: classes of the result that the program does not have.
    """
    import torch
    from torch.export.graph_signature import OutputKind

    specs = program.graph_signature.output_specs
    returned = [spec.arg for spec in specs if spec.kind == OutputKind.USER_OUTPUT]
    spec = program.call_spec.out_spec
    has_structure = spec is not None and spec.num_leaves == len(returned)
    n_outputs = len(FxInterface.of(program).outputs)

    def result(outputs: Sequence[torch.Tensor]) -> Any:
        every: list[torch.Tensor | None] = [None] * n_outputs
        for at, output in zip(shown, outputs, strict=True):
            every[at] = output
        if not has_structure:
            return own.restored(tuple(every))
        return own.restored(torch.utils._pytree.tree_unflatten(_leaves(returned, every), spec))

    return result


def _leaves(arguments: Sequence[Any], values: Sequence[torch.Tensor | None]) -> list[Any]:
    """The values in place of tensors, and the constants that the program holds elsewhere."""
    from torch.export.graph_signature import TensorArgument

    left = iter(values)
    return [
        next(left) if isinstance(argument, TensorArgument) else getattr(argument, "value", None)
        for argument in arguments
    ]


def plain_call(
    program: ExportedProgram, changed: Collection[str] | None = None
) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    """A function that runs a program as PyTorch itself does: values in, outputs out.

    State that the program changes stays as it is. Random operators draw other numbers in each
    call, while the user's generator stays as it is.

    Args:
        changed: names of the parameters and buffers that the program may change; default all
            buffers.
    """
    import torch

    from placewright.frameworks.torch.draws import PrivateDraws

    parts = [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    is_random = any(draws_random_numbers(node) for part in parts for node in part.graph.nodes)
    draws = PrivateDraws() if is_random else None

    @functools.cache
    def made() -> Any:
        return program.module(check_guards=False)

    def run(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        module = made()
        # The user's own state is not even written to: its count of writes shows changes.
        held = dict(module.named_buffers())
        if changed is not None:
            every = {**held, **dict(module.named_parameters())}
            held = {name: value for name, value in every.items() if name in changed}
        own = {name: value.detach().clone() for name, value in held.items()}
        call = functools.partial(_called_with, module, own) if own else module
        with nullcontext() if draws is None else draws.entered(), torch.no_grad():
            return called(program, call, values)

    return run


def _called_with(
    module: torch.nn.Module, state: dict[str, torch.Tensor], /, *given: Any, **named: Any
) -> Any:
    """Call a module with other tensors in place of some of its parameters and buffers."""
    import torch

    return torch.func.functional_call(module, state, given, named)


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
    except Exception:  # a class of the user's own without known keys
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
