"""A moment that bounds several steps: whoever does them looks at it between pieces of work."""

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
    """When to start nothing further.

    Attributes:
        ends: on the clock, in seconds; inf is never.
        clock: shared by all deadlines that are made of this one.
    """

    ends: float = math.inf
    clock: Stopwatch = field(default_factory=Stopwatch)

    @classmethod
    def after(cls, seconds: float | None, clock: Stopwatch | None = None) -> Deadline:
        """So many seconds from now; None is never.

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
        """At least 0; inf without an end."""
        return max(0.0, self.ends - self.clock())

    @property
    def is_over(self) -> bool:
        """True when nothing further may start."""
        return self.clock() >= self.ends

    @property
    def is_limited(self) -> bool:
        """True when there is an end."""
        return math.isfinite(self.ends)

    def part(self, share: float) -> Deadline:
        """The end of a share (0 to 1) of what is left."""
        if not self.is_limited:
            return self
        return Deadline(self.clock() + share * self.seconds_left, self.clock)

    def within(self, seconds: float | None) -> Deadline:
        """This one, or so many seconds from now where that comes first; None is no other limit."""
        if seconds is None:
            return self
        return Deadline(min(self.ends, self.clock() + seconds), self.clock)

    def require(self, what: str) -> None:
        """Go on only while there is time.

        Raises:
            OutOfTime: naming what was to be done.
        """
        if self.is_over:
            raise OutOfTime(what)


NEVER = Deadline()
