"""Checks of the JSON from which PyTorch makes a program.

A check takes a value and returns it, without the parts that no reader needs, or raises
FileFormatError. It refuses every key, kind of a union and type that it does not know.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from placewright.errors import FileFormatError

Check = Callable[[Any], Any]
Kind = TypeVar("Kind")

LONGEST_NAME = 1000  # characters
_SHOWN = 40  # characters of a wrong value that a message repeats
_SEGMENT = re.compile(r"[\w-]+")  # keys of a ModuleDict may hold a dash
SYMBOL = re.compile(r"-?(0|[1-9]\d{0,18})|-?(s|u|ps|zf|zuf)\d{1,6}", re.ASCII)
_FLOAT_TEXTS = ("Infinity", "-Infinity", "NaN")
DROPPED: Check = lambda value: DROPPED  # noqa: E731 -- marks a value that `record` leaves out
_LONGEST_SIZE = 2000  # characters
_DEEPEST_SIZE = 30
_LARGEST_POWER = 8
_FUNCTIONS = (
    "Add", "And", "CeilDiv", "CleanDiv", "Equality", "FloorDiv", "GreaterThan", "Identity",
    "LessThan", "Max", "Min", "Mod", "ModularIndexing", "Mul", "Not", "Or", "PythonMod",
    "StrictGreaterThan", "StrictLessThan", "Unequality", "Where",
)  # fmt: skip
_ASSUMPTIONS = ("integer", "negative", "nonnegative", "nonzero", "positive", "real")
_CONSTANTS = ("true", "false")


def shown(value: object) -> str:
    """A value for messages: short ASCII text on one line."""
    text = ascii(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def identifier(value: Any) -> str:
    """A name that may stand in source text: a Python identifier, and no keyword.

    Raises:
        FileFormatError: the value is no such name. All checks raise this error.
    """
    name = text(value)
    is_plain = name.isidentifier() and unicodedata.normalize("NFKC", name) == name
    if not is_plain or keyword.iskeyword(name) or len(name) > LONGEST_NAME:
        raise FileFormatError(f"the name {shown(name)} is no plain identifier")
    return name


def dotted(value: Any) -> str:
    """The path of a parameter or of a module: words with dots between them."""
    path = text(value)
    if len(path) > LONGEST_NAME or not all(map(_SEGMENT.fullmatch, path.split("."))):
        raise FileFormatError(f"the path {shown(path)} is not made of identifiers and dots")
    return path


def symbol(value: Any) -> str:
    """A size that is not computed: an integer, or a symbol with a name that PyTorch gives."""
    size = text(value)
    if not SYMBOL.fullmatch(size):
        raise FileFormatError(f"it computes sizes ({shown(size)}); export with static shapes")
    return size


def text(value: Any) -> str:
    """A string."""
    return _typed(value, str, "a text")


def flag(value: Any) -> bool:
    """True or false."""
    return _typed(value, bool, "true or false")


def integer(value: Any) -> int:
    """A signed integer of 64 bits."""
    number = _typed(value, int, "an integer")
    if isinstance(value, bool) or not -(2**63) <= number < 2**63:
        raise FileFormatError(f"{shown(value)} stands where an integer of 64 bits belongs")
    return number


def real(value: Any) -> float | str:
    """A number, or the text of a number that JSON cannot write."""
    if value in _FLOAT_TEXTS:
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FileFormatError(f"{shown(value)} stands where a number belongs")
    return value


def one_of(*known: str) -> Check:
    """One of some known texts."""

    def check(value: Any) -> str:
        if value not in known:
            raise FileFormatError(f"{shown(value)} is none of {', '.join(known)}")
        return str(value)

    return check


def empty(what: str) -> Check:
    """An empty list, object or text; `what` completes the message 'it ...' for others."""

    def check(value: Any) -> Any:
        if value:
            raise FileFormatError(f"it {what}")
        return value

    return check


def optional(check: Check) -> Check:
    """A value or null."""
    return lambda value: None if value is None else check(value)


def sequence(check: Check) -> Check:
    """A list whose values pass a check."""
    return lambda value: [check(entry) for entry in _typed(value, list, "a list")]


def mapping(key_check: Check, check: Check) -> Check:
    """An object whose names and values pass checks."""

    def checked(value: Any) -> dict[str, Any]:
        entries = _typed(value, dict, "an object").items()
        return {key_check(key): check(entry) for key, entry in entries}

    return checked


def record(required: Mapping[str, Check], more: Mapping[str, Check] | None = None) -> Check:
    """An object with these keys; keys of `more` may be missing."""
    known = {**required, **(more or {})}

    def checked(value: Any) -> dict[str, Any]:
        entries = _typed(value, dict, "an object")
        for key in entries:
            if key not in known:
                raise FileFormatError(f"it holds {shown(key)}, which no exported program needs")
        checked_entries = [(key, known[key](entry)) for key, entry in entries.items()]
        for key in required:
            if key not in entries:
                raise FileFormatError(f"an entry lacks '{key}'")
        return {key: entry for key, entry in checked_entries if entry is not DROPPED}

    return checked


def union(kinds: Mapping[str, Check]) -> Check:
    """An object with one key, the kind of its value."""

    def checked(value: Any) -> dict[str, Any]:
        entries = _typed(value, dict, "an object")
        kind = next(iter(entries), "")
        if len(entries) != 1 or kind not in kinds:
            raise FileFormatError(f"it holds {shown(kind)}, which no exported program needs")
        return {kind: kinds[kind](entries[kind])}

    return checked


def _typed(value: Any, kind: type[Kind], what: str) -> Kind:
    if not isinstance(value, kind):
        raise FileFormatError(f"{shown(value)} stands where {what} belongs")
    return value


def expression(value: Any) -> str:
    """A computed size or a condition on sizes: an integer, a symbol, or sums and the like.

    A size that depends on data, as the number of nonzero entries does, stands in the file as a text
    such as ``Add(Symbol('u0', integer=True), Integer(4))``. PyTorch passes it to SymPy, which would
    call any name in it. So the text is parsed here, may call only the functions of which sizes are
    made, and is written anew.

    Raises:
        FileFormatError: the value is anything else.
    """
    size = text(value)
    if SYMBOL.fullmatch(size):
        return size
    try:
        if len(size) > _LONGEST_SIZE:
            raise ValueError
        tree = ast.parse(size, mode="eval").body
        _check_size(tree, 0, _LARGEST_POWER)
        return ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        message = f"it computes sizes ({shown(size)}); export with static shapes"
        raise FileFormatError(message) from None


def _check_size(node: ast.expr, depth: int, power: int) -> None:
    """Check an expression; powers inside each other multiply to `power` at most."""
    if depth > _DEEPEST_SIZE:
        raise ValueError
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError
    name = node.func.id
    if name == "Symbol":
        _check_symbol(node)
        return
    if node.keywords:
        raise ValueError
    if name == "Integer":
        (number,) = node.args
        _checked_integer(number)
    elif name == "Pow":
        base, by = node.args
        if not (isinstance(by, ast.Call) and isinstance(by.func, ast.Name)):
            raise ValueError
        (number,) = by.args
        size = abs(_checked_integer(number))
        if by.func.id != "Integer" or by.keywords or size > power:
            raise ValueError
        _check_size(base, depth + 1, power // max(size, 1))
    elif name in _FUNCTIONS:
        for part in node.args:
            _check_size(part, depth + 1, power)
    else:
        raise ValueError


def _check_symbol(node: ast.Call) -> None:
    (name,) = node.args
    if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
        raise ValueError
    if not SYMBOL.fullmatch(name.value) or name.value.lstrip("-").isdecimal():
        raise ValueError
    for assumption in node.keywords:
        held = assumption.value
        value = held.value if isinstance(held, ast.Constant) else None
        if assumption.arg not in _ASSUMPTIONS or not isinstance(value, bool):
            raise ValueError


def _checked_integer(node: ast.expr) -> int:
    is_negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    number = node.operand if isinstance(node, ast.UnaryOp) else node
    if isinstance(node, ast.UnaryOp) and not is_negative:
        raise ValueError
    value = number.value if isinstance(number, ast.Constant) else None
    if isinstance(value, bool) or not isinstance(value, int) or value >= 2**63:
        raise ValueError
    return -value if is_negative else value
