"""How long a task still takes, from the share that is done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

_LEAST_SECONDS, _LEAST_SHARE = 2.0, 0.02  # before which nothing is estimated


def rough_duration(seconds: float) -> str:
    """``"8 s"``, ``"50 s"``, ``"3 min"``: no more digits than an estimate has."""
    if seconds < 9.5:
        return f"{max(1, round(seconds))} s"
    if seconds < 100.0:
        return f"{5 * round(seconds / 5)} s"
    if seconds < 100 * 60.0:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.0f} h"


class TimeLeft:
    """Adds the time left to what a task tells, where the task does not say it itself.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._start = clock, clock()

    def seconds(self, fraction: float) -> float:
        """Seconds left when a share is done at an even pace; nan where it is too early to say."""
        elapsed = self._clock() - self._start
        if elapsed < _LEAST_SECONDS or not _LEAST_SHARE <= fraction < 1.0:
            return math.nan
        return elapsed * (1.0 - fraction) / fraction

    def told(self, fraction: float, what: str) -> str:
        """What is being done, with the time left."""
        left = self.seconds(fraction)
        if what.endswith(" left") or math.isnan(left):
            return what
        return f"{what}, about {rough_duration(left)} left"


class Counted:
    """Says of each row of a long table which of how many it is, and the time left.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._left = TimeLeft(clock)
        self._done = self._total = 0

    def ahead(self, number: int) -> None:
        """So many rows more are to come."""
        self._total += number

    def told(self, text: str) -> str:
        """A row that is done: its number, its text, and the time left."""
        self._done += 1
        total = max(self._total, self._done)
        return f"{self._done} of {total}: {self._left.told(self._done / total, text)}"
