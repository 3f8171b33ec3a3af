"""Searches with evaluations on the hardware: their rows, how they go on, and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import measured_search
from benchmarks.measured_search import (
    Case,
    MeasuredRun,
    checked,
    expected_seconds,
    measured_again,
    run_measured_search,
    runs_of,
    searched,
    seconds_of_evaluation,
    stored,
    with_ratios,
    without_search,
)
from benchmarks.measured_tables import in_words, models, summary
from placewright.core.placement import Placement
from placewright.simulation.model import Simulator
from placewright.testing.problems import random_problem

PROBLEM = random_problem(np.random.default_rng(1), n_ops=12, n_devices=2, constrained=False)
BASE = 2.0


def case(name: str) -> Case:
    """A case whose times are simulated."""
    loaded: Any = None
    return Case(name, "sizes", PROBLEM, loaded, (), ratio, ratio, BASE)


def ratio(placement: Placement) -> float:
    return Simulator(PROBLEM).value(placement) / BASE


@pytest.fixture(autouse=True)
def no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    class Named:
        version = "1"

    monkeypatch.setattr(measured_search, "runtime_named", lambda _: Named())


@pytest.mark.parametrize("placer", ["local-search", "cooling", "random-grouped"])
def test_a_run_keeps_its_best_placement_and_its_improvements(placer: str) -> None:
    row = searched(case("a"), placer, 0, 30)
    assert row.identity == ("a", placer, 0, 30)
    counts, ratios = zip(*row.history, strict=True)
    assert sorted(counts) == list(counts)
    assert counts[-1] <= 30
    assert sorted(ratios, reverse=True) == list(ratios)
    assert case("a").ratio(row.placement) == pytest.approx(ratios[-1], abs=1e-5)


def test_a_value_that_beats_all_before_it_is_measured_again() -> None:
    """0.5 was luck: 0.9 counts, so that 0.8 is looked at again, and 0.85 is not."""
    quick, again = iter([0.5, 0.8, 0.85, 0.6]), iter([0.9, 0.7, 0.65])
    timed = replace(case("a"), ratio=lambda _: next(quick), ratio_again=lambda _: next(again))
    value, placement = checked(timed), Placement.of([0] * PROBLEM.n_units)
    assert [value(placement) for _ in range(4)] == [0.9, 0.7, 0.85, 0.65]


def test_placements_without_a_search_are_the_devices_and_those_of_the_cost_table() -> None:
    rows = list(without_search(case("a")))
    assert [row.placer for row in rows] == [*PROBLEM.cluster.device_names, "even-split", "heft"]
    assert [set(row.device_of) for row in rows[:2]] == [{0}, {1}]
    assert {row.evaluations for row in rows} == {0}


def row(placer: str, seed: int = 0, **changes: Any) -> MeasuredRun:
    evaluations = 0 if placer.startswith("cpu:") else 9
    return replace(MeasuredRun("a", placer, seed, evaluations, "sizes", (0, 0, 1)), **changes)


def test_ratios_are_to_the_device_with_the_smaller_median_in_the_same_round() -> None:
    """Medians of the devices are 4 and 3; the last round took twice as long for all."""
    rows = [row("cpu:0"), row("cpu:1"), row("post")]
    found = with_ratios(rows, [[4, 4, 8], [3, 3, 6], [1.5, 2.4, 3]], ("cpu:0", "cpu:1"))
    assert [one.again for one in found] == [[1.33333] * 3, [1] * 3, [0.5, 0.8, 0.5]]
    assert [one.took for one in found] == [4, 3, 2.4]


def test_equal_placements_share_times_and_all_loops_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order on one device makes no other placement; the three take 4, 5 and 3 seconds."""
    shapes: list[int] = []

    def turns(_: Case, placements: Sequence[Placement], rounds: int, rng: Any) -> Any:
        shapes.append(len(placements))
        return np.tile([4.0, 5.0, 3.0], (rounds, 1))

    monkeypatch.setattr(measured_search, "in_turns", turns)
    first, second = PROBLEM.cluster.device_names
    rows = [
        row(first, device_of=(0, 0, 0)),
        row(second, device_of=(1, 1, 1)),
        row("post"),
        row("hsdag", device_of=(0, 0, 0), order=(0, 1, 2)),
    ]
    found = measured_again(case("a"), rows, 2)
    assert shapes == [3] * 5
    assert [one.again for one in found] == [[x] * 10 for x in (1.0, 1.25, 0.75, 1.0)]


def test_every_model_and_placer_comes_before_the_next_seed() -> None:
    assert runs_of(["a", "b"], ["x", "y"], 2, 9)[:5] == [
        ("a", "x", 0, 9), ("a", "y", 0, 9), ("b", "x", 0, 9), ("b", "y", 0, 9), ("a", "x", 1, 9),
    ]  # fmt: skip


def test_time_left_is_that_of_stored_runs_or_of_an_evaluation() -> None:
    """Median of 1 and 3 seconds for nine evaluations, twice; and two runs at 0.5 s each time."""
    known = [row("x", 0, seconds=1.0), row("x", 1, seconds=3.0), row("cpu:0")]
    missing = [*runs_of(["a"], ["y", "z"], 1, 9), *runs_of(["b"], ["y", "z"], 1, 9)]
    assert expected_seconds(missing, known, lambda name: {"b": 0.5}[name]) == pytest.approx(13.0)
    assert seconds_of_evaluation(case("a")) > 0


def test_runs_go_on_and_placements_are_measured_again_once_all_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops: list[list[str]] = []

    def again(_: Case, rows: Sequence[MeasuredRun], rounds: int) -> list[MeasuredRun]:
        loops.append([row.placer for row in rows])
        return [replace(row, again=[1.0] * rounds) for row in rows]

    monkeypatch.setattr(measured_search, "measured_again", again)
    path, notes = tmp_path / "rows.json", list[str]()

    def run(seeds: int, seconds: float = 60.0) -> None:
        wanted = runs_of(["a", "b"], ["cooling", "local-search"], seeds, 9)
        run_measured_search(
            stored(path), wanted, case, rounds=9, seconds=seconds, note=notes.append
        )

    run(1, seconds=-1.0)
    assert not path.exists()
    assert notes[0].startswith("4 of 4 runs left, about ")
    run(1)
    fixed = [*PROBLEM.cluster.device_names, "even-split", "heft"]
    assert loops == [[*fixed, "cooling", "local-search"]] * 2
    before = path.read_text()
    run(1)
    assert (path.read_text(), len(loops)) == (before, 2)
    run(2)
    assert loops[2:] == [[*fixed, "cooling", "local-search", "cooling", "local-search"]] * 2
    rows = list(stored(path).rows.values())
    assert len(rows) == 2 * (4 + 4)
    assert all(len(row.again) == 9 for row in rows)
    assert isinstance(rows[0].placement, Placement)


def test_the_table_has_medians_over_seeds_in_each_round() -> None:
    """Rounds of `post`: medians of (0.5, 0.7) and (0.9, 0.7), which are 0.6 and 0.8."""
    rows = [
        row("post", 0, again=[0.5, 0.9], seconds=10.0, device_of=(0, 0, 0)),
        row("post", 1, again=[0.7, 0.7], seconds=20.0),
        row("local-search", 0, again=[1.0, 0.8], seconds=9.0),
        row("post", 2, seconds=20.0),
        row("cpu:0", 0, again=[1.0, 1.0], took=0.002),
        row("cpu:1", 0, again=[2.0, 2.0], took=0.004),
    ]
    document = {"rows": [asdict(one) for one in rows]}
    columns, lines = summary(document)
    assert len(columns) == len(lines[0])
    post = ["a", "`post`", "9", "15", "0.700", "0.600 to 0.800", "0.800", "0.600 to 1.000"]
    assert lines[0] == [*post, "0.700, 0.700", "0, 1"]
    assert [line[1] for line in lines] == ["`post`", "`local-search`", "`cpu:0`", "`cpu:1`"]
    assert lines[2][3] == "-"
    assert models(document) == (
        ["model", "sizes", "units", "`cpu:0`", "`cpu:1`"],
        [["a", "sizes", "3", "2 ms", "4 ms"]],
    )


def test_a_placer_is_faster_if_the_whole_interval_is_below_one_by_the_margin() -> None:
    rows = [
        row("post", again=[0.97, 0.98]),
        row("hsdag", again=[0.98, 0.995]),
        row("post", 1, again=[0.9, 0.9]),
        row("local-search", 1, again=[1.0, 1.0]),
        row("local-search", again=[0.97, 0.9]),
        row("cpu:0", again=[1.0, 1.0]),
    ]
    assert in_words({"rows": [asdict(one) for one in rows]}).split("\n") == [
        "- Faster than the best core on a: `post`.",
        "- `post` is faster than `local-search` on 0 of 1 models and slower on 0.",
        "- `hsdag` is faster than `local-search` on 0 of 1 models and slower on 1.",
    ]
