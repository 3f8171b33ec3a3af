"""A deadline that several steps share: each checks it between pieces of work."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from placewright.errors import InputError, OutOfTime


class Stopwatch:
    """A clock in seconds that can be stopped for a block.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._stood = clock, 0.0

    def __call__(self) -> float:
        """Seconds, without those of all blocks that have ended."""
        return self._clock() - self._stood

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Leave out the seconds of a block, in which nobody may ask for the time."""
        began = self._clock()
        try:
            yield
        finally:
            self._stood += self._clock() - began


@dataclass(frozen=True)
class Deadline:
    """The time after which no further work may start."""

    ends: float = math.inf  # on the clock, in seconds; inf is never
    # shared by all deadlines that are made of this one
    clock: Stopwatch = field(default_factory=Stopwatch)

    @classmethod
    def after(cls, seconds: float | None, clock: Stopwatch | None = None) -> Deadline:
        """A deadline in so many seconds from now; None is never.

        Raises:
            InputError: seconds is not > 0.
        """
        watch = clock or Stopwatch()
        if seconds is None:
            return cls(clock=watch)
        if not seconds > 0:
            raise InputError(f"a total needs seconds > 0, got {seconds:g}")
        return cls(watch() + seconds, watch)

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline, at least 0; inf without a limit."""
        return max(0.0, self.ends - self.clock())

    @property
    def is_over(self) -> bool:
        """True if no further work may start."""
        return self.clock() >= self.ends

    @property
    def is_limited(self) -> bool:
        """True if the deadline is finite."""
        return math.isfinite(self.ends)

    def part(self, share: float) -> Deadline:
        """The deadline of a share (0 to 1) of the seconds that are left."""
        if not self.is_limited:
            return self
        return Deadline(self.clock() + share * self.seconds_left, self.clock)

    def within(self, seconds: float | None) -> Deadline:
        """The earlier of this deadline and so many seconds from now; None is no other limit."""
        if seconds is None:
            return self
        return Deadline(min(self.ends, self.clock() + seconds), self.clock)

    def require(self, what: str) -> None:
        """Raise if the deadline has passed.

        Raises:
            OutOfTime: the message names the work that was to start.
        """
        if self.is_over:
            raise OutOfTime(what)


NEVER = Deadline()
