"""Comparisons of placers: their bound, the order of their runs, and the time left."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.errors import FileFormatError, InputError
from placewright.placers.bases import anytime
from placewright.session import comparison
from placewright.session.request import EVALUATORS
from placewright.simulation.bounds.lower import lower_bound
from placewright.simulation.evaluator import Evaluator
from placewright.suites import learned
from placewright.suites.suite import runs as suite_runs
from placewright.testing.problems import random_problem
from placewright.workers.tasks import Done, Task


@pytest.fixture
def problem() -> Problem:
    return random_problem(np.random.default_rng(3), n_ops=6, n_devices=2, constrained=False)


def test_the_bound_is_computed_once_and_kept(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One proof for all runs; a second call reads it from the file."""
    limits: list[float] = []

    def counted(of: Problem, seconds: float) -> object:
        limits.append(seconds)
        return lower_bound(of, seconds)

    monkeypatch.setattr(comparison, "lower_bound", counted)
    path = tmp_path / "c.json"
    for seeds in (2, 3):
        table = comparison.compare(
            problem, ["random", "heft"], seeds, Budget(evaluations=20), results_path=path
        )
        assert table.lower_bound >= lower_bound(problem).value > 0
        assert table.lower_bound <= min(run.value for run in table.runs) * (1 + 1e-9)
        assert all(run.lower_bound <= run.value for run in table.runs)
    assert limits == [math.inf]
    assert json.loads(path.read_text())["computed_bound"][0] == lower_bound(problem).value


def test_the_bound_has_the_seconds_of_one_run(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    found = lower_bound(problem)
    monkeypatch.setattr(
        comparison, "lower_bound", lambda of, seconds: limits.append(seconds) or found
    )
    comparison.compare(problem, ["single"], 1, Budget(seconds=7.0, core_seconds=3.0))
    assert limits == [3.0]


def test_runs_of_another_evaluator_are_not_mixed(problem: Problem, tmp_path: Path) -> None:
    """Files without the evaluator are of simulated values."""
    path, budget = tmp_path / "c.json", Budget(evaluations=5)
    first = comparison.compare(problem, ["random"], 1, budget, results_path=path)
    with pytest.raises(InputError, match="or of another evaluator; give another file"):
        comparison.compare(
            problem, ["random"], 1, budget, measure=lambda placement: 1.0, results_path=path
        )
    document = json.loads(path.read_text())
    del document["evaluator"]
    path.write_text(json.dumps(document))
    again = comparison.compare(problem, ["random"], 1, budget, results_path=path)
    assert again.runs == first.runs


@pytest.mark.parametrize("bound", [None, [1.0], ["x", "y"], 3])
def test_a_damaged_bound_is_refused(problem: Problem, bound: object, tmp_path: Path) -> None:
    path, budget = tmp_path / "c.json", Budget(evaluations=5)
    comparison.compare(problem, ["random"], 1, budget, results_path=path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "computed_bound": bound}))
    with pytest.raises(FileFormatError, match="are damaged"):
        comparison.compare(problem, ["random"], 1, budget, results_path=path)


def test_measured_values_have_no_bound(problem: Problem) -> None:
    """A bound of the execution model says nothing about the hardware."""
    table = comparison.compare(
        problem, ["single"], 1, Budget(evaluations=3), measure=lambda placement: 1e-12
    )
    assert table.lower_bound == 0.0
    assert {run.lower_bound for run in table.runs} == {0.0}


def test_kernels_are_ready_before_the_clock_of_a_timed_run_starts(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def started(*arguments: Any, **named: Any) -> Evaluator:
        told.append("clock")
        return Evaluator(*arguments, **named)

    monkeypatch.setattr(comparison, "make_ready", lambda *_: told.append("kernels"))
    monkeypatch.setattr(comparison, "Evaluator", started)
    comparison._run(problem, "single", 0, Budget(seconds=60.0), None)
    assert told == ["kernels", "clock"]
    comparison._run(problem, "single", 0, Budget(evaluations=9), None)
    assert told == ["kernels", "clock", "clock"]


def test_a_bound_that_a_placer_proves_is_that_of_the_table(problem: Problem) -> None:
    alone = comparison.compare(problem, ["random"], 1, Budget(evaluations=9))
    table = comparison.compare(problem, ["random", "cp-sat"], 1, Budget(evaluations=9))
    proven = next(run for run in table.runs if run.placer == "cp-sat").lower_bound
    assert table.lower_bound == max(alone.lower_bound, proven)


class StoppedHalfway:
    """A placer that Ctrl-C ends after its first evaluation."""

    name, paper, objectives, needs_training = "halfway", "none", ("latency",), False

    def why_not(self, problem: Problem) -> str | None:
        return None

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        evaluator.evaluate(np.zeros(problem.n_units, dtype=np.int64))
        raise KeyboardInterrupt


def test_an_interrupted_run_is_never_a_row(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The placer hands its incumbent over, which looks like the result of a whole run."""
    for module in (comparison, learned, suite_runs):
        monkeypatch.setattr(module, "named_placer", lambda name, settings: StoppedHalfway())
    path = tmp_path / "c.json"
    with pytest.raises(KeyboardInterrupt):
        comparison.compare(problem, ["random"], 1, Budget(evaluations=20), results_path=path)
    assert not path.exists() or json.loads(path.read_text())["runs"] == []
    with pytest.raises(KeyboardInterrupt):
        learned.one_run("p", problem, 20, "random", 0)
    row = suite_runs.SuiteRow(1, "p", "zoo", problem.n_units, 2, "random", 0, 9.0, status="")
    with pytest.raises(KeyboardInterrupt):
        suite_runs.run_one(problem, row)


def test_the_time_left_is_that_of_each_placers_own_pace() -> None:
    """`slow` takes 30 s a run, `fast` 1 s: after one run of each, 62 s are left of two more."""
    now, told = [0.0], list[tuple[float, str]]()
    missing = [(name, seed) for seed in range(3) for name in ("slow", "fast")]
    shown = comparison._ComparisonProgress(
        lambda part, what: told.append((part, what)), missing, Budget(evaluations=9), lambda: now[0]
    )
    for (name, seed), seconds in zip(missing[:3], (30.0, 1.0, 0.0), strict=True):
        shown.begins(name, seed)
        if seconds:
            now[0] += seconds
            shown.ended(Done(Task(len, (), label=f"{name}, seed {seed}"), None, ""), 1)
    assert told == [
        (0.0, "slow, seed 0, time left unknown"),
        (pytest.approx(1 / 6), "fast, seed 0, about 60 s left, without fast"),
        (pytest.approx(2 / 6), "slow, seed 1, about 60 s left"),
    ]


@pytest.mark.parametrize(("expected", "compiles"), [(math.nan, True), (40.0, True), (0.0, False)])
def test_kernels_are_compiled_before_any_run(
    expected: float, compiles: bool, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their minute is in the budget of no run, and in no estimate of the time left."""
    told = list[str]()
    monkeypatch.setattr(comparison, "seconds_to_compile", lambda *_: expected)
    monkeypatch.setattr(comparison, "make_ready", lambda *_: told.append("compiled"))
    report = lambda part, what: told.append(what.partition(",")[0])  # noqa: E731
    comparison.compare(problem, ["single"], 1, Budget(evaluations=3), progress=report)
    before = ["compiling kernels", "compiled"] if compiles else []
    assert told == [*before, "lower bound", "single"]


def test_a_budget_of_seconds_is_the_pace_of_placers_that_have_not_run() -> None:
    told = list[str]()
    shown = comparison._ComparisonProgress(
        lambda part, what: told.append(what), [("a", 0), ("b", 0)], Budget(seconds=10.0), lambda: 0
    )
    shown.begins("a", 0)
    assert told == ["a, seed 0, about 20 s left"]


def test_two_comparisons_into_one_file_lose_no_runs(problem: Problem, tmp_path: Path) -> None:
    """Each wrote the file from its own memory."""
    path, budget = tmp_path / "c.json", Budget(evaluations=5)
    runs = {
        name: comparison.compare(problem, [name], 1, budget).runs[0] for name in ("random", "heft")
    }
    files = [comparison.ComparisonFile(path, problem, budget, EVALUATORS[0]) for _ in runs]
    files[0].bound = (0.5, "a proof")
    for file, run in zip(files, runs.values(), strict=True):
        file.add(run)
    again = comparison.ComparisonFile(path, problem, budget, EVALUATORS[0])
    assert again.runs == {(name, 0): run for name, run in runs.items()}
    assert again.bound == (0.5, "a proof")


def test_a_file_with_a_placer_of_somebody_else_goes_on(problem: Problem, tmp_path: Path) -> None:
    path, budget = tmp_path / "c.json", Budget(evaluations=20)
    comparison.compare(problem, ["random"], 1, budget, results_path=path)
    written = json.loads(path.read_text())
    written["runs"].append(written["runs"][0] | {"placer": "their.package:Placer"})
    written["settings"]["their.package:Placer"] = {"rate": 0.5}
    path.write_text(json.dumps(written))
    comparison.compare(problem, ["heft"], 1, budget, results_path=path)
    again = json.loads(path.read_text())
    assert {run["placer"] for run in again["runs"]} == {"random", "heft", "their.package:Placer"}
    assert again["settings"]["their.package:Placer"] == {"rate": 0.5}
    assert set(again["settings"]) == {"random", "heft", "their.package:Placer"}


def test_another_problem_is_not_overwritten(problem: Problem, tmp_path: Path) -> None:
    """Both comparisons began before there was a file."""
    path, budget = tmp_path / "c.json", Budget(evaluations=5)
    late = comparison.ComparisonFile(path, problem, Budget(evaluations=6), EVALUATORS[0])
    table = comparison.compare(problem, ["random"], 1, budget, results_path=path)
    kept = path.read_text()
    with pytest.raises(InputError, match="another problem or budget"):
        late.add(table.runs[0])
    assert path.read_text() == kept


@pytest.mark.parametrize(
    "change",
    [
        {"runs": [{"evaluations": math.inf}]},
        {"runs": [{"placer": ["x"]}]},
        {"settings": {"heft": 5}},
    ],
)
def test_damaged_rows_are_refused(problem: Problem, change: Any, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    comparison.compare(problem, ["heft"], 1, Budget(evaluations=20), results_path=path)
    document = json.loads(path.read_text())
    if "runs" in change:
        document["runs"][0] |= change["runs"][0]
    else:
        document |= change
    path.write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match="are damaged"):
        comparison.compare(problem, ["heft"], 2, Budget(evaluations=20), results_path=path)


def test_a_budget_without_end_goes_on_in_its_file(problem: Problem, tmp_path: Path) -> None:
    path, budget = tmp_path / "c.json", Budget(seconds=math.inf, evaluations=20)
    for seeds in (1, 2):
        table = comparison.compare(problem, ["heft"], seeds, budget, results_path=path)
    assert len(table.runs) == 2


def test_runs_of_other_settings_are_not_mixed(problem: Problem, tmp_path: Path) -> None:
    """A default has changed since, or a policy was trained again under the same name."""
    path, budget = tmp_path / "c.json", Budget(evaluations=20)
    comparison.compare(problem, ["cooling"], 1, budget, results_path=path)
    written = json.loads(path.read_text())
    written["settings"]["cooling"]["batch"] += 1
    path.write_text(json.dumps(written))
    comparison.compare(problem, ["random"], 1, budget, results_path=path)
    with pytest.raises(InputError, match="runs of 'cooling' with other settings"):
        comparison.compare(problem, ["random", "cooling"], 2, budget, results_path=path)
    (run, *_) = comparison.ComparisonFile(path, problem, budget, EVALUATORS[0]).runs.values()
    policy, name = tmp_path / "p.safetensors", f"zero-shot:policy={tmp_path}/p.safetensors"
    policy.write_bytes(b"one")
    other = tmp_path / "d.json"
    file = comparison.ComparisonFile(other, problem, budget, EVALUATORS[0])
    file.add(replace(run, placer=name))
    comparison.ComparisonFile(other, problem, budget, EVALUATORS[0]).require_settings([name])
    policy.write_bytes(b"two")
    again = comparison.ComparisonFile(other, problem, budget, EVALUATORS[0])
    with pytest.raises(InputError, match="or another policy; give another file"):
        again.require_settings([name])
    with pytest.raises(InputError, match="or another policy; give another file"):
        file.add(replace(run, placer=name, seed=1))
