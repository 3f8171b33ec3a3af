"""All that happened to one placement, as the event kernel leaves it."""

from __future__ import annotations

from dataclasses import dataclass

from placewright.core.arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Recording:
    """All that happened to one placement.

    Attributes:
        start, end: seconds, shape (n_units,).
        segment: of each unit, numbered in the order of dispatch, shape (n_units,).
        memory_peaks: bytes, shape (n_devices,).
        hop_tensor, hop_source, hop_target: of each hop, in the order of sending, shape (n_hops,).
        hop_start, hop_end: seconds, shape (n_hops,).
    """

    start: FloatArray
    end: FloatArray
    segment: IntArray
    memory_peaks: FloatArray
    hop_tensor: IntArray
    hop_source: IntArray
    hop_target: IntArray
    hop_start: FloatArray
    hop_end: FloatArray
