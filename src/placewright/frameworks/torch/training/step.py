"""Reader of training steps: forward, backward and optimizer update of a module as one graph.

The module, with its loss, goes through ``torch.export``; PyTorch's AOT machinery then traces
forward and backward together without in-place operators; the optimizer's rule is added for each
parameter. Composite operators are taken apart as autograd does, no further.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.core.builder import GraphBuilder
from placewright.core.graph import BACKWARD, FORWARD, UPDATE, ComputationGraph
from placewright.core.source import ModelSource, Signature
from placewright.errors import InputError
from placewright.execution.exported_program import EXPORTING
from placewright.frameworks.torch.pt2.file import load_program, refused_in_one_line
from placewright.frameworks.torch.reading.arguments import Arguments
from placewright.frameworks.torch.reading.calls import draws_random_numbers
from placewright.frameworks.torch.reading.fx_graph import (
    FxRules,
    add_fx_graph,
    dtype_of,
    shape_of,
    signature_of,
)
from placewright.frameworks.torch.reading.fx_program import (
    TRAINING,
    FxInterface,
    FxProgram,
    ReadProgram,
    StepParts,
    called,
    inference_program,
    tensors_in,
)
from placewright.frameworks.torch.reading.reader import (
    export_reason,
    exported_module,
    program_hash,
    torch_library,
)
from placewright.frameworks.torch.reading.state import colocation_classes, state_views
from placewright.frameworks.torch.training.eager import (
    EagerStep,
    begins_with_loss,
    eager_step,
    losses_behind,
    refuse_hooks_of_gradients,
    require_equal_step,
)
from placewright.frameworks.torch.training.joint import (
    JointGraph,
    joint_graph,
    refuse_lost_stops,
)
from placewright.frameworks.torch.training.optimizers import (
    StepRule,
    rule_of,
    text_without_rate,
)
from placewright.io.content import existing_path

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram
    from torch.fx import Node

_LOG = logging.getLogger(__name__)
STEP = "step"  # a scalar, unlike the other slots
GRADIENT = "gradient"  # slot of the mean gradient of the steps since the last update
APPLY = "apply"  # scalar: this step updates parameters
_SMALL = 1e-6  # added to a norm, as `torch.nn.utils.clip_grad_norm_` does


@dataclass(frozen=True)
class Updates:
    """State and calls of optimizer updates that were added."""

    # of the model, then of the optimizer; placeholder -> value before the first step
    state: dict[str, torch.Tensor]
    updates: dict[str, str]  # state placeholder -> node of its new value
    ops: dict[str, list[str]]  # parameter placeholder -> names of the calls that update it
    backward: list[str]  # names of calls that change gradients; they come before all updates
    norms: dict[str, str]  # parameter placeholder -> call that computes its gradient's norm
    # placeholder of optimizer state -> (parameter placeholder, slot)
    slots: dict[str, tuple[str, str]]
    scalars: dict[str, str]  # number that a step is told -> its placeholder


def add_updates(joint: JointGraph, rule: StepRule) -> Updates:
    """Add the rule's calls behind the backward pass.

    The module then takes all state and the graph inputs. It returns the loss and all new values, in
    the order of `Updates.updates`.

    Raises:
        InputError: no parameter gets a gradient.
    """
    if not joint.gradients:
        raise InputError("no parameter of this model gets a gradient from its loss")
    return _Adding(joint, rule).add()


class _Adding:
    """State of adding updates to a joint graph."""

    def __init__(self, joint: JointGraph, rule: StepRule) -> None:
        self.joint, self.rule = joint, rule
        self.module = joint.program.module
        self.nodes: dict[str, Node] = {node.name: node for node in self.module.graph.nodes}
        updates = dict(joint.program.updates)
        self.added = Updates(dict(joint.program.state), updates, {}, [], {}, {}, {})
        self.means: dict[str, Node] = {}  # parameter -> its mean gradient so far
        self.of: tuple[str, Mapping[str, Any]] = ("", {})  # parameter, where its ops come from
        self.is_update = False  # calls belong to an update, not to the backward pass

    def add(self) -> Updates:
        """Add the update of each parameter that has a gradient."""
        from torch._guards import detect_fake_mode

        first = next(iter(self.joint.gradients))
        self.mode: Any = detect_fake_mode([self.nodes[first].meta["val"]])
        gradients = {name: self.nodes[node] for name, node in self.joint.gradients.items()}
        self._add_scalars()
        if self.rule.accumulate > 1:
            gradients = {name: self._mean(name, node) for name, node in gradients.items()}
        sums = gradients
        if self.rule.clip:
            gradients = self._clipped(gradients)
        self.is_update = True
        for name, gradient in gradients.items():
            self._add_one(name, gradient, sums[name])
        graph, added = self.module.graph, self.added
        names = [*self.joint.program.outputs, *added.updates.values()]
        self.nodes = {node.name: node for node in graph.nodes}
        graph.output_node().args = (tuple(self.nodes[name] for name in names),)
        graph.lint()
        self.module.recompile()
        return added

    def _add_one(self, name: str, gradient: Node, summed: Node) -> None:
        self._at(name)
        parameter = self.nodes[name]
        slots = [self._slot(name, slot) for slot in self.rule.optimizer.slots]
        results = self.rule.optimizer.update(
            self._emit, parameter, gradient, slots, self.scalar_nodes
        )
        old = (parameter, *slots)
        if self.rule.accumulate > 1:
            apply = self.scalar_nodes[APPLY]
            results = tuple(
                self._emit("where", "self", apply, *pair) for pair in zip(results, old, strict=True)
            )
            none = self._emit("zeros_like", "default", summed)
            mean = self.means[name]
            self.added.updates[mean.name] = self._emit("where", "self", apply, none, summed).name
        for target, value in zip(old, results, strict=True):
            self.added.updates[target.name] = value.name

    def _mean(self, name: str, gradient: Node) -> Node:
        """Add this step's share of the mean gradient to that of the steps before."""
        self._at(name)
        self.means[name] = held = self._slot(name, GRADIENT)
        result: Node = self._emit("add", "Tensor", held, gradient, alpha=1 / self.rule.accumulate)
        return result

    def _clipped(self, gradients: Mapping[str, Node]) -> dict[str, Node]:
        """Scale gradients so that the norm of all of them together is at most `clip`."""
        norms = []
        for name, gradient in gradients.items():
            self._at(name)
            norms.append(self._emit("linalg_vector_norm", "default", gradient))
            self.added.norms[name] = norms[-1].name
        self.of = ("all", {})
        norm = self._emit("linalg_vector_norm", "default", self._emit("stack", "default", norms))
        small = self._emit("add", "Tensor", norm, _SMALL)
        share = self._emit("reciprocal", "default", small)
        scaled = self._emit("mul", "Tensor", share, self.rule.clip)
        factor = self._emit("clamp", "default", scaled, None, 1.0)
        self.is_update = True
        clipped = {}
        for name, gradient in gradients.items():
            self._at(name)
            clipped[name] = self._emit("mul", "Tensor", gradient, factor)
        return clipped

    def _at(self, name: str) -> None:
        self.of = (name, _stack(self.nodes[name]))

    def _add_scalars(self) -> None:
        """Add a placeholder for each number that a step is told."""
        import torch

        values = [self.added.state[name] for name in self.joint.gradients]
        wide = any(value.dtype == torch.float64 for value in values)
        optimizer = self.rule.optimizer
        numbers: dict[str, Any] = {
            name: torch.tensor(value, dtype=torch.float64 if wide else torch.float32)
            for name, value in optimizer.scalars(optimizer.learning_rate).items()
        }
        if self.rule.accumulate > 1:
            numbers[APPLY] = torch.tensor(True)
        self.scalar_nodes: dict[str, Node] = {}
        for name, value in numbers.items():
            self.scalar_nodes[name] = self._placeholder(f"optimizer_{name}", value)
            self.added.scalars[name] = self.scalar_nodes[name].name

    def _slot(self, name: str, slot: str) -> Node:
        """Add a placeholder of a parameter's optimizer state."""
        import torch

        value = self.added.state[name]
        wide = torch.float64 if value.dtype == torch.float64 else None
        initial = torch.zeros((), dtype=wide) if slot == STEP else torch.zeros_like(value)
        node = self._placeholder(f"{name}_{slot}", initial)
        self.added.slots[node.name] = (name, slot)
        return node

    def _placeholder(self, name: str, initial: torch.Tensor) -> Node:
        """Add a placeholder of state, behind other state and before the inputs."""
        import torch

        while name in self.nodes:  # a parameter may be called as the state of another
            name += "_"
        graph = self.module.graph
        behind = self.nodes[next(reversed(self.added.state))]
        with graph.inserting_after(behind):
            node = graph.placeholder(name)
        with self.mode:
            node.meta["val"] = torch.empty_strided(
                initial.shape, initial.stride(), dtype=initial.dtype, device=initial.device
            )
        self.nodes[node.name] = node
        self.added.state[node.name] = initial
        return node

    def _emit(self, kind: str, overload: str, *args: Any, **kwargs: Any) -> Node:
        import torch

        target = getattr(getattr(torch.ops.aten, kind), overload)
        graph = self.module.graph
        with graph.inserting_before(graph.output_node()):
            node = graph.create_node(
                "call_function", target, args, kwargs, name=f"update_{self.of[0]}_{kind}"
            )
        with self.mode:
            values = torch.fx.node.map_arg((args, kwargs), lambda source: source.meta["val"])
            node.meta["val"] = target(*values[0], **values[1])
        node.meta["nn_module_stack"] = self.of[1]
        self.nodes[node.name] = node
        if self.is_update:
            self.added.ops.setdefault(self.of[0], []).append(node.name)
        else:
            self.added.backward.append(node.name)
        return node


def _stack(parameter: Node) -> Mapping[str, Any]:
    """Module stack of the first call that reads a parameter."""
    for user in parameter.users:
        stack = user.meta.get("nn_module_stack") or user.meta.get("fwd_nn_module_stack")
        if stack:
            return dict(stack)
    return {}


DEFAULT_OPTIMIZER = "sgd"
SUM_OF_MEANS = "sum of means"  # option `loss` of a source whose model returns none


def read_training(
    model: torch.nn.Module | Path | str,
    example_inputs: Sequence[torch.Tensor] = (),
    *,
    input_names: Sequence[str] = (),
    optimizer: str = DEFAULT_OPTIMIZER,
    colocate_backward: bool = False,
    dropout: bool = False,
    name: str = "",
) -> ReadProgram:
    """Read the training step of a module that returns its loss.

    A module is traced in training mode but for parts that are in evaluation mode, see
    `exported_step`; a ``.pt2`` file in the mode in which it was exported. The hash leaves out the
    values of the weights, since training changes them.

    Args:
        model: a module, or the path of a ``.pt2`` file. The first output is the loss if it is a
            scalar, a row of one number without another behind it, or the only output, if it is one
            number. Without a loss, the sum of the means of the outputs is trained.
        example_inputs: positional inputs of the module, targets among them; a file holds its own.
        input_names: names of the graph inputs; empty keeps those of ``forward``.
        optimizer: see `frameworks.torch.training.optimizers.rule_of`.
        colocate_backward: every backward op shares a device with its forward op.
        dropout: a module is traced in training mode, and random operators stay.
        name: what the source calls a module; empty takes its class.

    Raises:
        InputError: the step cannot be traced, draws random numbers without `dropout`, or trains
            nothing.
        FileFormatError: the file is damaged or wrong, or holds more than data.
        MissingExtraError: torch is not installed.
    """
    with refused_in_one_line(model):
        torch = torch_library()
        rule = rule_of(optimizer)
        original, eager = exported_step(model, example_inputs, dropout=dropout)
        exported = _with_scalar_loss(original)
        examples = [example.detach() for example in tensors_in(example_inputs)]
        names = input_names or FxInterface.of(original).input_names
        joint = joint_graph(exported, examples, names, allow_random=dropout)
        if eager is not None and exported is original and not joint.is_random:
            require_equal_step(eager, joint, exported)
        updated = add_updates(joint, rule)
        program = replace(
            joint.program,
            state=updated.state,
            updates=updated.updates,
            step=_parts(exported, updated, rule, exported is not original),
            arguments=Arguments.of(original),
        )
        options = {"optimizer": optimizer} | (
            {"colocate_backward": "yes"} if colocate_backward else {}
        )
        options |= {"dropout": "yes"} if dropout else {}
        options |= {"loss": SUM_OF_MEANS} if exported is not original else {}
        is_file = isinstance(model, Path | str)
        path = str(model) if is_file else name or f"module:{type(model).__name__}"
        digest = program_hash(exported, with_values=False)
        source = ModelSource(
            path=path,
            sha256=hashlib.sha256(f"{digest} {rule!r}".encode()).hexdigest(),
            format=TRAINING,
            shapes={key: shape_of(value) for key, value in program.example_inputs.items()},
            reader_version=f"torch {torch.__version__}",
            options=options,
            state=FxInterface.of(original).state,
        )
        graph, signature = _graph(program, joint, updated, colocate_backward)
        return ReadProgram(graph, replace(source, signature=signature), program)


def _parts(
    exported: ExportedProgram, updated: Updates, rule: StepRule, is_wrapped: bool
) -> StepParts:
    """The names of a step's state in a checkpoint, and the numbers that each step receives.

    The paths of a wrapper, which adds a loss, begin with ``model.``; the names leave that out.
    """
    signature = exported.graph_signature
    targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    targets = {
        name: target.removeprefix("model.") if is_wrapped else target
        for name, target in targets.items()
    }
    held = inference_program(exported).state
    tied: dict[int, list[str]] = {}
    for name, target in targets.items():
        tied.setdefault(id(held[name]), []).append(target)
    paths = {
        name: tuple(f"model.{target}" for target in tied[id(held[name])])
        for name in targets
        if name in updated.state
    }
    for name, (parameter, slot) in updated.slots.items():
        paths[name] = (f"optimizer.{targets[parameter]}.{slot}",)
    optimizer = rule.optimizer
    return StepParts(
        paths,
        updated.scalars,
        optimizer.scalars,
        optimizer.learning_rate,
        rule.accumulate,
        text_without_rate(optimizer),
    )


def _graph(
    program: FxProgram, joint: JointGraph, updated: Updates, colocate_backward: bool
) -> tuple[ComputationGraph, Signature]:
    phases = dict.fromkeys([*joint.backward, *updated.backward], BACKWARD)
    phases |= {name: UPDATE for ops in updated.ops.values() for name in ops}
    builder = GraphBuilder()
    of_tensor: dict[int, int] = {}
    weights = {}
    for name, value in program.state.items():
        if id(value) not in of_tensor:
            of_tensor[id(value)] = builder.add_weight(
                value.numel() * value.element_size(), dtype=dtype_of(value)
            )
        weights[name] = of_tensor[id(value)]
    pairs = [(ops[0], name) for ops in updated.ops.values() for name in ops[1:]]
    # Otherwise the norms of all layers would form one unit with their sum.
    pairs += [(updated.ops[name][0], norm) for name, norm in updated.norms.items()]
    pairs += joint.pairs if colocate_backward else ()
    classes = colocation_classes(program.module.graph, program.updates, pairs=pairs)
    nodes = {node.name: node for node in program.module.graph.nodes}
    views = {view.name for name in program.updates for view in state_views(nodes[name])}
    rules = FxRules(
        weights=weights,
        fold_constants=False,
        phase_of=lambda node: phases.get(node.name, FORWARD),
        colocation_of=lambda node: classes.get(node.name, -1),
        resident=views,
    )
    ops = add_fx_graph(builder, program.module.graph, rules)
    for output in program.outputs:
        for tensor in ops.tensors_of.get(output, ()):
            builder.mark_output(tensor)
    inputs = [(name, name) for name in program.inputs]
    outputs = [("loss", node) for node in program.outputs]
    return builder.build(), signature_of(program.module.graph, ops, inputs, outputs)


def _with_scalar_loss(exported: ExportedProgram) -> ExportedProgram:
    """A program whose first output is a loss: itself, or with the sum of means as output.

    A loss is a scalar, a row of one number without another behind it, or the only output, if it is
    one number.
    """
    torch = torch_library()
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes}
    interface = FxInterface.of(exported)
    outputs: list[Any] = [values.get(name) for name in interface.outputs]
    if begins_with_loss(outputs):
        return exported
    if later := losses_behind(outputs):
        name = interface.output_names[min(later, key=lambda at: int(outputs[at].dim()))]
        raise InputError(
            "the model's first output is no floating-point scalar, and its output "
            f"'{name}' is one number: return the loss first, as a scalar (loss.squeeze()); if it "
            "is no loss, use a batch above 1 or return the sum to train"
        )
    if not any(hasattr(v, "dtype") and v.dtype.is_floating_point for v in outputs):
        raise InputError("a model without a floating-point output has no loss to train on")
    inner = exported.module()

    class SumOfMeans(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = inner

        def forward(self, *inputs: Any) -> Any:
            outputs = called(exported, self.model, inputs)
            floating = [value for value in outputs if value.dtype.is_floating_point]
            return sum(value.mean() for value in floating)

    examples = tuple(inference_program(exported).example_inputs.values())
    with EXPORTING:
        with_loss: ExportedProgram = torch.export.export(SumOfMeans(), examples)
    return with_loss


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
        InputError: the module cannot be exported, has hooks that a step would leave out, or the
            file lost its stops of gradients.
    """
    if isinstance(model, Path | str):
        program = load_program(existing_path(model))
        refuse_lost_stops(program)
        return program, None
    refuse_hooks_of_gradients(model)
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
        is_normalisation = isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
        part.training = part.training and is_normalisation  # it may be frozen


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
