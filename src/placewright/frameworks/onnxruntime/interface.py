"""The names and the state of a PyTorch program in the ONNX file that it was exported to."""

from __future__ import annotations

from typing import Any

from placewright.execution.exported_program import INTERFACE_KEY, Interface


def keep_interface(model: Any, interface: Interface) -> None:
    """Write an interface into an ``onnx.ModelProto``."""
    model.metadata_props.add(key=INTERFACE_KEY, value=interface.text())


def kept_interface(model: Any) -> Interface | None:
    """What `keep_interface` wrote; None where there is nothing, or nothing of that form."""
    for entry in model.metadata_props:
        if entry.key == INTERFACE_KEY:
            return Interface.of_text(entry.value)
    return None
