"""What a conversion loses of a PyTorch program: the names of its inputs and outputs, and its state.

A converter renames inputs (of nested arguments it makes ``input5``) and outputs, keeps their order,
and drops parameters that nothing reads. So a converted file carries what the program said.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from placewright.core.signature import Port, Signature, distinct
from placewright.core.source import ModelSource
from placewright.frameworks.torch.reading.fx_interface import FxInterface

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_KEY = "placewright_interface"


@dataclass(frozen=True)
class Interface:
    """Names of a program's inputs and outputs in its own order, and paths of its state."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    state: tuple[str, ...]

    @classmethod
    def of_program(cls, program: ExportedProgram) -> Interface:
        """What an exported program says."""
        told = FxInterface.of(program)
        return cls(told.input_names, told.output_names, told.state)

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


def keep_in_openvino(model: Any, interface: Interface) -> None:
    """Write an interface into an ``openvino.Model``, which is saved with it."""
    model.set_rt_info(interface.text(), _KEY)


def interface_of_openvino(model: Any) -> Interface | None:
    """What `keep_in_openvino` wrote; None where there is nothing, or nothing of that form."""
    if not model.has_rt_info(_KEY):
        return None
    held = model.get_rt_info(_KEY)
    return _parsed(str(getattr(held, "value", held)))


def keep_in_onnx(model: Any, interface: Interface) -> None:
    """Write an interface into an ``onnx.ModelProto``."""
    model.metadata_props.add(key=_KEY, value=interface.text())


def interface_of_onnx(model: Any) -> Interface | None:
    """What `keep_in_onnx` wrote; None where there is nothing, or nothing of that form."""
    for entry in model.metadata_props:
        if entry.key == _KEY:
            return _parsed(entry.value)
    return None


def _parsed(text: str) -> Interface | None:
    try:
        data = json.loads(text)
        rows = [data["inputs"], data["outputs"], data["state"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not all(isinstance(row, list) and all(isinstance(e, str) for e in row) for row in rows):
        return None
    return Interface(*(tuple(row) for row in rows))


def _renamed(ports: Sequence[Port], names: Sequence[str]) -> tuple[Port, ...]:
    """The converter's own names are dropped: it may have given one that belongs to another."""
    pairs = zip(ports, names, strict=True)
    return distinct(replace(port, name=name, other_names=()) for port, name in pairs)
