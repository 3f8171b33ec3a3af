"""Selection of ops by name, by module path, or by a pattern of either, such as ``layers.?``.

A range of numbers between two dots, as in ``layers.10-20.experts``, matches each of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TypeVar

from placewright.core.graph import ComputationGraph
from placewright.errors import GraphError

Value = TypeVar("Value")
_MARKS = "*?["
_RANGE = re.compile(r"(?<![^.])(\d{1,9})-(\d{1,9})(?![^.])")
_PART = re.compile(r"[^.]+")
_ALL_NAMES = "`placewright graph MODEL --ops` lists all names"


def op_named(graph: ComputationGraph, name: str) -> int:
    """Index of the op called `name`, or of the only op of a module.

    Raises:
        GraphError: there is none, or the module has several; the message lists names.
    """
    ops = ops_named(graph, name)
    if len(ops) == 1:
        return ops[0]
    shown = ", ".join(f"'{graph.op_names[op]}'" for op in ops[:3])
    raise GraphError(f"'{name}' is a module of {len(ops)} ops; name one of them, such as {shown}")


def ops_named(graph: ComputationGraph, name: str) -> list[int]:
    """The op called `name`, or all ops of the module of that path, ascending.

    Raises:
        GraphError: there is none; the message lists near names.
    """
    if name in graph.op_index:
        return [graph.op_index[name]]
    paths = enumerate(graph.op_modules)
    if inside := [op for op, path in paths if _is_inside(path, name)]:
        return inside
    near = _near(graph, name)
    raise GraphError(
        f"the graph has no op '{name}'; " + (f"did you mean {near}?" if near else _ALL_NAMES)
    )


def matching(graph: ComputationGraph, pattern: str) -> list[int]:
    """Ops that a name or a pattern of ``*``, ``?``, ``[...]`` and ranges matches, ascending.

    A module path, and a pattern that matches one, stand for all ops inside the module. An op's name
    goes before a module of the same name.

    Raises:
        GraphError: there is none; the message lists near names. Or a range has numbers that are
            in no name; the message has those that are.
    """
    if pattern in graph.op_index:
        return [graph.op_index[pattern]]
    inside = {path: _is_inside(path, pattern) for path in dict.fromkeys(graph.op_modules)}
    if pattern not in inside:
        _require_numbers(graph, pattern)
    pairs = zip(graph.op_names, graph.op_modules, strict=True)
    ops = [op for op, (name, path) in enumerate(pairs) if inside[path] or _matches(name, pattern)]
    if ops:
        return ops
    if not any(mark in pattern for mark in _MARKS):
        return ops_named(graph, pattern)
    near = _near(graph, pattern.translate({ord(mark): None for mark in "*?[]"}))
    raise GraphError(
        f"no op fits the pattern '{pattern}'; " + (f"near names are {near}" if near else _ALL_NAMES)
    )


def _require_numbers(graph: ComputationGraph, pattern: str) -> None:
    """Refuse a range that goes beyond the numbers of ops and modules at its place in names."""
    names = dict.fromkeys([*graph.op_names, *graph.op_modules])
    for found in _RANGE.finditer(pattern):
        before = pattern[: found.start()]
        numbers = [
            int(part[0])
            for name in names
            for part in _PART.finditer(name)
            if _is_number(part[0]) and _matches(name[: part.start()], before)
        ]
        if numbers and not min(numbers) <= int(found[1]) <= int(found[2]) <= max(numbers):
            valid = f"{before}{min(numbers)} to {before}{max(numbers)}"
            raise GraphError(f"'{found[0]}' of '{pattern}' is no range of {valid}")


def _is_inside(path: str, pattern: str) -> bool:
    """True if a module, or a module around it, matches a pattern."""
    parts = path.split(".") if path else []
    around = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return any(_matches(module, pattern) for module in around)


def _matches(name: str, pattern: str) -> bool:
    """True if a name matches a pattern; a range matches a whole part of the name."""
    if fnmatchcase(name, pattern):
        return True
    if (found := _RANGE.search(pattern)) is None:
        return False
    before, after = pattern[: found.start()], pattern[found.end() :]
    return any(
        _is_within(part[0], found)
        and fnmatchcase(name[: part.start()], before)
        and _matches(name[part.end() :], after)
        for part in _PART.finditer(name)
    )


def _is_within(part: str, found: re.Match[str]) -> bool:
    """True if a part of a name is a number of a range, or the text of the range itself."""
    if not _is_number(part):
        return part == found[0]
    return int(found[1]) <= int(part) <= int(found[2])


def _is_number(part: str) -> bool:
    return len(part) < 10 and part.isascii() and part.isdigit()


def _near(graph: ComputationGraph, text: str) -> str:
    """Names of ops and modules that contain a text or resemble it, up to three."""
    names = dict.fromkeys([*graph.op_names, *filter(None, graph.op_modules)])
    near = [name for name in names if text and text.lower() in name.lower()][:3]
    return ", ".join(near or get_close_matches(text, names))


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
