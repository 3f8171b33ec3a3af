"""Sessions with bound inputs and outputs: what passes between them is handed on, not copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from placewright.core.cluster import Device
from placewright.execution.inputs import cannot_compute
from placewright.execution.runtime import NativeTensor
from placewright.frameworks.onnxruntime.devices import memory_of_sessions, onnxruntime_library


@dataclass(frozen=True)
class SessionPort:
    """An output of a session: its name, ONNX element type, and dimensions where they are known."""

    name: str
    element_type: int
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class OnnxSegment:
    """A session with what enters and leaves it."""

    session: Any
    inputs: tuple[str, ...]
    outputs: list[SessionPort]
    device: Device

    def instance(self) -> OnnxInstance:
        """A binding with output buffers of its own."""
        return OnnxInstance(self)


class OnnxInstance:
    """One binding. Inputs and outputs are bound once where their memory stays the same."""

    def __init__(self, segment: OnnxSegment) -> None:
        self._segment = segment
        self._binding = segment.session.io_binding()
        self._run: Callable[[Any], None] = segment.session.run_with_iobinding
        self._bound: list[NativeTensor] = [None] * len(segment.inputs)
        self._memory = memory_of_sessions(segment.device)
        self._is_static = all(port.shape is not None for port in segment.outputs)
        self._outputs: list[NativeTensor] = []
        if self._is_static:
            self._outputs = [self._buffer(port) for port in segment.outputs]
            for port, value in zip(segment.outputs, self._outputs, strict=True):
                self._binding.bind_ortvalue_output(port.name, value)

    def run(self, inputs: Sequence[NativeTensor]) -> Sequence[NativeTensor]:
        """Compute in the calling thread; a value from another memory is copied here.

        Raises:
            RuntimeFailure: the values do not suit the model.
        """
        for index, (name, value) in enumerate(zip(self._segment.inputs, inputs, strict=True)):
            is_new = value is not self._bound[index]
            if is_new or value.device_name() != self._memory[0]:
                self._binding.bind_ortvalue_input(name, value)
                self._bound[index] = value
        if not self._is_static:
            for port in self._segment.outputs:
                self._binding.bind_output(port.name, *self._memory)
        try:
            self._run(self._binding)
        except Exception as error:  # ONNX Runtime has a class of its own for each status
            raise cannot_compute("ONNX Runtime", error) from error
        return self._outputs if self._is_static else list(self._binding.get_outputs())

    def _buffer(self, port: SessionPort) -> NativeTensor:
        values = onnxruntime_library().OrtValue
        kind, number = self._memory
        return values.ortvalue_from_shape_and_type(
            list(port.shape or ()), port.element_type, kind, number
        )
