"""Cache of the compiled segments of a loaded model, so that equal ones are compiled once."""

from __future__ import annotations

from typing import Generic, TypeVar

from placewright.core.graph import ComputationGraph
from placewright.execution.runtime import OpSegment

_MOST_MODELS = 6  # compiled segments hold weights in a layout of their own

Key = tuple[object, ...]
Segment = TypeVar("Segment")


class SegmentCache(Generic[Segment]):
    """Segments with the weights of a few models; the oldest go first."""

    def __init__(self, graph: ComputationGraph) -> None:
        self._graph = graph
        self._segments: dict[Key, Segment] = {}
        self._weight_bytes: dict[Key, float] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._segments

    def __getitem__(self, key: Key) -> Segment:
        return self._segments[key]

    def add(self, key: Key, compiled: Segment, segment: OpSegment) -> None:
        """Add the compiled form of a segment."""
        self._segments[key] = compiled
        self._weight_bytes[key] = float(self._graph.op_weight_bytes[list(segment.ops)].sum())

    def forget_oldest(self) -> None:
        """Drop segments beyond the limit. Do not call it while a plan is being compiled."""
        limit = _MOST_MODELS * max(1.0, float(self._graph.op_weight_bytes.sum()))
        held = sum(self._weight_bytes.values())
        while held > limit:
            oldest = next(iter(self._segments))
            held -= self._weight_bytes.pop(oldest)
            del self._segments[oldest]
