"""Every table of placers shows evaluations and core-seconds, and its headline names both."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import placewright as pw
from benchmarks.enlarged import EnlargedRow
from benchmarks.tables import enlarged_table
from placewright.report.comparison_table import ComparisonTable, Run, request_table
from placewright.report.difference import difference_of
from placewright.report.learned_statistics import LearnedRun, report_text
from placewright.report.tables import (
    profiles_table,
    rivals_table,
    tarnawski_table,
)
from placewright.report.terminal import column_widths
from placewright.suites.papers.report import suite_report
from placewright.suites.papers.suite import paper_suite
from placewright.suites.suite.pictures import comparisons, profiles
from placewright.suites.suite.runs import SuiteRow
from placewright.suites.tarnawski import BenchmarkRow
from placewright.testing.problems import random_problem
from tests.report.report_problems import layered_problem, plan_for

SUITE = SuiteRow(
    1, "p", "zoo", 3, 2, "auto", 0, 20.0, "feasible", 1.0, 0.5, 1234, 20.0, processor_seconds=37.5
)


def named_in(shown: Any) -> bool:
    """Whether a table's title names both, and its columns do."""
    heading = " ".join(shown.columns)
    return all(
        what in text
        for text, words in ((shown.title, ("evaluations", "core-seconds")),
                            (heading, ("evaluations", "core s")))
        for what in words
    )  # fmt: skip


def test_nobody_wins_where_nobody_found_a_placement() -> None:
    runs = (Run("auto", 0, math.inf, 10, 2.0), Run("heft", 0, math.inf, 1, 0.1))
    assert "no placer found a placement" in ComparisonTable("s", runs, 1.0).headline


def test_the_table_of_a_comparison() -> None:
    """The median over seeds of 10 and 30 evaluations is 20, of 2 and 6 core-seconds 4."""
    runs = [Run("auto", 0, 1.0, 10, 2.0), Run("auto", 1, 1.0, 30, 6.0), Run("heft", 0, 2.0, 1, 0.1)]
    table = ComparisonTable("s", tuple(runs), 1.0)
    row = dict(zip(table.columns, table.text_rows()[0], strict=True))
    assert (row["evaluations"], row["core s"]) == ("20", "4.0")
    assert "auto has the smallest median" in table.headline
    assert "(20 evaluations, 4 core-seconds)" in table.headline
    assert "(1 evaluation, 0.1 core-seconds)" in table.headline


def test_no_placer_is_next_without_a_placement() -> None:
    runs = (Run("heft", 0, 4.0, 1, 0.1), Run("random", 0, math.inf, 12, 0.1))
    headline = ComparisonTable("s", runs, 4.0).headline
    assert headline.endswith("4 s (1 evaluation, 0.1 core-seconds); no other has a value")


@pytest.mark.parametrize(("bound", "share"), [(6e-6, "; 50% of what"), (10e-6, ""), (0.0, "")])
def test_a_table_of_contenders_shows_microseconds_and_no_share_above_all(
    bound: float, share: str
) -> None:
    """The split takes 9 us and the best device 12; a bound of 10 was predicted, and is wrong."""
    plan = plan_for(layered_problem(100), np.repeat([0, 1], 50))
    measured = {"gpu:0": (12e-6, 1e-6), "gpu:1": (14e-6, 2e-6), "plan": (9e-6, 1e-6)}
    table = request_table(
        dataclasses.replace(plan, lower_bound=bound),
        measured,
        {"gpu:1": 13e-6},
        "plan",
        {},
        (0.0, 1e-4, 3),
        [],
    )
    assert "tolerance 0.0001, other levels leave 3 values open)" in table.verdict
    assert [row[1:4] for row in table.rows[:2]] == [
        ["-", "12 us", "1 us"],
        ["13 us", "14 us", "2 us"],
    ]
    assert ("perfect split" in table.verdict) == bool(share)
    assert share in table.verdict


@pytest.mark.parametrize(
    ("fastest", "unit", "shown"),
    [
        (5.4321e-6, "us", ["5.486", "5.432", "2.0%"]),
        (0.12345, "ms", ["124.7", "123.5", "2.0%"]),
        (10.2345, "s", ["10.34", "10.23", "2.0%"]),
    ],
)
def test_a_comparison_of_long_values_fits_80_columns(
    fastest: float, unit: str, shown: list[str]
) -> None:
    """A table, not a block of lines for each row; all its values are in one unit."""
    runs = [
        Run("local-search", seed, fastest * (1 + seed / 100), 20_000, 1234.5, ((10_000, fastest),))
        for seed in range(3)
    ]
    for bound in (0.0, fastest / 2):
        table = ComparisonTable("s", tuple(runs), fastest, {}, bound, "critical path")
        assert table.columns[1:4] == (f"median ({unit})", f"best ({unit})", "spread")
        assert table.text_rows()[0][1:4] == shown
        assert column_widths(table.columns, table.text_rows(), 80) is not None


def test_a_comparison_has_its_bound_and_statistics_over_seeds() -> None:
    """Values 4, 5 and 8: the median is 25 % above the bound of 4, the spread (8 - 4) / 5."""
    runs = tuple(Run("random", seed, value, 9, 0.1) for seed, value in enumerate((8.0, 4.0, 5.0)))
    table = ComparisonTable("s", runs, 4.0, {}, 4.0, "linear relaxation")
    row = dict(zip(table.columns, table.text_rows()[0], strict=True))
    values = [row[name] for name in ("median (s)", "best (s)", "spread", "above bound")]
    assert values == ["5", "4", "80.0%", "25.0%"]
    assert table.legend[0] == (
        "Lower bound: 4 s (linear relaxation); the best value is 0.0% above it."
    )
    assert table.data()["rows"][0]["gap"] == 0.25


def test_a_comparison_without_a_bound_or_seeds_has_neither_column() -> None:
    table = ComparisonTable("s", (Run("random", 0, 5.0, 9, 0.1), Run("heft", 0, 4.0, 1, 0.1)), 4.0)
    assert table.columns[:3] == ("placer", "value (s)", "above best")
    assert table.text_rows()[1][:3] == ["random", "5", "25.0%"]
    assert table.legend[0] == "No lower bound is known."
    assert "argument `seeds`" in table.legend[-1]


def test_tables_of_the_suite() -> None:
    rival = dataclasses.replace(
        SUITE, placer="heft", value=2.0, evaluations=7, processor_seconds=0.5
    )
    beside = rivals_table(comparisons([SUITE, rival]))
    assert named_in(beside)
    assert {"1,234, 37.5", "7, 0.5"} <= set(beside.rows[0])
    nothing = dataclasses.replace(SUITE, value=math.nan)
    for rows in ([nothing], [nothing, rival], [SUITE]):
        assert not {"nan", "inf", "nan%", "0.000"} & set(rivals_table(comparisons(rows)).rows[0])
    profile = profiles_table(profiles([SUITE, rival]))
    assert named_in(profile)
    assert [row[-2:] for row in profile.rows] == [("1234", "37.5"), ("7", "0.5")]


def test_tables_of_published_workloads_and_of_a_large_layer() -> None:
    row = BenchmarkRow("w", "auto", 1.0, 0.5, 1.0, "feasible", 2.0, 0, "", "", 40.0, 12, 3.25)
    published = tarnawski_table([row])
    assert named_in(published)
    assert {"12", "3.25"} <= set(published.rows[0])
    enlarged = enlarged_table([EnlargedRow("post", None, 300, core_seconds=8.0)], "layer")
    assert named_in(enlarged)
    assert {"300", "8.0"} <= set(enlarged.rows[0])


def test_the_report_of_learned_placers() -> None:
    def run(placer: str, seconds: float) -> LearnedRun:
        return LearnedRun("p", "hash", 500, placer, 0, 1.0, 2.0, seconds, 0, [], [])

    text = report_text([run("auto", 284.0), run("heft", 0.1)], 500)
    headline = text.splitlines()[0]
    assert headline.startswith("# Learned placers, 500 evaluations, 0.1 (heft) to 284 (auto)")
    assert "core-seconds" in headline


def test_the_report_of_a_paper() -> None:
    suite = paper_suite("hsdag")
    stage = suite.stages[0]
    problem, placer = suite.cases[0].name, next(iter(stage.placers))
    runs = [
        LearnedRun(problem, "hash", stage.evaluations, placer, seed, 1.0, 2.0, seconds, 0, [], [])
        for seed, seconds in enumerate((3.0, 5.0, 40.0))
    ]
    text = suite_report(suite, runs, "picture.svg")
    heading = f"| {stage.evaluations:,} evaluations, with core-seconds (median) | seeds | core s |"
    assert heading in text
    assert "`| 3 | 5 | 0.500 |" in text.replace("` |", "`|")


def test_the_difference_of_two_plans() -> None:
    """By its text, and so on its page: what each search took, and why it ended."""
    problem = random_problem(np.random.default_rng(1), n_ops=5, n_devices=2, constrained=False)
    first, other = (pw.place(problem, placer=name, evaluations=9) for name in ("random", "single"))
    found = next(line for line in difference_of(first, other).lines() if "core-seconds" in line)
    assert found.startswith("found by random, seed 0, 9 evaluations")
    assert "; the other by single, seed 0, 2 evaluations" in found
    assert found.endswith("core-seconds, nothing left to try")
    again = next(line for line in difference_of(first, first).lines() if "core-seconds" in line)
    assert "the other" not in again


def test_two_placers_with_one_value_share_the_first_place() -> None:
    runs = [Run(name, 0, value, 9, 1.0) for name, value in (("a", 2.0), ("b", 2.0), ("c", 3.0))]
    table = ComparisonTable("s", tuple(runs), 2.0)
    assert table.headline == "a and b share the smallest value: 2 s"
    quick = ComparisonTable("s", (Run("a", 0, 2.0, 9, 0.0324),), 2.0)
    assert dict(zip(quick.columns, quick.text_rows()[0], strict=True))["core s"] == "0.032"


def test_a_best_value_of_zero_divides_nothing() -> None:
    """A price of 0 per hour, or ops without seconds."""
    runs = (Run("a", 0, 0.0, 1, 0.1), Run("b", 0, 2.0, 1, 0.1))
    table = ComparisonTable("per run", runs, 0.0)
    assert [row.gap_to_best for row in table.rows] == [0.0, math.inf]


def test_a_median_that_is_no_placement_is_not_said_of_all() -> None:
    runs = (Run("a", 0, 5.0, 1, 0.1), Run("a", 1, math.inf, 1, 0.1))
    table = ComparisonTable("s", runs, 5.0)
    assert table.has_placement
    assert table.headline == "no placer found a placement with most of its seeds"
