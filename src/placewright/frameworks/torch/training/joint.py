"""Tracing of forward and backward of an exported program as one graph, by AOTAutograd."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placewright.errors import InputError
from placewright.frameworks.torch.reading.calls import draws_random_numbers, is_item
from placewright.frameworks.torch.reading.fx_program import FxProgram, inference_program
from placewright.io.content import one_line

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph, Node


@dataclass(frozen=True)
class JointGraph:
    """Forward and backward of a program."""

    # its updates are those of buffers (running statistics); its module's output is the loss, then
    # the updates' new values
    program: FxProgram
    gradients: dict[str, str]  # parameter placeholder -> node of its gradient, if it has a gradient
    # forward, backward: names of calls
    forward: tuple[str, ...]
    backward: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]  # (backward call, forward call for which autograd made it)
    is_random: bool  # it draws random numbers


def joint_graph(
    exported: ExportedProgram,
    examples: Any = (),
    input_names: Sequence[str] = (),
    *,
    allow_random: bool = False,
) -> JointGraph:
    """Trace forward and backward of a program whose first output is a scalar loss.

    Tied parameters are one placeholder; their gradients are added by autograd.

    Raises:
        InputError: nothing can be trained, or the step draws random numbers and may not.
    """
    import torch
    from torch.export.graph_signature import OutputKind

    read = inference_program(exported, examples)
    names = [node.name for node in exported.graph.nodes if node.op == "placeholder"]
    values = {n.name: n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder"}
    owner = {id(value): name for name, value in reversed(list(read.state.items()))}
    stands_for = {n: owner[id(read.state[n])] if n in read.state else n for n in names}
    remaining = [n for n in names if stands_for[n] == n and (n in read.state or n in read.inputs)]
    constants = {n: values[n] for n in names if n not in read.state and n not in read.inputs}
    trainable = _trainable(exported, stands_for)
    module = exported.graph_module
    signature = exported.graph_signature
    held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    of_target = {target: stands_for[name] for name, target in held.items()}
    changes = {
        at: of_target[str(spec.target)]
        for at, spec in enumerate(signature.output_specs)
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
    }
    position = list(signature.user_outputs).index(read.outputs[0])
    n_changed = sum(
        len(changes)
        for changes in (
            signature.buffers_to_mutate,
            signature.parameters_to_mutate,
            signature.user_inputs_to_mutate,
        )
    )

    def forward(*arguments: Any) -> Any:
        of_name = dict(zip(remaining, arguments, strict=True)) | constants
        # A decomposed program returns new values of its state; backward may need the old ones.
        old = of_name | {name: of_name[name].clone() for name in changes.values()}
        with torch.fx.traceback.preserve_node_meta():
            results = torch.fx.Interpreter(module).run(*[old[stands_for[n]] for n in names])
        with torch.no_grad():
            for at, name in changes.items():
                of_name[name].copy_(results[at])
        return (results[n_changed + position],)

    fakes = [values[name].detach().requires_grad_(name in trainable) for name in remaining]
    graph, mutated = _traced(forward, fakes, module)
    renamed = dict(zip(read.inputs, input_names or read.inputs, strict=True))
    made = _joint(graph, remaining, mutated, read, set(trainable), renamed)
    if not allow_random:
        _refuse_randomness(made.program.module.graph)
    return made


def _trainable(exported: ExportedProgram, stands_for: dict[str, str]) -> dict[str, None]:
    """Placeholders of the parameters that require a gradient."""
    held = exported.state_dict
    parameters = exported.graph_signature.inputs_to_parameters
    for target in parameters.values():
        if held[target].requires_grad and held[target].dtype.is_complex:
            raise InputError(
                f"parameter '{target}' is {held[target].dtype}, which training steps do not "
                "update; hold its real and imaginary parts, and join them by torch.complex"
            )
    return {
        stands_for[name]: None
        for name, target in parameters.items()
        if held[target].requires_grad and held[target].dtype.is_floating_point
    }


def refuse_lost_stops(exported: ExportedProgram) -> None:
    """Refuse a decomposed program with ``detach`` behind a parameter: it has become a plain alias.

    Raises:
        InputError: a gradient would pass where the module stops it.
    """
    if exported.dialect == "TRAINING":  # detach() stands there as itself, and x[...] is an alias
        return
    held, signature = exported.state_dict, exported.graph_signature
    parameters = signature.inputs_to_parameters
    with_gradient = {name for name, target in parameters.items() if held[target].requires_grad}
    for node in exported.graph.nodes:
        dtype = getattr(node.meta.get("val"), "dtype", None)  # a call may have several results
        has_none = dtype is not None and not (dtype.is_floating_point or dtype.is_complex)
        if has_none or not with_gradient.intersection(n.name for n in node.all_input_nodes):
            continue
        with_gradient.add(node.name)
        if str(node.target) == "aten.alias.default":
            raise InputError(
                f"'{node.name}' may stand for detach(), which stops gradients until a program is "
                "decomposed; save the program before run_decompositions()"
            )


def _traced(forward: Any, fakes: list[Any], module: Any) -> tuple[Any, list[int]]:
    """Trace the joint graph module; also return the positions of inputs that the step changes."""
    import torch
    from torch._functorch.aot_autograd import _aot_export_function
    from torch._guards import detect_fake_mode

    if not any(value.requires_grad for value in fakes):
        raise InputError("this model has no parameter that requires a gradient: nothing to train")
    mode: Any = detect_fake_mode(fakes)
    try:
        with _without_onednn(), mode, torch.enable_grad():
            traced, metadata, *_ = _aot_export_function(
                forward,
                tuple(fakes),
                decompositions={},
                num_params_buffers=0,
                no_tangents=True,
                trace_joint=True,
            )
    except Exception as error:  # tracing runs the operators' own code
        raise InputError(f"the training step cannot be traced: {one_line(error)}") from error
    changed = [i for i, info in enumerate(metadata.input_info) if info.mutates_data]
    return traced, changed


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Trace recurrent layers as plain operators.

    Those of oneDNN have a backward pass that only autograd itself can call.
    """
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the switch, about hardware of others
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def _joint(
    traced: Any,
    remaining: list[str],
    mutated: list[int],
    read: FxProgram,
    trainable: set[str],
    renamed: dict[str, str],
) -> JointGraph:
    import torch

    graph: Graph = traced.graph
    results = _outputs(graph)
    _name_placeholders(graph, [renamed.get(name, name) for name in remaining])
    loss, gradients = results[len(mutated)], results[len(mutated) + 1 :]
    of_parameter = {
        name: node
        for name, node in zip(remaining, gradients, strict=True)
        if node is not None and name in trainable
    }
    changed = {remaining[at]: node for at, node in zip(mutated, results, strict=False)}
    # Inputs that the module changes in place are the caller's, and a step leaves them as they are.
    updates = {name: node for name, node in changed.items() if name in read.state}
    graph.output_node().args = ((loss, *updates.values(), *of_parameter.values()),)
    _without_copies(graph)
    loss, *others = _outputs(graph)
    of_buffers = dict(zip(updates, others, strict=False))
    of_parameter = dict(zip(of_parameter, others[len(updates) :], strict=True))
    graph.set_codegen(torch.fx.graph.CodeGen())  # plain arguments instead of nested ones
    graph.eliminate_dead_code()
    graph.lint()
    program = FxProgram(
        torch.fx.GraphModule(traced, graph),
        {name: read.state[name] for name in remaining if name in read.state},
        tuple(renamed[name] for name in remaining if name not in read.state),
        (loss.name,),
        {name: node.name for name, node in of_buffers.items()},
        {renamed[name]: read.example_inputs[name] for name in remaining if name not in read.state},
        lambda values: read.plain(values)[:1],
    )
    calls = [n for n in graph.nodes if n.op == "call_function" and not is_item(n)]
    backward = tuple(node.name for node in calls if _is_backward(node))
    forward = tuple(node.name for node in calls if not _is_backward(node))
    named = {name: node.name for name, node in of_parameter.items()}
    is_random = any(map(draws_random_numbers, calls))
    return JointGraph(program, named, forward, backward, _pairs(calls), is_random)


def _name_placeholders(graph: Graph, names: Sequence[str]) -> None:
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node in placeholders[len(names) :]:  # tangents; that of the loss is 1
        if node.users:
            raise InputError("the training step needs gradients of its outputs; return the loss")
        graph.erase_node(node)
    for node in graph.nodes:
        if node.op == "call_function" and node.name in names:
            node._rename(f"{node.name}_call")
    for node, name in zip(placeholders, names, strict=False):
        node.name = node.target = name


def _outputs(graph: Graph) -> list[Any]:
    results: Any = graph.output_node().args[0]
    return list(results)


def _is_backward(node: Node) -> bool:
    return bool(node.meta.get("partitioner_tag") == "is_backward")


def _pairs(calls: Sequence[Node]) -> tuple[tuple[str, str], ...]:
    """Pair backward with forward calls: calls of an autograd node's two passes share its number."""
    forward: dict[int, str] = {}
    for node in calls:
        if not _is_backward(node) and "seq_nr" in node.meta:
            forward[node.meta["seq_nr"]] = node.name
    return tuple(
        (node.name, forward[node.meta["seq_nr"]])
        for node in calls
        if _is_backward(node) and node.meta.get("seq_nr") in forward
    )


def _without_copies(graph: Graph) -> None:
    """Remove ``detach`` and copies that change nothing, since nothing is written in place."""
    for node in list(graph.nodes):
        if node.op != "call_function" or not node.all_input_nodes:
            continue
        source, kind = node.all_input_nodes[0], str(node.target)
        copies = kind in ("aten.detach.default", "aten.alias.default") or (
            kind == "aten.clone.default" and _same_layout(node, source)
        )
        if copies and source.op == "call_function":
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _same_layout(node: Node, source: Node) -> bool:
    mine: Any = node.meta.get("val")
    other: Any = source.meta.get("val")
    strided = hasattr(mine, "stride") and hasattr(other, "stride")
    return strided and bool(mine.stride() == other.stride())


def _refuse_randomness(graph: Graph) -> None:
    for node in graph.nodes:
        if draws_random_numbers(node):
            raise InputError(
                f"the training step draws random numbers ('{node.name}', {node.target}); allow "
                "them with argument `dropout`, or switch dropout off"
            )
