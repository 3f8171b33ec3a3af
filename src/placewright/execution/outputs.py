"""Outputs of a model, by position and by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from placewright.core.signature import Signature
from placewright.errors import UnknownNameError
from placewright.execution.inputs import named_outputs
from placewright.execution.runtime import HostArray


class Outputs(Sequence[HostArray]):
    """All outputs of a model in its own order: ``outputs[0]``, ``outputs["scores"]``.

    Args:
        signature: of the model.
        values: of all outputs.
    """

    def __init__(self, signature: Signature, values: Sequence[HostArray]) -> None:
        self._signature, self._values = signature, tuple(values)

    @overload
    def __getitem__(self, key: int | str) -> HostArray: ...

    @overload
    def __getitem__(self, key: slice) -> Sequence[HostArray]: ...

    def __getitem__(self, key: int | str | slice) -> HostArray | Sequence[HostArray]:
        if not isinstance(key, str):
            return self._values[key]
        ports = self._signature.outputs
        for at, port in enumerate(ports):
            if port.name == key:
                return self._values[at]
        for at, port in enumerate(ports):  # a name of its own goes before another's second name
            if key in port.other_names:
                return self._values[at]
        raise UnknownNameError("model output", key, [port.name for port in ports])

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        rows = [
            f"{name}: {value.dtype} {list(value.shape)}" for name, value in self.by_name.items()
        ]
        return f"Outputs({', '.join(rows)})"

    @property
    def by_name(self) -> dict[str, HostArray]:
        """Output name -> value; one that is given twice stands there once."""
        return named_outputs(self._signature, self._values)
