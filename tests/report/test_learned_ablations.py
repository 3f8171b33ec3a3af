"""A learner beside itself with other settings: from runs made up by hand."""

from __future__ import annotations

import math

import pytest
from scipy.stats import mannwhitneyu, wilcoxon

from placewright.report import learned_statistics
from placewright.report.learned_statistics import LearnedRun, changes, report_text, runs_by_problem

PROBLEMS = "abcdef"


def runs_of(
    problem: str, placer: str, last: float, best: float = 1.0, n: int = 10
) -> list[LearnedRun]:
    """Seeds around these values, over a best single device of 2."""
    return [
        LearnedRun(
            problem, problem, 500, placer, seed, best + 0.001 * seed, 2.0, 0.1, 497,
            [9.0, last + 0.001 * seed], [],
        )
        for seed in range(n)
    ]  # fmt: skip


def defaults() -> list[LearnedRun]:
    return [run for problem in PROBLEMS for run in runs_of(problem, "hsdag", 1.0)]


def test_a_change_is_worse_on_some_problems_and_better_on_others() -> None:
    """By hand: twice as slow on a to d, half on e, the same on f; five seeds against ten."""
    last = {"a": 2.0, "b": 2.0, "c": 2.0, "d": 2.0, "e": 0.5, "f": 1.0}
    changed = [r for p, v in last.items() for r in runs_of(p, "hsdag:discount=0.9", v, n=5)]
    found = {one.measure: one for one in changes(runs_by_problem(defaults() + changed), "hsdag")}
    assert (found["last"].problems, found["last"].seeds) == (6, 5)
    assert (found["last"].better, found["last"].worse) == (1, 4)
    assert (found["best"].better, found["best"].worse) == (0, 0)
    medians = [(value + 0.002) / 1.0045 for value in last.values()]
    assert found["last"].ratio == pytest.approx(math.prod(medians) ** (1 / 6))
    assert found["last"].p == pytest.approx(wilcoxon([math.log(m) for m in medians]).pvalue)


def test_p_values_are_adjusted_over_problems_and_over_changes() -> None:
    """Two seeds against ten are too few for six problems, ten are enough; and with two changes
    the p of all problems (six of six on one side) doubles."""
    few = [r for p in PROBLEMS for r in runs_of(p, "hsdag:steps=5", 2.0, n=2)]
    many = [r for p in PROBLEMS for r in runs_of(p, "hsdag:steps=7", 2.0)]
    found = [
        one
        for one in changes(runs_by_problem(defaults() + few + many), "hsdag")
        if one.measure == "last"
    ]
    raw = mannwhitneyu([0.0, 1.0], list(range(2, 12)), alternative="less").pvalue
    assert 6 * raw > 0.05
    assert [(one.placer, one.worse) for one in found] == [
        ("hsdag:steps=5", 0),
        ("hsdag:steps=7", 6),
    ]
    assert [one.p for one in found] == [pytest.approx(2 * 2 / 2**6)] * 2


def test_controls_other_learners_and_problems_without_defaults_are_no_changes() -> None:
    others = [
        *runs_of("a", "hsdag:updates=false", 3.0),
        *runs_of("a", "random-grouped:learner=hsdag", 3.0),
        *runs_of("a", "post:ablation=ce_only", 3.0),
        *runs_of("z", "hsdag:steps=5", 3.0),
    ]
    assert changes(runs_by_problem(defaults() + others), "hsdag") == []


def test_what_never_fits_is_infinitely_worse() -> None:
    never = runs_of("a", "hsdag:steps=5", math.nan)
    last = changes(runs_by_problem(defaults() + never), "hsdag")[0]
    assert (last.ratio, last.worse) == (math.inf, 1)


def test_the_report_lists_changes_the_worst_first() -> None:
    changed = [
        run
        for problem in PROBLEMS
        for name, value in (("hsdag:steps=5", 1.1), ("hsdag:steps=7", 3.0))
        for run in runs_of(problem, name, value)
    ]
    text = report_text(defaults() + changed, 500)
    section = text.partition("## Settings, one change at a time")[2].partition("## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == ["hsdag:steps=7", "hsdag:steps=5"]
    assert rows[0].split(" | ")[1:6] == ["6", "10", "2.991", "0", "6"]
    assert "one change at a time" not in report_text(defaults(), 500)


@pytest.mark.parametrize(
    "logs", [(0.5, -0.2, -0.1, -2.1, 2.1, 1.4), (0.3, 0.3, -0.3, 0.1), (0.3, math.inf, 0.1)]
)
def test_ranks_with_ties_have_the_p_of_scipys_test(logs: tuple[float, ...]) -> None:
    """Zeros are left out before."""
    assert learned_statistics._signed_ranks([0.0, *logs]) == wilcoxon(logs).pvalue
