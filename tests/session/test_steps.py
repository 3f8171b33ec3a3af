"""What is ahead is said once, and the time left while it runs."""

from __future__ import annotations

import logging

import pytest

from placewright.report.time_left import rough_duration
from placewright.session.steps import CALIBRATING, MEASURING, SEARCHING, Steps


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (8.4, "8 s"), (47.0, "45 s"), (98.0, "100 s"), (170, "3 min")],
)
def test_estimates_have_few_digits(seconds: float, text: str) -> None:
    assert rough_duration(seconds) == text


def test_time_left_is_that_of_this_step_and_of_those_after_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """10 s of measuring, 20 of calibration and 30 of search: 6 s into it 4 + 20 + 30 are left."""
    now, told = [0.0], list[tuple[float, str]]()
    steps = Steps(lambda fraction, what: told.append((fraction, what)), clock=lambda: now[0])
    with caplog.at_level(logging.INFO, logger="placewright"):
        steps.expect({MEASURING: 10.0, CALIBRATING: 20.0, SEARCHING: 30.0}, "5 units on cpu:0")
    assert caplog.messages == [
        "5 units on cpu:0: at most about 60 s in all "
        "(measuring 10 s, calibration 20 s, search 30 s)"
    ]
    now[0] = 6.0
    steps.tell(MEASURING, "measuring", 4.0)
    assert told[-1] == (pytest.approx(0.1), "measuring, about 55 s left")
    now[0] = 10.0
    steps.tell(CALIBRATING, "calibrating")
    assert told[-1] == (pytest.approx(10 / 60), "calibrating, about 50 s left")


def test_before_anything_is_known_no_time_is_made_up() -> None:
    told: list[tuple[float, str]] = []
    Steps(lambda fraction, what: told.append((fraction, what))).tell("", "reading m.onnx")
    assert told == [(0.0, "reading m.onnx")]
