"""Runner of the unsplit model in the threads of its callers, without workers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol, runtime_checkable

from placewright.core.cluster import Device
from placewright.errors import InputError, RuntimeFailure
from placewright.execution.members import Members
from placewright.execution.requests import (
    Execution,
    RequestProgress,
    RequestTensors,
    Slot,
    new_slot,
)
from placewright.execution.runtime import (
    HostArray,
    LoadedModel,
    graph_inputs,
    whole_segment,
)


@runtime_checkable
class PreparesCallers(Protocol):
    """A loaded model whose segments need settings of the thread that runs them."""

    def prepared(self, device: Device) -> AbstractContextManager[None]:
        """Apply the settings of `worker_setup` to a caller's thread, and restore its own.

        The thread is not bound to a core.
        """
        ...


@runtime_checkable
class KeepsState(Protocol):
    """A loaded model that may keep values from one run to the next."""

    @property
    def keeps_state(self) -> bool:
        """True if a run depends on the runs before it."""
        ...


class DirectRunner:
    """Runs single requests on copies of the unsplit model, one per device.

    Any number of threads may call. A call takes the device with the fewest calls under way, and
    buffers of its own, which are made when they are needed and used again.

    Args:
        model: loaded by its runtime.
        devices: at least one, each with a copy of the model.
        at_once: most calls under way, >= 1; further callers wait.

    Raises:
        RuntimeFailure: the runtime refuses the model.
    """

    def __init__(self, model: LoadedModel, devices: Sequence[Device], *, at_once: int) -> None:
        self._model = model
        self._copies = [_Copy(model, device) for device in devices]
        self._n_inputs = len(graph_inputs(model.graph))
        self._allowed = threading.BoundedSemaphore(at_once)
        self._lock = threading.Lock()

    def run(self, inputs: Sequence[HostArray]) -> Execution:
        """Execute one request in the calling thread.

        Args:
            inputs: values of all inputs, in the model's own order.

        Raises:
            RuntimeFailure: the runtime reports that it failed.
        """
        if len(inputs) != self._n_inputs:
            raise InputError(f"the model has {self._n_inputs} inputs, got values for {len(inputs)}")
        ascending = self._model.signature.ascending(inputs)
        with self._allowed, self._freest() as copy:
            return copy.run([self._model.from_host(value) for value in ascending])

    def reset_state(self) -> None:
        """Give all state its initial value; no call may be under way."""
        for copy in self._copies:
            copy.reset_state()

    def close(self, timeout: float = 10.0) -> None:
        """Release the copies; calls under way keep theirs until they end."""
        self._copies = []

    @contextmanager
    def _freest(self) -> Iterator[_Copy]:
        with self._lock:
            if not self._copies:
                raise RuntimeFailure("the runner is closed; make a new one")
            copy = min(self._copies, key=lambda candidate: candidate.under_way)
            copy.under_way += 1
        try:
            yield copy
        finally:
            with self._lock:
                copy.under_way -= 1


class _Copy:
    """The model on one device, with buffers for its calls."""

    def __init__(self, model: LoadedModel, device: Device) -> None:
        segment = whole_segment(model.graph)
        self.under_way = 0
        self._name = device.name
        self._compiled = [[model.reference(device)]]
        self._tensors = RequestTensors(model, [segment], Members.of([device]))
        self._numbers = itertools.count()
        self._idle: list[Slot] = []
        self._model, self._device = model, device
        self._keeps_state = isinstance(model, KeepsState) and model.keeps_state

    def run(self, inputs: list[HostArray]) -> Execution:
        try:
            slot = self._idle.pop()
        except IndexError:
            slot = new_slot(self._compiled)
        slot.inputs = inputs
        request = RequestProgress(slot, next(self._numbers), [0], [0], [(0.0, 0.0)], 1)
        with self._prepared():
            try:
                self._tensors.send_inputs(request)
                self._tensors.run_segment(request, 0)
                self._tensors.settle(request)
                execution = self._tensors.execution(request)
            except BaseException as cause:  # libraries raise any type
                if self._keeps_state:
                    self._idle.append(slot)  # its caller resets the state
                if not isinstance(cause, Exception):
                    raise
                raise RuntimeFailure(f"the model on '{self._name}' failed: {cause}") from cause
        slot.inputs = None
        slot.tensors.clear()
        self._idle.append(slot)  # only after success: a failure leaves it in an unknown state
        return execution

    def reset_state(self) -> None:
        for slot in self._idle:
            slot.reset_state()

    def _prepared(self) -> AbstractContextManager[None]:
        model = self._model
        return model.prepared(self._device) if isinstance(model, PreparesCallers) else nullcontext()
