"""How long a request may take before it is given up.

A device may die while it computes, and what waits for it would wait for ever. The limit holds for
every runner that is made inside it, whoever makes it: the plan's, and those of what it is measured
beside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LEAST_SECONDS = 60.0
_TIMES = 20.0
_SECONDS: ContextVar[float] = ContextVar("seconds", default=math.inf)


def allowed_seconds(predicted: float) -> float:
    """What a request gets where nobody says: a minute, or 20 times the seconds predicted."""
    return max(_LEAST_SECONDS, _TIMES * predicted)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Give requests of all runners that are made inside this many seconds, > 0, each."""
    before = _SECONDS.set(seconds)
    try:
        yield
    finally:
        _SECONDS.reset(before)


def current_limit() -> float:
    """Seconds that a request may take here; inf where no limit was set."""
    return _SECONDS.get()
