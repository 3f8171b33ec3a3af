"""Numbers between the tensors of a program: sizes, items, conditions, and what asserts them.

A number that a program takes from a tensor (``item``, ``sym_size``) or computes from others is no
tensor that could cross a link. It is computed again wherever an op reads it: such a node is no op,
and what reads it reads the tensors behind it.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.fx import Node

# Arguments that switch randomness off: attention without dropout, layers in evaluation mode.
_PROBABILITIES, _MODES = ("dropout_p", "dropout"), ("train", "training")


def is_scalar(node: Node) -> bool:
    """True for a call that gives a number, or nothing at all, and no tensor."""
    if node.op != "call_function" or "val" not in node.meta:
        return False
    value = node.meta["val"]
    if node.target is operator.getitem and isinstance(node.args[0], type(node)):
        return not _has_tensor(value) and not is_scalar(node.args[0]) and value is not None
    return not _has_tensor(value) and not (isinstance(value, list | tuple) and len(value) > 0)


def sources(node: Node) -> list[Node]:
    """What a node reads, once each: tensors, with those behind a number in its place."""
    found: dict[Node, None] = {}
    for source in node.all_input_nodes:
        found.update(dict.fromkeys(sources(source) if is_scalar(source) else [source]))
    return list(found)


def extent_of(extent: Any) -> int:
    """A dimension; one that is known only at run time counts as 1."""
    try:
        return int(extent)
    except Exception:  # PyTorch has no error type of its own for a size that depends on data
        return 1


def _has_tensor(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_tensor(entry) for entry in value)
    return hasattr(value, "element_size")


def draws_random_numbers(node: Any) -> bool:
    """True for a `torch.fx` node whose operator draws random numbers with these arguments.

    PyTorch tags attention, dropout and recurrent layers as random whatever their arguments are; in
    a model that is evaluated all of them are switched off.
    """
    tags = getattr(node.target, "tags", ())
    if not any("nondeterministic_seeded" in str(tag) for tag in tags):
        return False
    given = _arguments(node)
    is_off = any(given.get(name, 1.0) == 0 for name in _PROBABILITIES)
    return not is_off and not any(given.get(name, True) is False for name in _MODES)


def _arguments(node: Any) -> dict[str, Any]:
    """Arguments by name, those that the call leaves out by their default."""
    found: dict[str, Any] = {}
    for position, argument in enumerate(node.target._schema.arguments):
        if position < len(node.args):
            found[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            found[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            found[argument.name] = argument.default_value
    return found
