"""Queues of an accelerator: one for its operators, two for copies, and events between them.

An accelerator's operators are queued by its worker and run later; nothing here waits for a device
except who needs a value in the processor's memory. Copies run on queues of their own, through
pinned memory, so that they overlap with operators.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Arriving:
    """A tensor that a copy is still writing.

    Attributes:
        tensor: where it will be.
        event: recorded behind the copy.
        source: in the processor's memory, read by the copy and kept until then.
    """

    tensor: torch.Tensor
    event: Any
    source: torch.Tensor | None = None


class Lane:
    """The queues of one accelerator.

    Args:
        device: with an index.
        module: PyTorch's module for the kind of device; None takes ``torch.get_device_module``.
    """

    def __init__(self, device: torch.device, module: Any = None) -> None:
        self.device = device
        self.module = torch.get_device_module(device) if module is None else module
        self.compute = self.module.Stream(device=device)
        self.inward = self.module.Stream(device=device)
        self.outward = self.module.Stream(device=device)

    def event(self, *, timed: bool = False) -> Any:
        """A new event."""
        return self.module.Event(enable_timing=timed)

    def received(self, value: torch.Tensor | Arriving) -> torch.Tensor:
        """The tensor, for operators that are queued from now on."""
        if isinstance(value, torch.Tensor):
            return value
        self.compute.wait_event(value.event)
        # Its memory came from another queue's pool: it is not free before this queue is done.
        value.tensor.record_stream(self.compute)
        return value.tensor

    def from_host(self, tensor: torch.Tensor) -> Arriving:
        """Queue a copy from the processor's memory to this device."""
        pinned = pinned_copy(tensor)
        event = self.event()
        with self.module.stream(self.inward):
            copy = pinned.to(self.device, non_blocking=True)
            event.record(self.inward)
        return Arriving(copy, event, pinned)

    def to_host(self, tensor: torch.Tensor) -> Arriving:
        """Queue a copy to pinned memory, behind the operators that are queued now."""
        self._after_compute()
        event = self.event()
        with self.module.stream(self.outward):
            copy = pinned_like(tensor)
            copy.copy_(tensor, non_blocking=True)
            event.record(self.outward)
        # Its memory is not used again before the copy is done, though nobody keeps it.
        tensor.record_stream(self.outward)
        return Arriving(copy, event)

    def to_other(self, tensor: torch.Tensor, other: Lane) -> Arriving:
        """Queue a copy to another accelerator, behind the operators that are queued now."""
        self._after_compute()
        event = self.event()
        with other.module.stream(other.inward), self.module.stream(self.outward):
            copy = tensor.to(other.device, non_blocking=True)
            event.record(self.outward)
        # Its memory is not used again before the copy is done, though nobody keeps it.
        tensor.record_stream(self.outward)
        return Arriving(copy, event)

    def settled(self, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[float, float]]:
        """Wait for pairs of timed events; (begin, end) of each in ``time.perf_counter`` seconds."""
        anchor = self.event(timed=True)
        anchor.record(self.compute)
        anchor.synchronize()
        now = time.perf_counter()
        return [
            (now - begin.elapsed_time(anchor) / 1e3, now - end.elapsed_time(anchor) / 1e3)
            for begin, end in pairs
        ]

    def _after_compute(self) -> None:
        event = self.event()
        event.record(self.compute)
        self.outward.wait_event(event)


def pinned_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's values in memory that a device can copy from by itself."""
    return tensor if tensor.is_pinned() else tensor.pin_memory()


def pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    """Memory of the processor for a tensor, which a device can copy to by itself."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


def moved(
    value: torch.Tensor | Arriving, source: Lane | None, destination: Lane | None
) -> torch.Tensor | Arriving:
    """A tensor on its way to another memory; None stands for the processor's."""
    if source is None and destination is None:
        return value
    if source is None:
        assert destination is not None
        return destination.from_host(on_host(value))
    tensor = source.received(value)
    return source.to_host(tensor) if destination is None else source.to_other(tensor, destination)


def on_host(value: torch.Tensor | Arriving) -> torch.Tensor:
    """The tensor in the processor's memory, once it is there."""
    if isinstance(value, torch.Tensor):
        return value
    value.event.synchronize()
    return value.tensor
