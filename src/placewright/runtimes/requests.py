"""Requests in flight: their buffers, and how far each of them has come."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from placewright.errors import RuntimeFailure
from placewright.runtimes.base import NativeTensor, SegmentInstance

Place = tuple[int, int]  # tensor, memory


@dataclass(eq=False)
class Slot:
    """Buffers of one request in flight; requests follow each other in it.

    Attributes:
        instances: of each segment.
        inputs: values of all graph inputs, ascending, in the host's memory; None before the first
            request.
        tensors: (tensor, memory) -> value.
        kept: tensor -> value, of all that left a segment; None where nobody asked for it.
    """

    instances: list[SegmentInstance]
    inputs: list[NativeTensor] | None = None
    tensors: dict[Place, NativeTensor] = field(default_factory=dict)
    kept: dict[int, NativeTensor] | None = None


@dataclass(eq=False)
class Request:
    """Progress of one request."""

    slot: Slot
    number: int
    waiting: list[int]  # segments that each segment still waits for
    turns: list[int]  # next turn of each device; written by its worker alone
    spans: list[tuple[float, float]]
    left: int
    start: float = field(default_factory=time.perf_counter)
    arrival: float = 0.0  # of the outputs at the host, where that is later than the last segment
    error: RuntimeFailure | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def seconds(self) -> float:
        """From the start to the last segment's end, and until outputs are at the host."""
        return max(self.arrival, max(end for _, end in self.spans))
