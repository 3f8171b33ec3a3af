"""Segments whose costs are known."""

from __future__ import annotations

import numpy as np

from placewright.profiling.segment_fit import SegmentRow


def segments(rng: np.random.Generator, count: int, own: float, factor: float) -> list[SegmentRow]:
    """Segments that cost 30 us, 5 us and 0.1 ns per byte in, 20 us and 0.2 ns per byte out."""
    rows = []
    for number in range(count):
        n_in, n_out = rng.integers(0, 5, 2).tolist()
        bytes_in, bytes_out = (rng.random(2) * [n_in, n_out] * 1e6).tolist()
        overhead = 30e-6 + 5e-6 * n_in + 1e-10 * bytes_in + 20e-6 * n_out + 2e-10 * bytes_out
        seconds = own * (0.5 + rng.random())
        counts = np.array([1.0, n_in, bytes_in, n_out, bytes_out])
        both = 2 if factor > 1.0 or number % 2 else 1
        slowed = factor if both == 2 else 1.0
        rows.append(SegmentRow(number % 2, both, seconds, counts, seconds * slowed + overhead))
    return rows
