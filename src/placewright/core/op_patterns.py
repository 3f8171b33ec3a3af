"""Selection of ops by name or by pattern, such as ``layers.0.*``."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TypeVar

from placewright.core.graph import ComputationGraph
from placewright.core.problem import op_named
from placewright.errors import GraphError

Value = TypeVar("Value")
_MARKS = "*?["


def matching(graph: ComputationGraph, pattern: str) -> list[int]:
    """Ops that a name or a pattern of ``*``, ``?`` and ``[...]`` matches, ascending.

    Raises:
        GraphError: there is none; the message lists near names.
    """
    if pattern in graph.op_index or not any(mark in pattern for mark in _MARKS):
        return [op_named(graph, pattern)]
    ops = [op for op, name in enumerate(graph.op_names) if fnmatchcase(name, pattern)]
    if ops:
        return ops
    plain = pattern.translate({ord(mark): None for mark in "*?[]"})
    near = [name for name in graph.op_names if plain and plain.lower() in name.lower()][:3]
    near = near or get_close_matches(plain, graph.op_names)
    hint = (
        f"near names are {', '.join(near)}"
        if near
        else "`placewright graph MODEL --ops` lists all names"
    )
    raise GraphError(f"no op fits the pattern '{pattern}'; {hint}")


def by_op(graph: ComputationGraph, said: Mapping[str, Value]) -> dict[int, Value]:
    """Expand values of names and patterns to ops: later patterns win, and names over all.

    Ops come in the order of their keys, so that of two ops in one unit the later one wins.

    Raises:
        GraphError: a name or a pattern matches no op.
    """
    patterns = {key: value for key, value in said.items() if key not in graph.op_index}
    names = {key: value for key, value in said.items() if key in graph.op_index}
    values: dict[int, Value] = {}
    for key, value in (*patterns.items(), *names.items()):
        for op in matching(graph, key):
            values.pop(op, None)
            values[op] = value
    return values
