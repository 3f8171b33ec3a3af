"""Selection of ops by name or by pattern, such as ``layers.0.*``."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TypeVar

from placewright.core.graph import ComputationGraph
from placewright.errors import GraphError

Value = TypeVar("Value")
_MARKS = "*?["
_ALL_NAMES = "`placewright graph MODEL --ops` lists all names"


def op_named(graph: ComputationGraph, name: str) -> int:
    """Index of the op called `name`.

    Raises:
        GraphError: there is none; the message lists near names.
    """
    if name in graph.op_index:
        return graph.op_index[name]
    near = _near(graph, name)
    raise GraphError(
        f"the graph has no op '{name}'; " + (f"did you mean {near}?" if near else _ALL_NAMES)
    )


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
    near = _near(graph, pattern.translate({ord(mark): None for mark in "*?[]"}))
    raise GraphError(
        f"no op fits the pattern '{pattern}'; " + (f"near names are {near}" if near else _ALL_NAMES)
    )


def _near(graph: ComputationGraph, text: str) -> str:
    """Names that contain a text or resemble it, up to three."""
    near = [name for name in graph.op_names if text and text.lower() in name.lower()][:3]
    return ", ".join(near or get_close_matches(text, graph.op_names))


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
