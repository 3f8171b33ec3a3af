"""Whether a policy learned: the tests against its controls, from runs made up by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from placewright.core.solution import Solution
from placewright.report.learned_statistics import (
    LearnedRun,
    LearnedVerdict,
    controls_of,
    holm,
    runs_by_problem,
    verdicts,
)
from placewright.report.learned_text import report_text
from placewright.suites.learned import parts_of, read_runs, with_controls, write_runs


def run(problem: str, placer: str, seed: int, last: float, best: float) -> LearnedRun:
    return LearnedRun(
        problem, f"hash of {problem}", 500, placer, seed, best, 2.0, 0.1, 497, [9.0, last], []
    )


def runs_of(problem: str, placer: str, last: float, best: float) -> list[LearnedRun]:
    """Ten seeds around these values, over a best single device of 2."""
    return [run(problem, placer, s, last + 0.01 * s, best + 0.01 * s) for s in range(10)]


def test_holm_by_hand() -> None:
    """Three p-values: 3 x 0.01, then 2 x 0.03, then max(0.06, 1 x 0.04)."""
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []


def test_uniform_draws_have_as_many_groups_as_the_learner() -> None:
    assert controls_of("hierarchical:groups=256:noise=0:homogeneous_starts=false") == (
        "hierarchical:groups=256:noise=0:homogeneous_starts=false:updates=false",
        "random-grouped:learner=hierarchical:groups=256:homogeneous_starts=false",
    )


def test_a_learner_must_beat_both_controls() -> None:
    off, uniform = controls_of("post")
    runs = [
        *runs_of("a", "post", 1.0, 1.0), *runs_of("a", off, 2.0, 2.0),
        *runs_of("a", uniform, 2.0, 2.0),
        *runs_of("b", "post", 1.0, 1.0), *runs_of("b", off, 2.0, 2.0),
        *runs_of("b", uniform, 0.5, 0.5),
        *runs_of("c", "post", 1.0, 1.0), *runs_of("c", off, 1.0, 1.0),
        *runs_of("c", uniform, 2.0, 1.0),
        *runs_of("d", "post", 1.0, 1.0),
    ]  # fmt: skip
    a, b, c = verdicts(runs_by_problem(runs), "post")
    assert [v.problem for v in (a, b, c)] == ["a", "b", "c"]  # d has no controls
    assert [v.learns for v in (a, b, c)] == [True, False, False]
    assert [v.use for v in (a, b, c)] == ["better", "worse", "tie"]
    assert a.last == pytest.approx(1.045 / 2.0)
    raw = mannwhitneyu(np.arange(10), np.arange(10) + 100, alternative="less").pvalue
    assert a.p_off == pytest.approx(3 * raw)  # the smallest of three, by Holm


def test_five_seeds_cannot_decide_fifteen_problems() -> None:
    """1 / C(10, 5) x 15 = 0.0595, and 0.0476 for twelve problems."""
    names = ("post", *controls_of("post"))

    def first_of(problems: int) -> LearnedVerdict:
        runs = [
            one
            for problem in range(problems)
            for value, name in zip((1.0, 2.0, 3.0), names, strict=True)
            for one in runs_of(str(problem), name, value, value)[:5]
        ]
        return verdicts(runs_by_problem(runs), "post")[0]

    many, few = first_of(15), first_of(12)
    assert (many.is_decidable, many.learns) == (False, False)
    assert (few.is_decidable, few.learns) == (True, True)
    runs = [r for p in range(15) for name in names for r in runs_of(str(p), name, 1.0, 1.0)[:5]]
    assert "| `post` | 15 | too few runs |" in report_text(runs, 500)


def test_a_policy_that_samples_what_never_fits_has_not_learned() -> None:
    off, uniform = controls_of("post")
    names = ("post", off, uniform)
    runs = [r for name in names for r in runs_of("a", name, float("nan"), 1.0)]
    (verdict,) = verdicts(runs_by_problem(runs), "post")
    assert not verdict.learns


def test_controls_are_run_once_and_for_learners_only() -> None:
    assert with_controls(["post", "random"], controls=True, starts=True) == [
        "post", "post:updates=false", "random-grouped:learner=post", "random",
    ]  # fmt: skip
    assert with_controls(["post", "heft"], controls=False, starts=False) == [
        "post:homogeneous_starts=false", "heft",
    ]  # fmt: skip


def test_parts_are_medians_of_successive_tenths() -> None:
    solution = Solution(None, 1.0, "unknown", samples=tuple(float(i) for i in range(40)))
    assert parts_of(solution) == [1.5 + 4 * part for part in range(10)]
    assert parts_of(dataclasses.replace(solution, samples=(3.0, 1.0))) == [3.0, 1.0]


def test_runs_are_read_as_they_were_written(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "runs.json"
    rows = runs_of("a", "post", 1.0, 1.0)
    write_runs(path, rows)
    assert read_runs(path) == rows
    infinite = dataclasses.replace(rows[0], value=float("inf"), parts=[float("inf")])
    write_runs(path, [infinite])
    (again,) = read_runs(path)
    assert np.isnan(again.value)
    assert np.isnan(again.parts[0])
