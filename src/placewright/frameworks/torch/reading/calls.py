"""Properties of the calls in a PyTorch graph: kinds, numbers, sizes, randomness. Needs no PyTorch.

A number that a program takes from a tensor (``item``, ``sym_size``) or computes from others cannot
cross a link as tensors do. It is computed again wherever an op reads it. So its node is no op, and
an op that reads the number reads the tensors behind it.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.fx import Node

# Arguments that switch randomness off: attention without dropout, layers in evaluation mode.
_PROBABILITIES, _MODES = ("dropout_p", "dropout"), ("train", "training")
# Without a probability these draw nothing. `native_dropout` draws then, too.
_DROPOUTS = ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")

# Results of these may lie in an argument's memory, of which the schemas have no record: in that of
# the first argument, or of any.
_MAY_RETURN_FIRST = frozenset(
    (
        *("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"),
        *("type_as", "sum_to_size", "_unsafe_view"),
    )
)
_MAY_RETURN_ANY = ("broadcast_tensors", "meshgrid", "atleast_1d", "atleast_2d", "atleast_3d")


def kind_of(node: Node) -> str:
    """``aten.conv2d.default`` -> ``"conv2d"``."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        return str(schema.name).rpartition("::")[2]
    return getattr(node.target, "__name__", str(node.target))


def is_item(node: Node) -> bool:
    """True for ``getitem``, which names one output of a call."""
    return node.op == "call_function" and node.target is operator.getitem


def unstated_aliases(node: Node) -> list[Node]:
    """Arguments whose memory a call's result may share, although its schema does not say so."""
    kind, inputs = kind_of(node), list(node.all_input_nodes)
    operands: Any = node.args[1] if kind == "einsum" else ()
    if kind in _MAY_RETURN_ANY or len(operands) == 1:
        return inputs
    return inputs[:1] if kind in _MAY_RETURN_FIRST else []


def is_scalar(node: Node) -> bool:
    """True for a call that returns a number or nothing, and no tensor."""
    if node.op != "call_function" or "val" not in node.meta:
        return False
    value = node.meta["val"]
    if node.target is operator.getitem and isinstance(node.args[0], type(node)):
        return not _has_tensor(value) and not is_scalar(node.args[0]) and value is not None
    return not _has_tensor(value) and not (isinstance(value, list | tuple) and len(value) > 0)


def sources(node: Node) -> list[Node]:
    """Tensors that a node reads, without repetition; a number stands for the tensors behind it."""
    tensors: dict[Node, None] = {}
    seen: set[Node] = set()
    waiting = list(reversed(node.all_input_nodes))
    while waiting:  # a program may compute thousands of numbers, each from those before it
        source = waiting.pop()
        if source in seen:
            continue
        seen.add(source)
        if is_scalar(source):
            waiting += reversed(source.all_input_nodes)
        else:
            tensors[source] = None
    return list(tensors)


def extent_of(extent: Any) -> int:
    """The number of a dimension; 1 if it is known only at run time."""
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

    PyTorch tags attention, dropout and recurrent layers as random, whatever their arguments are. In
    evaluation mode all of them are switched off.
    """
    tags = getattr(node.target, "tags", ())
    if not any("nondeterministic_seeded" in str(tag) for tag in tags):
        return False
    arguments = _arguments(node)
    names = ("p",) if kind_of(node) in _DROPOUTS else _PROBABILITIES
    is_off = any(arguments.get(name, 1.0) == 0 for name in names)
    return not is_off and not any(arguments.get(name, True) is False for name in _MODES)


def _arguments(node: Any) -> dict[str, Any]:
    """Arguments by name, defaults included."""
    arguments: dict[str, Any] = {}
    for position, argument in enumerate(node.target._schema.arguments):
        if position < len(node.args):
            arguments[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            arguments[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            arguments[argument.name] = argument.default_value
    return arguments
