"""Progress where standard error is no terminal: lines, not too many."""

from __future__ import annotations

import pytest

from placewright.cli.output import progress, spaced_lines


def test_a_long_task_says_a_line_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    report = spaced_lines("place", clock=lambda: now[0])
    for second in range(0, 190, 10):
        now[0] = 100.0 + second
        report(second / 200, f"second {second}")
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "place: 30%, second 60",
        "place: 60%, second 120",
        "place: 90%, second 180",
    ]


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
