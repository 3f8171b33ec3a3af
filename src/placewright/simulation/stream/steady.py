"""The steady period of a stream: seconds from one sample to the next once the pipeline is full."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import FloatArray

_LONGEST_PATTERN = 64  # samples after which a pattern of begins may repeat
_SAME = 1e-9  # of the time that has passed


@dataclass(frozen=True)
class Steady:
    """How a stream goes on.

    Attributes:
        period: seconds per sample.
        pattern: samples after which everything repeats; 0 where nothing did while it was played,
            and `period` is an average over the later half.
        first: the sample with which the pattern, or the average, begins.
    """

    period: float
    pattern: int
    first: int


def steady_of(begin: FloatArray, finish: FloatArray, in_flight: int) -> Steady:
    """Find the pattern in which samples follow each other.

    Where all tasks of `in_flight` samples in a row begin as much later as those of the samples
    `pattern` before them, the state of all servers has come back, and a stream without end would go
    on like this for ever. Each server then does the work of `pattern` samples in that time, so that
    the period is never below the largest load.

    Args:
        begin: when each task begins, shape (n_samples, n_tasks).
        finish: when each sample is done, shape (n_samples,).
        in_flight: samples that may be under way.
    """
    n_samples = len(finish)
    stop = n_samples - min(in_flight, n_samples - 1)  # the last ones have the devices to themselves
    for pattern in range(1, min(_LONGEST_PATTERN, stop // 2) + 1):
        first = stop - in_flight - pattern
        if first < 0:
            break
        later, earlier = begin[first + pattern : stop], begin[first : stop - pattern]
        shift = later[-1, 0] - earlier[-1, 0]
        if np.all(np.abs(later - earlier - shift) <= _SAME * max(shift, float(finish[stop - 1]))):
            return Steady(float(shift) / pattern, pattern, first)
    half = stop // 2
    last = max(stop - 1, half + 1) if n_samples > 1 else 0
    if last <= half:
        return Steady(float(finish[-1]), 0, 0)
    done = np.sort(finish)
    return Steady(float(done[last] - done[half]) / (last - half), 0, half)
