"""Tables and bars that fit a width, and say the same with and without a terminal."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from placewright.core.placement import Placement
from placewright.report.terminal import column_widths, fitted_table, output_width, wrapped
from placewright.report.timeline_text import busy_shares, load_bars, timeline_bars
from placewright.simulation.model import Simulator
from placewright.suites.suite.runs import random_layered_problem
from placewright.testing.problems import random_problem

COLUMNS = ["op", "device", "time", "what decides"]
ROWS = [
    ["model.layers.3.block2.op_177", "gpu:0", "416.25 ms", "new transfer of 'model.op_1' to cpu"],
    ["a", "cpu", "-", "it does not fit"],
]


def shown(width: int, columns: list[str] = COLUMNS, rows: list[list[str]] = ROWS) -> list[str]:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(fitted_table("Devices", columns, rows, width), markup=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [30, 45, 60, 80, 140])
def test_a_table_fits_and_keeps_every_letter(width: int) -> None:
    lines = shown(width)
    assert max(map(len, lines)) <= width
    text = "".join("".join(lines).split())
    if width < 48:
        assert lines[1].startswith("op:")
    assert any("416.25 ms" in line for line in lines)  # a number is never broken
    if width == 140:
        for cell in (cell for row in ROWS for cell in row):
            assert any(cell in line for line in lines)
        assert len(lines) == 5
    assert text.count("416.25ms") == 1


def test_markup_in_names_is_text() -> None:
    assert any("[red]x[/red]" in line for line in shown(80, ["op"], [["[red]x[/red]"]]))


@pytest.mark.parametrize("seed", range(20))
def test_columns_get_what_they_want_or_a_fair_share(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    rows = [["x" * int(rng.integers(1, 40)) for _ in range(n)] for _ in range(4)]
    widths = column_widths(["c"] * n, rows, 80)
    if widths is None:
        assert n * 12 + 3 * (n - 1) > 80
        return
    wanted = [max(len(row[at]) for row in rows) for at in range(n)]
    total = sum(widths) + 3 * (n - 1)
    assert total <= 80
    assert all(width <= want for width, want in zip(widths, wanted, strict=True))
    if sum(wanted) + 3 * (n - 1) > 80:
        assert total == 80


def test_long_lines_break_between_words_and_stay_indented() -> None:
    lines = wrapped("  cpu:0: 3 units in 2 segments, peak memory 3 MiB", 30)
    assert lines == ["  cpu:0: 3 units in 2", "    segments, peak memory 3", "    MiB"]
    assert wrapped("", 80) == [""]


def test_the_width_is_what_columns_says_or_80(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "out").open("w") as file:
        for said, width in (("100", 100), ("", 80), ("none", 80), ("0", 80), ("-5", 80)):
            monkeypatch.setenv("COLUMNS", said)
            assert output_width(file) == width
        monkeypatch.delenv("COLUMNS")
        assert output_width(file) == 80
    assert output_width(io.StringIO()) == 80


@pytest.mark.parametrize("seed", range(10))
def test_busy_shares_are_those_of_a_fine_grid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 90, 12) / 100
    spans = np.stack([start, start + rng.integers(0, 11, 12) / 100], axis=1)
    middles = (np.arange(10_000) + 0.5) / 10_000
    runs = ((spans[:, :1] <= middles) & (middles < spans[:, 1:])).any(axis=0)
    wanted = runs.reshape(25, 400).mean(axis=1)
    assert busy_shares(spans, 1.0, 25) == pytest.approx(wanted, abs=1e-6)
    assert busy_shares(np.zeros((0, 2)), 1.0, 5).tolist() == [0.0] * 5


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("plain", [False, True])
def test_a_timeline_fits_and_is_read_without_colour(width: int, plain: bool) -> None:
    problem = random_layered_problem(np.random.default_rng(3), 30, 3)
    simulator = Simulator(problem)
    placement = Placement.of(np.arange(problem.n_units) % 3)
    timeline = simulator.timeline(placement)
    lines = timeline_bars(problem, timeline, width, plain=plain)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert text.isprintable() or "\n" in text
    assert text.isascii() == plain
    busy = [float((timeline.end - timeline.start)[timeline.device_of == d].sum()) for d in range(3)]
    for device, letter in enumerate("abc"):
        line = next(line for line in lines if line.startswith(f"{letter} "))
        assert problem.cluster.device_names[device] in line
        if problem.cluster.devices[device].streams == 1:
            assert line.endswith(f"{busy[device] / timeline.value:.0%}")
    path = next(line for line in lines if line.startswith("critical path"))
    assert set(path[len("critical path") :]) <= set(" abc>")
    assert any(mark in path[13:] for mark in "abc")


def test_loads_are_bars_in_proportion() -> None:
    problem = random_problem(np.random.default_rng(1), n_ops=5, n_devices=2)
    lines = load_bars(problem, np.array([[4.0, 1.0]]), 40, plain=True)
    longest, short = (line.count("#") for line in lines)
    assert longest == pytest.approx(4 * short, abs=2)
    assert max(map(len, lines)) <= 40
    assert [line.split()[-2] for line in lines] == ["4", "1"]
