"""What is ahead is said once, and the time left while it runs."""

from __future__ import annotations

import logging
import math

import pytest

from placewright.profiling.calibration import calibration_seconds
from placewright.profiling.measure import Rounds
from placewright.report.time_left import (
    CALIBRATING,
    CHECKING,
    KERNELS,
    MACHINE,
    MEASURING,
    PROBING,
    SEARCHING,
    Steps,
    rough_duration,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (8.4, "8 s"), (17.2, "17 s"), (47.0, "45 s"), (98.0, "100 s"), (170, "3 min")],
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
        "5 units on cpu:0: about 30 s to 60 s in all "
        "(measuring 10 s, calibration 20 s, search up to 30 s)"
    ]
    now[0] = 6.0
    steps.tell(MEASURING, "measuring", 4.0)
    assert told[-1] == (pytest.approx(0.1), "measuring, about 55 s left")
    now[0] = 10.0
    steps.tell(CALIBRATING, "calibrating")
    assert told[-1] == (pytest.approx(10 / 60), "calibrating, about 50 s left")


def test_what_is_ahead_has_what_is_behind_in_its_sum(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    steps = Steps(clock=lambda: now[0])
    now[0] = 7.0
    with caplog.at_level(logging.INFO, logger="placewright"):
        steps.expect({KERNELS: 45.0, MACHINE: 0.0, SEARCHING: 8.0}, "5 units")
    expected = (
        "5 units: about 50 s to 60 s in all (so far 7 s, compiling kernels 45 s, search up to 8 s)"
    )
    assert caplog.messages == [expected]


def test_a_probe_may_be_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """10 s of measuring, and at most 5 of a search and 6 of a probe: 10 to 21 s."""
    steps = Steps(clock=lambda: 0.0)
    with caplog.at_level(logging.INFO, logger="placewright"):
        steps.expect({MEASURING: 10.0, SEARCHING: 5.0, PROBING: 6.0}, "5 units")
    assert caplog.messages == [
        "5 units: about 10 s to 21 s in all (measuring 10 s, search up to 5 s, probe of a split up "
        "to 6 s)"
    ]


def test_a_step_of_unknown_length_is_named(caplog: pytest.LogCaptureFixture) -> None:
    told = list[str]()
    steps = Steps(
        lambda fraction, what: told.append(what),
        search_seconds=math.nan,
        search="the search of 200 evaluations",
        clock=lambda: 0.0,
    )
    with caplog.at_level(logging.INFO, logger="placewright"):
        steps.expect({KERNELS: math.nan, MEASURING: 10.0, SEARCHING: math.nan}, "5 units")
    expected = (
        "5 units: about 10 s without compiling kernels and the search of 200 evaluations "
        "(measuring 10 s)"
    )
    assert caplog.messages == [expected]
    steps.tell(MEASURING, "measuring")
    steps.tell(SEARCHING, "searching")
    assert told == [
        "measuring, about 10 s left, without the search of 200 evaluations",
        "searching, time left unknown",
    ]


def test_a_step_that_tells_its_part_tells_its_time() -> None:
    """Announced as 10 s. From second 4 to 20 a third is done: 2/3 take 32 s.

    Too little of it tells nothing, nor do other words, whose pace is another: `measuring` begins
    at 0.4, and after 10 s for 0.2 of the step its last 0.4 take 20 s.
    """
    now, told = [0.0], list[str]()
    steps = Steps(lambda fraction, what: told.append(what), clock=lambda: now[0])
    steps.expect({CHECKING: 10.0}, "5 units")
    for at, what, part in (
        (0.0, "compiling", 0.0),
        (4.0, "comparing", 0.0),
        (6.0, "comparing", 0.01),
        (20.0, "comparing", 1 / 3),
        (30.0, "measuring", 0.4),
        (40.0, "measuring", 0.6),
    ):
        now[0] = at
        steps.tell(CHECKING, what, part=part)
    assert told == [
        "compiling, about 10 s left",
        "comparing, about 6 s left",
        "comparing, about 4 s left",
        "comparing, about 30 s left",
        "measuring, time left unknown",
        "measuring, about 20 s left",
    ]


def test_a_calibration_is_announced_by_its_usual_rounds() -> None:
    """The unsplit model: a compilation, a round, and as many as a placement has, which tell its
    calls from its units. 8 placements: 1.5 compilations of 2 s and 7 rounds of two requests of
    0.1 s each; a request of 0.01 s is the fifth in its turn. Three placements of 5 rounds are
    quick. A scatter of 3.5 % needs (3.5 / 1)^2 rounds for 1 %, one of 100 % the most: 1.5 s hold 15
    rounds of a short request, and the 7 of a long one take that long."""
    assert calibration_seconds(0.1, 2.0) == pytest.approx(2.2 + 7 * 0.2 + 8 * (3.0 + 7 * 0.2))
    assert calibration_seconds(0.01, 2.0) == pytest.approx(2.1 + 11 * 0.1 + 8 * (3.0 + 11 * 0.1))
    quick = calibration_seconds(0.1, 2.0, 3, Rounds(5, 5), 0.05)
    assert quick == pytest.approx(2.2 + 5 * 0.2 + 3 * (3.0 + 5 * 0.2))
    short, long = (0.01, 0.1), (0.1, 0.2)
    for (request, of_round), scatter, rounds in (
        (short, 0.035, 13),
        (short, 1.0, 15),
        (long, 1.0, 7),
    ):
        seconds = 2.0 + of_round + rounds * of_round + 8 * (3.0 + rounds * of_round)
        assert calibration_seconds(request, 2.0, scatter=scatter) == pytest.approx(seconds)


def test_before_anything_is_known_no_time_is_made_up() -> None:
    told: list[tuple[float, str]] = []
    Steps(lambda fraction, what: told.append((fraction, what))).tell("", "reading m.onnx")
    assert told == [(0.0, "reading m.onnx")]


def test_a_search_without_an_end_has_no_known_seconds(caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps(search_seconds=math.inf, clock=lambda: 0.0)
    with caplog.at_level(logging.INFO, logger="placewright"):
        steps.expect({MEASURING: 10.0, SEARCHING: steps.search_seconds}, "5 units")
    assert caplog.messages == ["5 units: about 10 s without search (measuring 10 s)"]
