"""Functions that an ONNX model defines: a few hundred bytes can stand for 2^40 operators.

Libraries put the nodes of a function in the place of each call before they look at anything else. A
function that calls another one twice, which calls another one twice, doubles at every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from placewright.errors import FileFormatError
from placewright.io.opened import shown_name

_MAX_NODES = 1_000_000
_MAX_DEPTH = 200  # of functions that call functions


def require_bounded_functions(model: Any) -> None:
    """Refuse functions that stand for more than a million nodes, or for themselves.

    Args:
        model: an ``onnx.ModelProto``.

    Raises:
        FileFormatError: they do.
    """
    functions = {_key(one.domain, one.name, one): one for one in model.functions}
    if not functions:
        return
    sizes: dict[tuple[str, str, str], int] = {}

    def size(nodes: Any, above: tuple[tuple[str, str, str], ...]) -> int:
        total = 0
        for node in _with_bodies(nodes):
            key = _key(node.domain, node.op_type, node)
            if key in functions and key not in sizes:
                if key in above or len(above) > _MAX_DEPTH:
                    name = shown_name(node.op_type)
                    raise FileFormatError(f"its function '{name}' calls itself, or too many others")
                sizes[key] = size(functions[key].node, (*above, key))
            total += sizes.get(key, 1)
            if total > _MAX_NODES:
                raise FileFormatError(f"its functions stand for more than {_MAX_NODES} operators")
        return total

    size(model.graph.node, ())


def _key(domain: str, name: str, held: Any) -> tuple[str, str, str]:
    """What tells functions apart; earlier versions of ONNX know no overloads."""
    return domain, name, getattr(held, "overload", "")


def _with_bodies(nodes: Any) -> Iterator[Any]:
    """Nodes, and those of the graphs that they hold."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from _with_bodies(attribute.g.node)
            for graph in attribute.graphs:
                yield from _with_bodies(graph.node)
