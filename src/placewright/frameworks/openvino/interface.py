"""The names and the state of a PyTorch program in the IR file that it was converted to."""

from __future__ import annotations

from typing import Any

from placewright.execution.exported_program import INTERFACE_KEY, Interface


def keep_interface(model: Any, interface: Interface) -> None:
    """Write an interface into an ``openvino.Model``, which is saved with it."""
    model.set_rt_info(interface.text(), INTERFACE_KEY)


def kept_interface(model: Any) -> Interface | None:
    """What `keep_interface` wrote; None where there is nothing, or nothing of that form."""
    if not model.has_rt_info(INTERFACE_KEY):
        return None
    held = model.get_rt_info(INTERFACE_KEY)
    return Interface.of_text(str(getattr(held, "value", held)))
