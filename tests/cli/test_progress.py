"""Progress where standard error is no terminal: lines, not too many."""

from __future__ import annotations

import pytest

from placewright.cli.output import progress, spaced_lines
from placewright.report.time_left import Counted, TimeLeft


def test_a_long_task_says_a_line_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    report = spaced_lines("place", clock=lambda: now[0])
    for second in range(0, 190, 10):
        now[0] = 100.0 + second
        report(second / 200, f"second {second}")
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "place: 30%, second 60, about 2 min left",
        "place: 60%, second 120, about 80 s left",
        "place: 90%, second 180, about 20 s left",
    ]


def test_a_task_that_knows_the_time_left_is_not_contradicted() -> None:
    now = [0.0]
    left = TimeLeft(clock=lambda: now[0])
    assert left.with_time(0.5, "measuring") == "measuring"  # too early to say
    now[0] = 100.0
    assert left.with_time(0.5, "measuring") == "measuring, about 2 min left"
    assert left.with_time(0.5, "search, about 30 s left") == "search, about 30 s left"
    assert left.with_time(1.0, "done") == "done"


def test_rows_of_a_long_table_are_counted() -> None:
    now = [0.0]
    counted = Counted(clock=lambda: now[0])
    counted.ahead(3)
    now[0] = 30.0
    assert counted.numbered("a") == "1 of 3: a, about 60 s left"
    counted.ahead(1)
    now[0] = 40.0
    assert counted.numbered("b") == "2 of 4: b, about 40 s left"


@pytest.mark.parametrize("hidden", [True, False])
def test_a_short_task_says_nothing(hidden: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("place", hidden=hidden) as report:
        report(0.5, "half")
    assert capsys.readouterr() == ("", "")


def test_a_hidden_task_never_says_anything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placewright.cli.output._SECONDS_BETWEEN_LINES", 0.0)
    for hidden in (True, False):
        with progress("place", hidden=hidden) as report:
            report(0.5, "half")
        assert capsys.readouterr().err == ("" if hidden else "place: 50%, half\n")
