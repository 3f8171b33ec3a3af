"""Sizes that a program computes: texts that PyTorch hands to SymPy, which evaluates them.

A size that depends on data, as the number of nonzero entries does, stands in the file as a text
such as ``Add(Symbol('u0', integer=True), Integer(4))``. SymPy would call any name in it. So the
text is parsed here, may call only the functions that sizes are made of, and is written anew.
"""

from __future__ import annotations

import ast
from typing import Any

from placewright.errors import FileFormatError
from placewright.frameworks.torch.pt2.grammar import SYMBOL, shown, text

_LONGEST = 2000  # characters
_DEEPEST = 30
_LARGEST_POWER = 8
_FUNCTIONS = (
    "Add", "And", "CeilDiv", "CleanDiv", "Equality", "FloorDiv", "GreaterThan", "Identity",
    "LessThan", "Max", "Min", "Mod", "ModularIndexing", "Mul", "Not", "Or", "PythonMod",
    "StrictGreaterThan", "StrictLessThan", "Unequality", "Where",
)  # fmt: skip
_ASSUMPTIONS = ("integer", "negative", "nonnegative", "nonzero", "positive", "real")
_CONSTANTS = ("true", "false")


def expression(value: Any) -> str:
    """A size or a condition on sizes: an integer, a symbol, or sums and the like of them.

    Raises:
        FileFormatError: it is anything else.
    """
    given = text(value)
    if SYMBOL.fullmatch(given):
        return given
    try:
        if len(given) > _LONGEST:
            raise ValueError
        tree = ast.parse(given, mode="eval").body
        _check(tree, 0)
        return ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        told = f"it computes sizes ({shown(given)}); export with static shapes"
        raise FileFormatError(told) from None


def _check(node: ast.expr, depth: int) -> None:
    if depth > _DEEPEST:
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
        _integer(number)
    elif name == "Pow":
        base, power = node.args
        _check(base, depth + 1)
        if not (isinstance(power, ast.Call) and isinstance(power.func, ast.Name)):
            raise ValueError
        (number,) = power.args
        if power.func.id != "Integer" or power.keywords or abs(_integer(number)) > _LARGEST_POWER:
            raise ValueError
    elif name in _FUNCTIONS:
        for part in node.args:
            _check(part, depth + 1)
    else:
        raise ValueError


def _check_symbol(node: ast.Call) -> None:
    (name,) = node.args
    if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
        raise ValueError
    if not SYMBOL.fullmatch(name.value) or name.value.lstrip("-").isdecimal():
        raise ValueError
    for one in node.keywords:
        value = one.value.value if isinstance(one.value, ast.Constant) else None
        if one.arg not in _ASSUMPTIONS or not isinstance(value, bool):
            raise ValueError


def _integer(node: ast.expr) -> int:
    is_negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    number = node.operand if isinstance(node, ast.UnaryOp) else node
    if isinstance(node, ast.UnaryOp) and not is_negative:
        raise ValueError
    value = number.value if isinstance(number, ast.Constant) else None
    if isinstance(value, bool) or not isinstance(value, int) or value >= 2**63:
        raise ValueError
    return -value if is_negative else value
