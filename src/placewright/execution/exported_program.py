"""PyTorch programs for frameworks that convert them: loading, and names of inputs and outputs.

A converter renames inputs (such as nested arguments to ``input5``) and outputs, keeps their order,
and drops parameters without readers. So a converted file also stores the program's `Interface`.
A framework that converts programs gets a `ProgramFile` from the framework that loads them.
"""

from __future__ import annotations

import copy
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.core.source import ModelSource, Port, Signature, distinct

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

INTERFACE_KEY = "placewright_interface"  # of the interface in a converted file
# Held by who exports a module: for a moment this changes its hooks and modes, and PyTorch itself.
EXPORTING = threading.RLock()


@dataclass(frozen=True)
class Interface:
    """Names of a program's inputs and outputs in its own order, and paths of its state."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    state: tuple[str, ...]

    @classmethod
    def of_text(cls, text: str) -> Interface | None:
        """Parse a text that the method `text` has made; None if it has another form."""
        try:
            data = json.loads(text)
            rows = [data["inputs"], data["outputs"], data["state"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        if not all(isinstance(row, list) and all(isinstance(e, str) for e in row) for row in rows):
            return None
        return cls(*(tuple(row) for row in rows))

    def text(self) -> str:
        """The interface as JSON, for a converted file."""
        return json.dumps({"inputs": self.inputs, "outputs": self.outputs, "state": self.state})

    def applied_to(self, source: ModelSource) -> ModelSource:
        """Give a converted file the program's names of inputs and outputs, and its state's paths.

        If the numbers of inputs or outputs differ, the file's source is returned unchanged. A
        source without a signature gets only the paths of the state.
        """
        old = source.signature
        if old is None:
            return replace(source, state=self.state)
        counts = (len(old.inputs), len(old.outputs))
        if counts != (len(self.inputs), len(self.outputs)):
            return source
        signature = Signature(
            _renamed(old.inputs, self.inputs), _renamed(old.outputs, self.outputs)
        )
        return replace(source, signature=signature, state=self.state)


def port_names(inputs: Sequence[str], n_outputs: int, state: Sequence[str]) -> Interface:
    """Make an interface; one output is named ``output``, several ``output_0``, ``output_1``."""
    outputs = [f"output_{at}" for at in range(n_outputs)] if n_outputs != 1 else ["output"]
    return Interface(tuple(inputs), tuple(outputs), tuple(state))


@dataclass(frozen=True)
class ProgramFile:
    """A file with a PyTorch program, for a framework that cannot load it by itself."""

    path: Path  # of the file, which exists
    load: Callable[[Path], tuple[ExportedProgram, Interface]]  # loads the program and its interface


class OwnClasses:
    """Restores the dataclasses of a module's result that `plain_results` made dictionaries."""

    result: Any = None  # of the module's last call, with its own classes and None for each tensor

    def restored(self, plain: Any) -> Any:
        """Turn dictionaries in a result back into objects of the module's own classes.

        Args:
            plain: a result with dictionaries for these objects, and with the tensors.
        """
        return _restored(self.result, plain)


@contextmanager
def plain_results(module: Any, own: OwnClasses | None = None) -> Iterator[None]:
    """Within this context, a module returns dictionaries for dataclasses unknown to PyTorch.

    Hugging Face's models may return such classes. Fields that are None are left out.

    Args:
        own: receives the structure of the module's original result, without tensors.
    """
    told = own or OwnClasses()

    from torch.utils._pytree import tree_map

    def noted(_module: Any, _inputs: Any, result: Any) -> Any:
        plain = _plain(result)
        told.result = _restored(result, tree_map(lambda _: None, plain))
        return plain

    handle = module.register_forward_hook(noted)
    try:
        yield
    finally:
        handle.remove()


def _restored(model: Any, plain: Any) -> Any:
    if type(model) in (tuple, list):
        return type(model)(map(_restored, model, plain))
    if not isinstance(plain, dict):
        return plain
    if type(model) is dict and model.keys() >= plain.keys():
        return {key: _restored(model[key], part) for key, part in plain.items()}
    if not is_dataclass(model) or isinstance(model, type):
        return plain
    own = copy.copy(model)  # without its constructor, which may check or compute
    for field in fields(model):
        value = _restored(getattr(model, field.name), plain.get(field.name))
        object.__setattr__(own, field.name, value)
        if isinstance(own, dict) and field.name in own:
            dict.__setitem__(own, field.name, value)  # transformers' classes hold fields twice
            if isinstance(own, OrderedDict):
                own.move_to_end(field.name)  # copies begin with fields that hold no tensor
    return own


def _plain(value: Any) -> Any:
    from torch.utils._pytree import SUPPORTED_NODES

    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    if type(value) is dict:
        return {key: _plain(part) for key, part in value.items()}
    if not is_dataclass(value) or type(value) in SUPPORTED_NODES:
        return value
    parts = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: _plain(part) for name, part in parts.items() if part is not None}


def tensor_inputs(program: ExportedProgram) -> list[str]:
    """Names of the placeholders of the tensors that a user gives a program, in its own order.

    Parameters, buffers and inputs that are no tensors are left out.
    """
    from torch.export.graph_signature import InputKind, TensorArgument

    return [
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
    ]


def module_of(node: Node) -> str:
    """Dotted path of the innermost module that a node comes from; "" if there is none.

    A backward node has the module of its forward node.
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    paths = [str(entry[0]) for entry in stack.values()]
    return paths[-1].removeprefix("L['self'].") if paths else ""


def _renamed(ports: Sequence[Port], names: Sequence[str]) -> tuple[Port, ...]:
    """Give each port the name at its position, and remove its other names.

    These are the converter's, and one of them may be another port's new name.
    """
    pairs = zip(ports, names, strict=True)
    return distinct(replace(port, name=name, other_names=()) for port, name in pairs)
