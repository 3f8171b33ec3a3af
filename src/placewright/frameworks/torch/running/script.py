"""TorchScript text of a segment's graph, so that its operators are called without Python.

Python holds its global lock between two operators that it calls. With small operators two workers
would spend their time waiting for it. The interpreter of TorchScript calls the same kernels in the
same order, releases the lock for the whole segment, and drops a tensor after its last use.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.fx import GraphModule, Node

from placewright.frameworks.torch.reading.calls import draws_random_numbers, is_item

ScriptFunction = Callable[[Any, Any], list[torch.Tensor]]


class NotScriptable(Exception):
    """A call cannot be written as TorchScript; the message names it."""


def script_text(module: GraphModule, n_inputs: int) -> str:
    """Write TorchScript of a segment's module.

    The function is called ``segment``. It takes a list of the tensors that enter, which it empties,
    and a list of state tensors, some of which it may write.

    Args:
        module: placeholders of the tensors that enter, then of state; one list of outputs.
        n_inputs: number of the former.

    Raises:
        NotScriptable: an operator or argument has no TorchScript form.
    """
    return _Writing(module, n_inputs).text()


@lru_cache(maxsize=4096)
def compiled_script(text: str) -> ScriptFunction:
    """Compile a text of `script_text`; equal texts give the same function.

    Raises:
        NotScriptable: TorchScript refuses the text.
    """
    try:
        unit = torch.jit.CompilationUnit(text)
    except RuntimeError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise NotScriptable(lines[0] if lines else "refused without a reason") from error
    return unit.segment  # type: ignore[no-any-return]


@contextlib.contextmanager
def without_optimization() -> Iterator[None]:
    """Let TorchScript call each operator separately, as workers do.

    By default a thread's second run of a segment merges matrix products, which takes less memory.
    """
    before = torch._C._get_graph_executor_optimize()
    torch._C._set_graph_executor_optimize(False)
    try:
        yield
    finally:
        torch._C._set_graph_executor_optimize(before)


class _Writing:
    """State of writing a text."""

    def __init__(self, module: GraphModule, n_inputs: int) -> None:
        self.module, self.n_inputs = module, n_inputs
        self.name_of: dict[Node, str] = {}
        self.entries_of: dict[Node, list[str]] = {}
        self.lines: list[str] = []

    def text(self) -> str:
        """The whole function."""
        placeholders = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        for number, node in enumerate(placeholders):
            self.name_of[node] = node.name
            if number >= self.n_inputs:
                self.lines.append(f"{node.name} = state[{number - self.n_inputs}]")
        # Popping moves a tensor out of the list, so that it dies after its last use.
        pops = [f"{node.name} = entering.pop()" for node in reversed(placeholders[: self.n_inputs])]
        self.lines = pops + self.lines
        for node in self.module.graph.nodes:
            if is_item(node):
                self.name_of[node] = self.entries_of[node.args[0]][node.args[1]]
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                values = ", ".join(self.name_of[value] for value in node.args[0])
                empty = "torch.jit.annotate(List[Tensor], [])"
                self.lines.append(f"return [{values}]" if values else f"return {empty}")
        head = "def segment(entering: List[Tensor], state: List[Tensor]):"
        return "\n".join([head, *(f"    {line}" for line in self.lines), ""])

    def _call(self, node: Node) -> None:
        target = node.target
        schema = getattr(target, "_schema", None)
        if schema is None or draws_random_numbers(node):
            raise NotScriptable(f"operator {target}")
        namespace, _, name = str(schema.name).partition("::")
        arguments = {argument.name: argument.type for argument in schema.arguments}
        literals = [
            _literal(value, argument.type, self.name_of)
            for value, argument in zip(node.args, schema.arguments, strict=False)
        ]
        literals += [
            f"{key}={_literal(value, arguments[key], self.name_of)}"
            for key, value in node.kwargs.items()
        ]
        call = f"torch.ops.{namespace}.{name}({', '.join(literals)})"
        value = node.meta.get("val")
        if isinstance(value, list | tuple):
            names = [f"{node.name}_at{number}" for number in range(len(value))]
            self.entries_of[node] = names
            if len(names) == 1:
                self.lines.append(f"{names[0]} = {call}[0]")
            else:
                self.lines.append(f"{', '.join(names)} = {call}")
        elif len(schema.returns) == 1 and str(schema.returns[0].type) == "Tensor":
            self.name_of[node] = node.name
            self.lines.append(f"{node.name} = {call}")
        else:
            raise NotScriptable(f"operator {target} returns {[str(r) for r in schema.returns]}")


def _literal(value: Any, kind: Any, name_of: dict[Node, str]) -> str:
    """TorchScript text of an argument of type `kind`."""
    while kind.kind() == "OptionalType" and value is not None:
        kind = kind.getElementType()
    if value is None:
        return "None"
    if isinstance(value, Node):
        if value not in name_of:
            raise NotScriptable(f"value of {value} is no tensor")
        return name_of[value]
    if isinstance(value, list | tuple):
        return _list(value, kind, name_of)
    return _scalar(value, kind)


def _list(values: Sequence[Any], kind: Any, name_of: dict[Node, str]) -> str:
    if kind.kind() != "ListType":
        raise NotScriptable(f"a list for {kind}")
    element = kind.getElementType()
    inner = ", ".join(_literal(value, element, name_of) for value in values)
    names = {"SymInt": "int", "number": "number", "Scalar": "number"}
    text = str(element)
    text = names.get(text, text)
    if text == "number":
        raise NotScriptable(f"a list of scalars for {kind}")
    text = {"Tensor?": "Optional[Tensor]"}.get(text, text)
    return f"torch.jit.annotate(List[{text}], [{inner}])"


def _scalar(value: Any, kind: Any) -> str:
    is_number = kind.kind() in ("NumberType", "AnyType")
    if isinstance(value, bool):
        if is_number:
            raise NotScriptable("a truth value for a number")
        return repr(value)
    if isinstance(value, int):
        return repr(float(value)) if kind.kind() == "FloatType" else repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"float('{value}')"
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, torch.device):
        return f"torch.device('{value}')"
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return str(value)
    raise NotScriptable(f"argument {value!r} of type {kind}")
