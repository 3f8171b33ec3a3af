"""A deadline that several steps share, on a clock that the test moves."""

from __future__ import annotations

import math

import pytest

from placewright.errors import InputError, OutOfTime
from placewright.profiling.hardware import NEVER, Deadline, Stopwatch


def test_a_part_is_of_what_is_left() -> None:
    """60 s from 100: after 20 s half of the other 40 s ends at 140."""
    now = [100.0]
    deadline = Deadline.after(60.0, clock=Stopwatch(lambda: now[0]))
    now[0] = 120.0
    assert deadline.seconds_left == 40.0
    assert deadline.part(0.5).ends == 140.0
    now[0] = 160.0
    assert deadline.is_over
    with pytest.raises(OutOfTime, match="the total ended before the search"):
        deadline.require("the search")


def test_without_an_end_everything_goes_on() -> None:
    NEVER.require("anything")
    assert NEVER.part(0.5).seconds_left == math.inf
    assert not NEVER.is_limited


def test_no_time_at_all_is_no_total() -> None:
    with pytest.raises(InputError, match="seconds > 0"):
        Deadline.after(0.0)
