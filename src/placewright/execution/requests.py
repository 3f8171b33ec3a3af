"""Requests in flight: their buffers, and how far each of them has come."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

from placewright.errors import RuntimeFailure
from placewright.execution.runtime import (
    CompiledSegment,
    HostArray,
    NativeTensor,
    SegmentInstance,
)

Place = tuple[int, int]  # tensor, memory


@dataclass(frozen=True)
class Execution:
    """One finished request.

    Attributes:
        outputs: all outputs, in the model's own order.
        tensors: tensor -> value of every tensor that left a segment, where asked for.
        seconds: from the first segment's permission to start to the last segment's end.
        spans: (start, end) of each segment in seconds since the request started.
        start: when the request started, on the clock of `time.perf_counter`.
    """

    outputs: tuple[HostArray, ...]
    tensors: Mapping[int, HostArray]
    seconds: float
    spans: tuple[tuple[float, float], ...]
    start: float = 0.0


@dataclass(eq=False)
class Slot:
    """Buffers of one request in flight; requests follow each other in it.

    Attributes:
        instances: of each segment, one for each member of its device; members whose segment is
            the same one share it.
        inputs: values of all graph inputs, ascending, in the host's memory; None before the first
            request.
        tensors: (tensor, memory) -> value.
        kept: tensor -> value, of all that left a segment; None where nobody asked for it.
    """

    instances: list[list[SegmentInstance]]
    inputs: list[NativeTensor] | None = None
    tensors: dict[Place, NativeTensor] = field(default_factory=dict)
    kept: dict[int, NativeTensor] | None = None


def new_slot(compiled: Sequence[Sequence[CompiledSegment]]) -> Slot:
    """Buffers for one request.

    Args:
        compiled: of each segment, one for each member of its device.
    """
    instances: list[list[SegmentInstance]] = []
    for row in compiled:
        made = {id(one): one.instance() for one in {id(one): one for one in row}.values()}
        instances.append([made[id(one)] for one in row])
    return Slot(instances)


@dataclass(eq=False)
class RequestProgress:
    """Progress of one request."""

    slot: Slot
    number: int
    waiting: list[int]  # segments that each segment still waits for
    turns: list[int]  # next turn of each device; written by its worker alone
    spans: list[tuple[float, float]]
    left: int
    finished: SimpleQueue[RequestProgress] = field(default_factory=SimpleQueue)  # it, at its end
    start: float = field(default_factory=time.perf_counter)
    arrival: float = 0.0  # of the outputs at the host, where that is later than the last segment
    error: RuntimeFailure | None = None
    running: dict[int, None] = field(default_factory=dict)  # segments, as they began
    busy: int = 0  # segments that are being run
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> bool:
        """Take note that a segment is about to run; False where the request has failed."""
        with self.lock:
            if self.error is not None:
                return False
            self.busy += 1
            return True

    def end(self, dependents: Sequence[int]) -> tuple[bool, list[int]]:
        """Take note that a segment has run.

        Args:
            dependents: segments that wait for it.

        Returns:
            True when nothing of the request is left or being run, and the dependents that have
            become ready; none where the request has failed meanwhile.
        """
        ready: list[int] = []
        with self.lock:
            self.busy -= 1
            if self.error is not None:
                return self.busy == 0, ready
            self.left -= 1
            for dependent in dependents:
                self.waiting[dependent] -= 1
                if self.waiting[dependent] == 0:
                    ready.append(dependent)
            return self.left == 0, ready

    def fail(self, error: RuntimeFailure, *, running: bool) -> bool:
        """Give the request up; True when none of its segments is being run any more.

        Args:
            error: the first one is kept.
            running: the failure is that of a segment that had begun.
        """
        with self.lock:
            self.busy -= running
            is_first, self.error = self.error is None, self.error or error
            return self.busy == 0 and (is_first or running)

    @property
    def seconds(self) -> float:
        """From the start to the last segment's end, and until outputs are at the host."""
        return max(self.arrival, max(end for _, end in self.spans))
