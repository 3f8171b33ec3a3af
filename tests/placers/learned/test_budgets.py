"""Each published system is short enough to be read beside its paper."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import placewright

LEARNED = Path(placewright.__file__).parent / "placers" / "learned"
# Lines of code, without docstrings, comments and empty lines; HSDAG's view of the graph is apart.
BUDGETS = {
    "post": 300,
    "placeto": 450,
    "seq2seq": 300,
    "hierarchical": 300,
    "grouper_placer": 300,
    "hsdag": 600,
    "hsdag/graph.py": 300,
}


def lines_of_code(path: Path) -> int:
    """Lines that say something to Python."""
    text = path.read_text()
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            first = node.body[0]
            left_out |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return sum(
        number not in left_out and bool(line.strip()) and not line.strip().startswith("#")
        for number, line in enumerate(text.splitlines(), start=1)
    )


@pytest.mark.parametrize("system", BUDGETS)
def test_a_system_keeps_to_its_budget(system: str) -> None:
    path = LEARNED / system
    files = [path] if path.is_file() else [*path.glob("*.py")]
    counted = [file for file in files if path.is_file() or f"{system}/{file.name}" not in BUDGETS]
    assert 0 < sum(map(lines_of_code, counted)) <= BUDGETS[system]
