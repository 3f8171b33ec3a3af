"""What frameworks that convert a PyTorch program must know of it, beside the program itself.

A converter renames inputs (of nested arguments it makes ``input5``) and outputs, keeps their order,
and drops parameters that nothing reads. So a converted file carries what the program said. Which
framework loads a program is no matter of the one that converts it: it is handed a `ProgramFile`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.core.signature import Port, Signature, distinct
from placewright.core.source import ModelSource

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

INTERFACE_KEY = "placewright_interface"  # under which a converted file holds it


@dataclass(frozen=True)
class Interface:
    """Names of a program's inputs and outputs in its own order, and paths of its state."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    state: tuple[str, ...]

    @classmethod
    def of_text(cls, text: str) -> Interface | None:
        """What `text` made; None where it is nothing of that form."""
        try:
            data = json.loads(text)
            rows = [data["inputs"], data["outputs"], data["state"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        if not all(isinstance(row, list) and all(isinstance(e, str) for e in row) for row in rows):
            return None
        return cls(*(tuple(row) for row in rows))

    def text(self) -> str:
        """As it stands in a converted file."""
        return json.dumps({"inputs": self.inputs, "outputs": self.outputs, "state": self.state})

    def applied_to(self, source: ModelSource) -> ModelSource:
        """The source of a converted file by the program's names; as it is where they do not fit."""
        held = source.signature
        if held is None:
            return replace(source, state=self.state)
        counts = (len(held.inputs), len(held.outputs))
        if counts != (len(self.inputs), len(self.outputs)):
            return source
        signature = Signature(
            _renamed(held.inputs, self.inputs), _renamed(held.outputs, self.outputs)
        )
        return replace(source, signature=signature, state=self.state)


def port_names(inputs: Sequence[str], n_outputs: int, state: Sequence[str]) -> Interface:
    """The interface of a module whose outputs have no names: ``output``, or numbered ones."""
    outputs = [f"output_{at}" for at in range(n_outputs)] if n_outputs != 1 else ["output"]
    return Interface(tuple(inputs), tuple(outputs), tuple(state))


@dataclass(frozen=True)
class ProgramFile:
    """A file that holds a PyTorch program, for a framework that cannot load it by itself.

    Attributes:
        path: of the file, which exists.
        load: loads the program and tells its interface; nothing is loaded before it is called.
    """

    path: Path
    load: Callable[[Path], tuple[ExportedProgram, Interface]]


@contextmanager
def plain_results(module: Any) -> Iterator[None]:
    """A block in which a module returns dictionaries for dataclasses that PyTorch does not know.

    Hugging Face's models return such classes. Fields that are None are left out.
    """
    handle = module.register_forward_hook(lambda _module, _inputs, result: _plain(result))
    try:
        yield
    finally:
        handle.remove()


def _plain(value: Any) -> Any:
    from torch.utils._pytree import SUPPORTED_NODES

    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    if type(value) is dict:
        return {key: _plain(part) for key, part in value.items()}
    if not is_dataclass(value) or type(value) in SUPPORTED_NODES:
        return value
    held = {one.name: getattr(value, one.name) for one in fields(value)}
    return {name: _plain(part) for name, part in held.items() if part is not None}


def tensor_inputs(program: ExportedProgram) -> list[str]:
    """Placeholders of the tensors that a program takes, in its own order."""
    from torch.export.graph_signature import InputKind, TensorArgument

    return [
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
    ]


def module_of(node: Node) -> str:
    """Path of the innermost module that a node came from (of a backward node: its forward one), ""
    where unknown."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    paths = [str(entry[0]) for entry in stack.values()]
    return paths[-1].removeprefix("L['self'].") if paths else ""


def _renamed(ports: Sequence[Port], names: Sequence[str]) -> tuple[Port, ...]:
    """The converter's own names are dropped: it may have given one that belongs to another."""
    pairs = zip(ports, names, strict=True)
    return distinct(replace(port, name=name, other_names=()) for port, name in pairs)
