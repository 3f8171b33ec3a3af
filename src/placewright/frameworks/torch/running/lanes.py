"""Queues of an accelerator: one for its operators, two for copies, and events between them.

The worker of an accelerator queues operators, which run later. Only code that needs a value in the
processor's memory waits for the device. Copies have queues of their own and pass through pinned
memory, so that they overlap with operators.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Arriving:
    """A tensor that a copy is still writing."""

    tensor: torch.Tensor  # target of the copy
    event: Any  # recorded behind the copy
    source: torch.Tensor | None = None  # in the processor's memory, kept until the copy has read it


class Lane:
    """The queues of one accelerator.

    Args:
        module: PyTorch's module for the kind of device; None takes ``torch.get_device_module``.
    """

    def __init__(self, device: torch.device, module: Any = None) -> None:
        self.device = device
        self.module = torch.get_device_module(device) if module is None else module
        self.compute = self.module.Stream(device=device)
        self.inward = self.module.Stream(device=device)
        self.outward = self.module.Stream(device=device)

    def event(self, *, timed: bool = False) -> Any:
        """Make an event."""
        return self.module.Event(enable_timing=timed)

    def received(self, value: torch.Tensor | Arriving) -> torch.Tensor:
        """Let operators that are queued from now on wait for a tensor, and return it."""
        if isinstance(value, torch.Tensor):
            return value
        self.compute.wait_event(value.event)
        # The memory came from another queue's pool and must stay in use until this queue is done.
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
        # The memory must not be used again before the copy is done, even if the tensor is gone.
        tensor.record_stream(self.outward)
        return Arriving(copy, event)

    def to_other(self, tensor: torch.Tensor, other: Lane) -> Arriving:
        """Queue a copy to another accelerator, behind the operators that are queued now."""
        self._after_compute()
        event = self.event()
        with other.module.stream(other.inward), self.module.stream(self.outward):
            copy = tensor.to(other.device, non_blocking=True)
            event.record(self.outward)
        # The memory must not be used again before the copy is done, even if the tensor is gone.
        tensor.record_stream(self.outward)
        return Arriving(copy, event)

    def settled(self, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[float, float]]:
        """Wait for pairs of timed events; return their times in ``time.perf_counter`` seconds."""
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
    """The tensor in pinned memory, from which a device can copy by itself."""
    return tensor if tensor.is_pinned() else tensor.pin_memory()


def pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    """Pinned memory for a tensor, to which a device can copy by itself."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


def moved(
    value: torch.Tensor | Arriving, source: Lane | None, destination: Lane | None
) -> torch.Tensor | Arriving:
    """Queue a tensor's copy to another memory; None stands for the processor's."""
    if source is None and destination is None:
        return value
    if source is None:
        assert destination is not None
        return destination.from_host(on_host(value))
    tensor = source.received(value)
    return source.to_host(tensor) if destination is None else source.to_other(tensor, destination)


def on_host(value: torch.Tensor | Arriving) -> torch.Tensor:
    """Wait until a tensor is in the processor's memory, and return it."""
    if isinstance(value, torch.Tensor):
        return value
    value.event.synchronize()
    return value.tensor
