"""Whether a policy learned: the tests against its controls, from runs made up by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from placewright.core.solution import Solution
from placewright.errors import InputError
from placewright.files.results import write_rows
from placewright.report.learned_statistics import (
    LearnedRun,
    LearnedVerdict,
    controls_of,
    holm,
    p_less,
    report_text,
    runs_by_problem,
    sets,
    verdicts,
)
from placewright.suites.learned import FORMAT, parts_of, read_runs, with_controls


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
        "cooling",
        "random-grouped:learner=post:homogeneous_starts=false",
    )
    uniform = controls_of("placeto:groups=8:rounds=4")[1]
    assert uniform == "random-grouped:learner=placeto:groups=8"


def test_a_learner_must_beat_all_controls() -> None:
    """Problem f: of (c) only the best placements count, so that its last tenth may be as good."""
    off, uniform, cooling, common = controls_of("seq2seq")
    worse = {off: (2.0, 2.0), uniform: (2.0, 2.0), cooling: (2.0, 2.0), common: (2.0, 2.0)}
    problems = {
        "a": worse,
        "b": {**worse, uniform: (0.5, 2.0), common: (0.5, 0.5)},
        "c": {**worse, off: (1.0, 1.0)},
        "e": {**worse, cooling: (2.0, 1.0)},
        "f": {**worse, cooling: (0.5, 2.0)},
    }
    runs = [r for p in (*problems, "d") for r in runs_of(p, "seq2seq", 1.0, 1.0)]
    for problem, controls in problems.items():
        runs += [r for name, two in controls.items() for r in runs_of(problem, name, *two)]
    runs += runs_of("a", "heft", 3.0, 3.0)
    a, b, c, e, f = verdicts(runs_by_problem(runs), "seq2seq")
    assert [v.problem for v in (a, b, c, e, f)] == ["a", "b", "c", "e", "f"]  # d has no controls
    assert [v.learns for v in (a, b, c, e, f)] == [True, False, False, False, True]
    assert [v.is_better_by_samples for v in (a, b, c, e, f)] == [True, False, False, True, True]
    assert [v.use for v in (a, b, c, e, f)] == ["better", "worse", "tie", "tie", "better"]
    assert a.last == pytest.approx(1.045 / 2.0)
    assert a.beside[0] == pytest.approx(3.045 / 2.0)
    assert np.isnan(a.beside[1])
    raw = mannwhitneyu(np.arange(10), np.arange(10) + 100, alternative="less").pvalue
    assert a.p_off == pytest.approx(5 * raw)  # the smallest of five, by Holm


def test_a_sampler_that_cannot_learn_does_not_learn() -> None:
    """`cooling` in the place of a learner is better by its samples, and no better than itself."""
    from support import toys

    from placewright.suites.learned import one_run

    problem = toys.two_cluster_problem()
    off, uniform, cooling, common = controls_of("seq2seq")
    runs = [
        dataclasses.replace(one_run("toy", problem, 200, name, seed), placer=placer)
        for turn in range(10)
        for placer, name, seed in (
            ("seq2seq", "cooling", turn),
            (cooling, "cooling", 100 + turn),
            (off, uniform, 200 + turn),
            (uniform, uniform, turn),
            (common, common, turn),
        )
    ]
    (verdict,) = verdicts(runs_by_problem(runs), "seq2seq")
    assert verdict.is_decidable
    assert verdict.is_better_by_samples
    assert not verdict.learns
    assert verdict.use != "better"
    assert "| `seq2seq` | 1 | 1 | 0 | 0 |" in report_text(runs, 200)


def test_five_seeds_cannot_decide_fifteen_problems() -> None:
    """1 / C(10, 5) x 15 = 0.0595, and 0.0476 for twelve problems."""
    names = ("seq2seq", *controls_of("seq2seq"))

    def first_of(problems: int) -> LearnedVerdict:
        runs = [
            one
            for problem in range(problems)
            for value, name in zip((1.0, 2.0, 3.0, 4.0, 5.0), names, strict=True)
            for one in runs_of(str(problem), name, value, value)[:5]
        ]
        return verdicts(runs_by_problem(runs), "seq2seq")[0]

    many, few = first_of(15), first_of(12)
    assert (many.is_decidable, many.learns) == (False, False)
    assert (few.is_decidable, few.learns) == (True, True)
    runs = [r for p in range(15) for name in names for r in runs_of(str(p), name, 1.0, 1.0)[:5]]
    assert "| `seq2seq` | 15 | too few runs |" in report_text(runs, 500)


def test_a_problem_with_too_few_runs_is_no_tie_and_may_be_decided() -> None:
    """Twelve problems have ten seeds, and the last one five, whose p Holm's method adjusts last."""
    names = ("seq2seq", *controls_of("seq2seq"))
    values = (1.0, 2.0, 3.0, 4.0, 5.0)

    def report(of_last: tuple[float, ...]) -> str:
        runs = [
            one
            for problem in range(12)
            for value, name in zip(values, names, strict=True)
            for one in runs_of(str(problem), name, value, value)
        ]
        for value, name in zip(of_last, names, strict=True):
            runs += runs_of("last", name, value, value)[:5]
        return report_text(runs, 500)

    def row(text: str) -> str:
        return next(line for line in text.splitlines() if line.startswith("| last | 5 |"))

    even = report((1.0,) * 5)
    assert "| `seq2seq` | 13 | 12 | 12 | 12 | 0 | 0 |" in even
    assert row(even).endswith("| too few runs | too few runs |")
    better = report(values)
    assert "| `seq2seq` | 13 | 13 | 13 | 13 | 0 | 0 |" in better
    assert row(better).endswith("| yes | better |")


def test_a_policy_that_samples_what_never_fits_has_not_learned() -> None:
    names = ("seq2seq", *controls_of("seq2seq"))
    runs = [r for name in names for r in runs_of("a", name, float("nan"), 1.0)]
    (verdict,) = verdicts(runs_by_problem(runs), "seq2seq")
    assert not verdict.learns


def test_a_setting_whose_name_ends_in_updates_is_a_learner_s_own() -> None:
    assert sets("hierarchical:noise_updates=3:updates=false", "updates")
    assert not sets("hierarchical:noise_updates=3", "updates")
    learner = "hierarchical:noise_updates=3"
    assert f"{learner}:updates=false" in with_controls([learner], controls=True, starts=True)


def test_with_ties_p_is_the_share_of_all_choices() -> None:
    """Ranks are 2, 2, 2 and five times 6: five of 70 choices have all three ones, and one two."""
    assert p_less([1, 1, 1, 2], [2, 2, 2, 2]) == pytest.approx(5 / 70)
    assert p_less([1, 2], [1, 3]) == pytest.approx(3 / 6)  # 1.5 + 1.5, and 1.5 + 3 twice
    plain = ([1.0, 2.0, 4.0], [3.0, 5.0, 6.0, 7.0])
    assert p_less(*plain) == pytest.approx(mannwhitneyu(*plain, alternative="less").pvalue)


def test_controls_are_run_once_and_for_learners_only() -> None:
    assert with_controls(["post", "random"], controls=True, starts=True) == [
        "post", "post:updates=false", "random-grouped:learner=post", "cooling", "heft",
        "local-search", "random",
    ]  # fmt: skip
    assert with_controls(["post", "heft"], controls=False, starts=False) == [
        "post:homogeneous_starts=false", "heft",
    ]  # fmt: skip


def test_a_problem_that_fits_no_single_device_is_refused(tmp_path: Path) -> None:
    """Its values have nothing to be divided by."""
    from support import toys

    from placewright.suites.learned import Case, run_learned_benchmark

    plain = toys.tight_problem()
    devices = tuple(dataclasses.replace(one, memory_bytes=500.0) for one in plain.cluster.devices)
    cluster = dataclasses.replace(plain.cluster, devices=devices)
    problem = dataclasses.replace(plain, cluster=cluster)
    with pytest.raises(InputError, match="wide fits no single device, and reports divide by"):
        run_learned_benchmark([Case("wide", lambda: problem)], ["post"], 20, 1, tmp_path / "r.json")
    assert not (tmp_path / "r.json").exists()


def test_a_learner_without_starts_has_its_verdict() -> None:
    names = with_controls(["post"], controls=True, starts=False)
    runs = [r for name in names for r in runs_of("a", name, 1.0, 1.0)]
    assert "### `post:homogeneous_starts=false`" in report_text(runs, 500)


def test_parts_are_medians_of_successive_tenths() -> None:
    solution = Solution(None, 1.0, "unknown", samples=tuple(float(i) for i in range(40)))
    assert parts_of(solution) == [1.5 + 4 * part for part in range(10)]
    assert parts_of(dataclasses.replace(solution, samples=(3.0, 1.0))) == [3.0, 1.0]


def test_runs_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    rows = runs_of("a", "post", 1.0, 1.0)
    write_rows(path, FORMAT, rows)
    assert read_runs(path) == rows
    infinite = dataclasses.replace(rows[0], value=float("inf"), parts=[float("inf")])
    write_rows(path, FORMAT, [infinite])
    (again,) = read_runs(path)
    assert np.isnan(again.value)
    assert np.isnan(again.parts[0])


def test_runs_of_a_problem_that_has_changed_since_do_not_count(tmp_path: Path) -> None:
    """Two seeds ran again on the new problem; the third is not pooled with them."""
    path = tmp_path / "runs.json"
    before = [run("a", "post", seed, 2.0, 2.0) for seed in range(3)]
    after = [dataclasses.replace(one, key="new", value=1.0) for one in before[:2]]
    other = run("a", "heft", 0, 2.0, 2.0)
    write_rows(path, FORMAT, [*before, other, *after])
    assert read_runs(path) == [other, *after]
