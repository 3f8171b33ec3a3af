"""Runner in the threads of its callers, for the unsplit model and for splits."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, runtime_checkable

from placewright.core.cluster import Device
from placewright.core.processors import first_on_processors
from placewright.errors import InputError, RuntimeFailure, failure_from
from placewright.execution.members import Members
from placewright.execution.requests import (
    CLOSED,
    Execution,
    RequestProgress,
    RequestTensors,
    Slot,
    TimesRequests,
    new_slot,
    request_numbers,
)
from placewright.execution.runtime import (
    CompiledSegment,
    HostArray,
    LoadedModel,
    NativeTensor,
    OpSegment,
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


class DirectRunner(TimesRequests):
    """Runs single requests in the threads of their callers.

    Any number of threads may call. A call takes the copy with the fewest calls under way, and
    buffers of its own, which are made when they are needed and used again.

    Args:
        copies: of the model, at least one; see `whole_copies` and `split_copy`.
        at_once: most calls under way, >= 1; further callers wait.
    """

    def __init__(self, model: LoadedModel, copies: Sequence[Copy], *, at_once: int) -> None:
        self.model = model
        self._copies = list(copies)
        self._n_inputs = len(graph_inputs(model.graph))
        self._allowed = threading.BoundedSemaphore(at_once)
        self._lock = threading.Lock()

    def __enter__(self) -> DirectRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, inputs: Sequence[HostArray]) -> Execution:
        """Execute one request in the calling thread.

        Args:
            inputs: values of all inputs, in the model's own order.

        Raises:
            RuntimeFailure: the runtime reports that it failed.
        """
        if len(inputs) != self._n_inputs:
            raise InputError(f"the model has {self._n_inputs} inputs, got values for {len(inputs)}")
        self._last = inputs
        ascending = self.model.signature.ascending(inputs)
        return self._executed([self.model.from_host(value) for value in ascending])

    def _executed(self, values: Sequence[NativeTensor]) -> Execution:
        with self._allowed:
            with self._lock:
                if not self._copies:
                    raise RuntimeFailure(CLOSED)
                copy = min(self._copies, key=_under_way)
                copy.under_way += 1
            try:
                return copy.run(list(values))
            finally:
                with self._lock:
                    copy.under_way -= 1

    @property
    def is_open(self) -> bool:
        """True until it is closed."""
        return bool(self._copies)

    @property
    def segments(self) -> tuple[OpSegment, ...]:
        """Segments of each copy, in the order in which they run; none after `close`."""
        return self._copies[0].segments if self._copies else ()

    def reset_state(self) -> None:
        """Give all state its initial value; no call may be under way."""
        for copy in self._copies:
            copy.reset_state()

    def close(self, timeout: float = 10.0) -> None:
        """Release the copies; calls under way keep theirs until they end."""
        self._copies = []
        self.forget_last()


class Copy:
    """Segments that run one after the other, with buffers for the calls that execute them.

    Args:
        segments: in the order in which they run.
        devices: ``segments[i].device`` indexes it.
        takes_turns: whether a device runs one segment at a time.
    """

    def __init__(
        self,
        model: LoadedModel,
        segments: Sequence[OpSegment],
        devices: Sequence[Device],
        compiled: Sequence[CompiledSegment],
        *,
        takes_turns: bool,
    ) -> None:
        self.under_way, self.segments = 0, tuple(segments)
        self._compiled = [[made] for made in compiled]
        self._tensors = RequestTensors(model, segments, Members.of(devices))
        self._numbers = itertools.count()
        self._draws = request_numbers()
        self._idle: list[Slot] = []
        self._device = devices[segments[0].device]
        self._preparing = model if isinstance(model, PreparesCallers) else None
        locks = [threading.Lock() if takes_turns else nullcontext() for _ in devices]
        lock_of = first_on_processors(devices)
        self._turns = [locks[lock_of[segment.device]] for segment in segments]
        self._keeps_state = model.keeps_state

    def run(self, inputs: list[HostArray]) -> Execution:
        """Execute a request; `inputs` are the runtime's own tensors, ascending.

        Raises:
            RuntimeFailure: a segment failed; the message names it.
        """
        try:
            slot = self._idle.pop()
        except IndexError:
            slot = new_slot(self._compiled)
        slot.inputs = inputs
        n = len(self._turns)
        spans = [(0.0, 0.0)] * n
        number, draw = next(self._numbers), next(self._draws)
        request = RequestProgress(slot, number, [], [], spans, n, draw=draw)
        with self._prepared():
            try:
                execution = self._executed(request)
            except BaseException as cause:  # libraries raise any type
                if self._keeps_state:
                    self._idle.append(slot)  # its caller resets the state
                if not isinstance(cause, Exception) or cause is request.error:
                    raise
                at = self._tensors.describe(min(n - request.left, n - 1), request.number)
                name = at if n > 1 else f"the model on '{self._device.name}'"
                raise failure_from(cause, f"{name} failed: {cause}") from cause
        slot.inputs = None
        slot.tensors.clear()
        self._idle.append(slot)  # only after success: a failure leaves it in an unknown state
        return execution

    def reset_state(self) -> None:
        """Give all state its initial value."""
        for slot in self._idle:
            slot.reset_state()

    def _executed(self, request: RequestProgress) -> Execution:
        self._tensors.send_inputs(request)
        for index, turn in enumerate(self._turns):
            with turn:
                begin = self._tensors.run_segment(request, index)
                ends = (begin - request.start, time.perf_counter() - request.start)
                request.spans[index] = ends
            request.left -= 1
        self._tensors.settle(request)
        if request.error is not None:
            raise request.error
        return self._tensors.execution(request)

    def _prepared(self) -> AbstractContextManager[None]:
        return self._preparing.prepared(self._device) if self._preparing else nullcontext()


def _under_way(copy: Copy) -> int:
    return copy.under_way


def whole_copies(model: LoadedModel, devices: Sequence[Device]) -> list[Copy]:
    """A copy of the unsplit model on each device.

    Raises:
        RuntimeFailure: the runtime refuses the model.
    """
    whole = whole_segment(model.graph)
    return [
        Copy(model, [whole], [device], [model.reference(device)], takes_turns=False)
        for device in devices
    ]


def split_copy(
    model: LoadedModel, segments: Sequence[OpSegment], devices: Sequence[Device]
) -> Copy:
    """The segments of a split, one after the other; a device runs one of them at a time.

    A call then needs no other thread, and to wake one can take longer than a small segment.

    Args:
        segments: of one request, in plan order.
        devices: ``segments[i].device`` indexes it; equal cores, see
            `simulation.serving.is_in_one_thread`.

    Raises:
        RuntimeFailure: the runtime refuses a segment.
    """
    return Copy(model, segments, devices, model.compile(segments, devices), takes_turns=True)
