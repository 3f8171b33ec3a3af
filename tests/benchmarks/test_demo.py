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


def without_numbers(lines: list[str]) -> list[str]:
    """Times, bytes, counts and the number of the core that won stand for any others."""
    return [re.sub(r"[+-]?\d[\d.]*(?:e[+-]?\d+)?", "N", line) for line in lines]


def shown_below(command: str) -> list[str]:
    """The lines of README below a command, up to the next empty line or the end."""
    after = shown().partition(f"$ placewright {command}\n")[2]
    return re.split(r"\n\n|\n```", after)[0].splitlines()


def test_lines_below_a_command_are_found() -> None:
    for _, command, pattern in STEPS:
        lines = shown_below(command)
        assert lines
        assert [line for line in lines if not re.search(pattern, line)] == []


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(STEPS)))
def test_readme_shows_what_the_demo_prints(at: int) -> None:
    """But for numbers, and but for the last verdict.

    That begins alike if no split wins on this machine. Whether the search found a split that may be
    faster, which is measured then, depends on the machine, too. Steps run in turn: the second one
    runs the plan of the first.
    """
    _, command, pattern = STEPS[at]
    printed, known = without_numbers(shown_lines(command, pattern)), shown_below(command)
    expected = without_numbers(known)
    if at < len(STEPS) - 1:
        assert printed == expected
    elif printed[0].startswith("Split over N devices: "):
        pytest.skip(f"a split wins on this machine: {printed[0]}")
    else:
        alone = "Do not split: 'cpu:N' runs everything in N ms predicted"
        assert printed[0].startswith(alone)
        assert expected[0].startswith(alone)
