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
