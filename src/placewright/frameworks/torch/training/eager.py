"""One step of a module itself, against which its traced step is checked.

Tracing leaves out what PyTorch does around operators: backward passes of an own
``torch.autograd.Function``, hooks of gradients, and buffers that a part replaces. A step that is
traced without them trains another model, and nothing later can see that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placewright.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from placewright.frameworks.torch.training.joint import JointGraph

_TOLERANCE, _COARSE = 1e-3, 5e-2  # relative to the largest element; of types below 32 bits
_MOST_BYTES = 2**30  # of parameters; the check holds them twice, their gradients, a step's tensors


@dataclass(frozen=True)
class EagerStep:
    """Loss, gradients and buffers of a step of the module, by path in the module."""

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]  # after the step


def refuse_hooks_of_gradients(model: torch.nn.Module) -> None:
    """Refuse hooks that run after a gradient was added up, which neither step here calls.

    Raises:
        InputError: a parameter that is trained has one.
    """
    for path, value in model.named_parameters():
        if value.requires_grad and getattr(value, "_post_accumulate_grad_hooks", None):
            raise InputError(
                f"parameter '{path}' has a hook of register_post_accumulate_grad_hook, which no "
                "plan runs; remove the hook"
            )


def eager_step(model: torch.nn.Module, examples: Any) -> EagerStep | None:
    """Run forward and backward once, and leave the module and its inputs as they were.

    Returns:
        None if the step cannot be compared: its weights have no values or are large, it cannot run
        here, or it does not return its loss first.
    """
    import torch

    # The module may change its inputs in place.
    examples = torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda value: value.detach().clone(), examples
    )
    parameters = dict(model.named_parameters(remove_duplicate=False))
    held = [*parameters.values(), *model.buffers()]
    if any(value.device.type != "cpu" for value in held):
        return None
    if sum(value.numel() * value.element_size() for value in held) > _MOST_BYTES:
        return None
    before = [
        (rows, name, value, None if value is None else value.detach().clone())
        for part in model.modules()
        for rows in _rows_of(part)
        for name, value in rows.items()
    ]
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            by_name = isinstance(examples, Mapping)
            loss = _first(model(**examples) if by_name else model(*examples))
            if loss is None:
                return None
            wanted = {path: p for path, p in parameters.items() if p.requires_grad}
            gradients = torch.autograd.grad(loss.sum(), list(wanted.values()), allow_unused=True)
        after = {
            path: value.detach().clone()
            for path, value in model.named_buffers(remove_duplicate=False)
        }
        return EagerStep(loss.detach(), dict(zip(wanted, gradients, strict=True)), after)
    except Exception:  # the module's own code; tracing reports what does not run
        return None
    finally:
        for rows, name, value, kept in before:
            rows[name] = value
            if value is not None and kept is not None and not torch.equal(value, kept):
                with torch.no_grad():
                    value.copy_(kept)


def _rows_of(part: torch.nn.Module) -> tuple[dict[str, Any], ...]:
    """Name -> tensor of the buffers and of the parameters that a part itself holds."""
    return part._buffers, part._parameters


def _first(outputs: Any) -> Any:
    """The scalar loss of a module's outputs, None if there is none."""
    import torch
    from torch.utils import _pytree

    found = [value for value in _pytree.tree_leaves(outputs) if isinstance(value, torch.Tensor)]
    return found[0] if begins_with_loss(found) and found[0].requires_grad else None


def begins_with_loss(outputs: Sequence[Any]) -> bool:
    """True if the first output tensor of a model is its loss.

    That is one floating-point number: the only output, a scalar, or a row if no output behind it
    may be the loss. A matrix of one number before other outputs is a result at batch 1.
    """
    if not outputs or not _is_one_number(outputs[0]):
        return False
    if len(outputs) == 1 or outputs[0].dim() == 0:
        return True
    return outputs[0].dim() == 1 and not losses_behind(outputs)


def losses_behind(outputs: Sequence[Any]) -> list[int]:
    """Positions of outputs behind the first that may be the loss.

    Those are floating-point scalars and rows of one such number. Behind more than one number, these
    are also matrices of one number, which otherwise are results at batch 1.
    """
    is_one = any(hasattr(first, "numel") and first.numel() == 1 for first in outputs[:1])
    return [
        at
        for at, output in enumerate(outputs)
        if at and _is_one_number(output) and (output.dim() <= 1 or not is_one)
    ]


def _is_one_number(output: Any) -> bool:
    """True for a tensor of one floating-point number; an output without a value is none."""
    dtype = getattr(output, "dtype", None)
    return bool(dtype is not None and dtype.is_floating_point and output.numel() == 1)


def require_equal_step(eager: EagerStep, joint: JointGraph, exported: ExportedProgram) -> None:
    """Require the loss, gradients and buffers of the traced step to be those of the module.

    Raises:
        InputError: the traced step would train another model.
    """
    import torch

    program, signature = joint.program, exported.graph_signature
    values = {**program.state, **program.example_inputs}
    names = [n.name for n in program.module.graph.nodes if n.op == "placeholder"]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        results = list(program.module(*(values[name] for name in names)))
    loss, others = results[0], results[1:]
    buffers = dict(zip(program.updates, others, strict=False))
    gradients = dict(zip(joint.gradients, others[len(buffers) :], strict=True))
    _require(loss, eager.loss, "its loss")
    for name, path in signature.inputs_to_parameters.items():
        expected = eager.gradients.get(path)
        if name in values and (name in gradients or expected is not None):
            _require(gradients.get(name), expected, f"the gradient of '{path}'")
    for name, path in signature.inputs_to_buffers.items():
        if path in eager.buffers and name in values:
            _require(buffers.get(name, values[name]), eager.buffers[path], f"buffer '{path}'")


def _require(traced: Any, own: Any, what: str) -> None:
    import torch

    size = own if own is not None else traced
    tolerance = _TOLERANCE if size.dtype.itemsize >= 4 else _COARSE
    traced = torch.zeros_like(size) if traced is None else traced
    own = torch.zeros_like(size) if own is None else own
    traced, own = traced.detach().double(), own.detach().double().reshape(traced.shape)
    if not own.numel():
        return
    apart = (traced - own).abs()
    apart[(traced == own) | (traced.isnan() & own.isnan())] = 0.0  # such as two infinities
    finite = own[own.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    difference = float(apart.max())
    if not difference <= tolerance * largest + 1e-9:  # NaN where only one of them has it
        raise InputError(
            f"the traced step is not that of the module: {what} differs by {difference:.3g}, where "
            f"its largest value is {largest:.3g}. Tracing leaves out backward passes of own "
            "autograd functions, hooks, and buffers that a part of the module replaces; write them "
            "with operators of PyTorch, and change buffers in place"
        )
