"""README shows what the demo prints, but for numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.demo import BEGIN, END, STEPS, shown_lines, with_block

README = Path(__file__).parents[2] / "README.md"


def shown() -> str:
    """The part of README that the demo wrote."""
    return README.read_text().partition(BEGIN)[2].partition(END)[0]


def test_readme_shows_the_steps_of_the_demo() -> None:
    for why, command, _ in STEPS:
        assert f"# {why}\n$ placewright {command}\n" in shown()


def test_the_block_between_the_marks_is_replaced() -> None:
    assert with_block(f"a\n{BEGIN}old{END}\nb", "new\n") == f"a\n{BEGIN}new\n{END}\nb"


@pytest.mark.slow
def test_a_model_that_fits_nowhere_runs_as_readme_shows() -> None:
    """The last step's verdict depends on the machine."""
    for _, command, pattern in STEPS[:-1]:
        lines = [re.sub(r"[+-]?[\d.]+", "N", line) for line in shown_lines(command, pattern)]
        known = re.sub(r"[+-]?[\d.]+", "N", shown())
        assert lines
        assert [line for line in lines if line not in known] == []
