"""Executable segments, with the state of their device.

Queues of an accelerator: one for its operators, two for copies, and events between them.

The worker of an accelerator queues operators, which run later. Only code that needs a value in the
processor's memory waits for the device. Copies have queues of their own and pass through pinned
memory, so that they overlap with operators.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from placewright.errors import RuntimeFailure
from placewright.execution.runtime import HostArray, NativeTensor
from placewright.frameworks.torch.running.devices import SAME_KERNELS
from placewright.frameworks.torch.running.functions import Draws, SegmentFunction
from placewright.frameworks.torch.running.segments import StateWrites


@dataclass
class DeviceState:
    """Parameters, buffers and optimizer state on one device.

    Attributes:
        device: on which the state lies.
        initial: name -> initial value, on any device; tied parameters share it.
        constant: returns the value of a name on the device, which may be shared.
        changing: names whose values change; this object has copies of them.
        replaceable: names whose values a checkpoint may replace. This object has tensors of its own
            for them, which share memory with the model until then.
        tensors: name -> value, for names that were requested.
        held: name -> new value that a later segment writes.
        copies: id of an initial value -> the tensor of a name that changes or is replaceable;
            states that share them change the same tensors.
        draws: of random operators.
    """

    device: torch.device
    initial: Mapping[str, torch.Tensor]
    constant: Callable[[str], torch.Tensor]
    changing: Collection[str]
    replaceable: Collection[str] = ()
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    held: dict[str, torch.Tensor] = field(default_factory=dict)
    copies: dict[int, torch.Tensor] = field(default_factory=dict)
    draws: Draws = field(default_factory=Draws)

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor of a name; tied parameters share it."""
        if name not in self.tensors:
            if name in self.changing or name in self.replaceable:
                initial = self.initial[name]
                if id(initial) not in self.copies:
                    # A caller in inference mode would make tensors that only it may change.
                    with torch.inference_mode(mode=False):
                        self.copies[id(initial)] = (
                            initial.to(self.device, copy=True)
                            if name in self.changing
                            else self.constant(name).data
                        )
                self.tensors[name] = self.copies[id(initial)]
            else:
                self.tensors[name] = self.constant(name)
        return self.tensors[name]

    def write_held(self, name: str) -> None:
        """Write a held value, once the last reader of the old value has run."""
        with torch.no_grad():
            self.tensors[name].copy_(self.held.pop(name))


@dataclass(eq=False)
class TorchSegment:
    """A segment of one device. See `execution.runtime.CompiledSegment`."""

    function: SegmentFunction  # executes the segment
    state: DeviceState  # of the device, shared with its other segments
    names: tuple[str, ...]  # of the state that the function takes
    writes: StateWrites  # state that the segment changes
    n_outputs: int  # number of tensors that leave; further results are held for later segments
    threads: int  # of an operator
    lane: Lane | None  # queues of an accelerator; None for the processor
    _n_instances: int = 0

    def __post_init__(self) -> None:
        for name in (*self.names, *self.writes.after):
            self.state.tensor(name)

    def instance(self) -> TorchInstance:
        """Make a copy for one request in flight.

        Raises:
            RuntimeFailure: a second copy is made of a segment that changes state.
        """
        self._n_instances += 1
        if self._n_instances > 1 and self.state.changing:
            raise RuntimeFailure(
                "a run changes the model's state, so that the next one must wait for it; run one "
                "request at a time"
            )
        return TorchInstance(self) if self.lane is None else QueuedInstance(self, self.lane)

    @property
    def first_run_seconds(self) -> float:
        """See `execution.runtime.CompilesAtFirstRun`."""
        return self.function.first_run_seconds

    def state_values(self) -> Mapping[str, HostArray]:
        """Name -> present value of the state that this segment changes."""
        values = {}
        for name in self._changed:
            value = self.state.tensor(name).detach().cpu()
            value = value.float() if value.dtype == torch.bfloat16 else value
            values[name] = value.numpy().copy()
        return values

    def state_eps(self) -> Mapping[str, float]:
        """See `execution.runtime.WidensState`."""
        types = {name: self.state.tensor(name).dtype for name in self._changed}
        return {
            name: float(torch.finfo(dtype).eps)
            for name, dtype in types.items()
            if dtype == torch.bfloat16
        }

    @property
    def _changed(self) -> list[str]:
        return [name for _, name, _ in self.writes.inside] + list(self.writes.after)


class TorchInstance:
    """An executable copy of a segment."""

    def __init__(self, segment: TorchSegment) -> None:
        self.segment = segment
        tensors = [segment.state.tensor(name) for name in segment.names]
        self._state = segment.function.state_box(tensors, segment.state.draws)

    def run(self, inputs: Sequence[NativeTensor]) -> Sequence[NativeTensor]:
        """Compute the outputs; a list of inputs is emptied, so that each dies at its last use."""
        entering = [on_host(value) for value in inputs]
        if isinstance(inputs, list):
            inputs.clear()
        # MKL has one number of threads for the whole process, so each run sets it.
        torch.set_num_threads(self.segment.threads)
        return self._call(entering)

    @property
    def is_random(self) -> bool:
        """See `execution.requests.DrawsByRequest`."""
        return self.segment.function.is_random

    def begin(self, number: int) -> None:
        """See `execution.requests.DrawsByRequest`."""
        self._state.number = number

    def reset_state(self) -> None:
        """See `execution.runtime.SegmentInstance`."""
        state = self.segment.state
        for name in self.segment.names:
            if name in state.changing:
                with torch.no_grad():
                    state.tensor(name).copy_(state.initial[name])

    def _call(self, entering: list[torch.Tensor]) -> list[torch.Tensor]:
        segment, state = self.segment, self.segment.state
        is_begun = torch.is_inference_mode_enabled()
        with nullcontext() if is_begun else torch.inference_mode():
            results = segment.function.run(entering, self._state)
            for (name, _), value in zip(
                segment.writes.held, results[segment.n_outputs :], strict=True
            ):
                state.held[name] = value
            del results[segment.n_outputs :]
            for name in segment.writes.after:
                state.write_held(name)
        return results


class QueuedInstance(TorchInstance):
    """An executable copy whose work an accelerator queues."""

    def __init__(self, segment: TorchSegment, lane: Lane) -> None:
        super().__init__(segment)
        self._lane = lane

    def run(self, inputs: Sequence[NativeTensor]) -> Sequence[NativeTensor]:
        """Queue the work; a list of inputs is emptied, so that each dies at its last use."""
        lane = self._lane
        begin, end = lane.event(timed=True), lane.event(timed=True)
        with SAME_KERNELS, queue_of(lane):
            entering = [lane.received(value) for value in inputs]
            if isinstance(inputs, list):
                inputs.clear()
            begin.record(lane.compute)
            outputs = self._call(entering)
            end.record(lane.compute)
        self._span = (begin, end)
        return outputs

    def reset_state(self) -> None:
        """See `execution.runtime.SegmentInstance`."""
        with queue_of(self._lane):
            super().reset_state()

    def settled_span(self) -> tuple[float, float]:
        """Wait for the last run; return its start and end in ``time.perf_counter`` seconds."""
        return self._lane.settled([self._span])[0]


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


def queue_of(lane: Lane | None) -> AbstractContextManager[Any]:
    """Queue what is called inside behind the operators of a lane; None is the processor."""
    return nullcontext() if lane is None else lane.module.stream(lane.compute)


def pinned_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in pinned memory, from which a device can copy by itself."""
    return tensor if tensor.is_pinned() else tensor.pin_memory()


def pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    """Pinned memory for a tensor, to which a device can copy by itself."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)


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
