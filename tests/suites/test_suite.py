"""The suite's problems, its rows, its profiles, and the figures that `bench auto` prints."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.files.problem_file import content_sha256
from placewright.files.results import ResultsFile, read_rows
from placewright.suites.learned import workload_cases
from placewright.suites.suite.pictures import (
    comparisons,
    draw_over_time,
    draw_profiles,
    figures,
    profiles,
)
from placewright.suites.suite.runs import (
    FORMAT,
    OF_AUTO,
    SUITE_VERSION,
    SuiteProblem,
    SuiteRow,
    chosen_problems,
    random_series_parallel_problem,
    run_suite,
    suite_problems,
)
from placewright.testing.problems import random_problem


def row(problem: str, placer: str, value: float, **more: object) -> SuiteRow:
    fields = {"kind": "zoo", "units": 5, "devices": 2, "seed": 0, "budget": 20.0}
    fields |= {"status": "left out" if math.isnan(value) else "feasible", **more}
    return SuiteRow(1, problem, placer=placer, value=value, **fields)  # type: ignore[arg-type]


def test_the_suite_has_its_problems_once_each() -> None:
    names = [one.name for one in suite_problems()]
    assert len(names) == len(set(names)) >= 60
    assert len(OF_AUTO) == 24
    assert [one.name for one in chosen_problems(suite_problems(), OF_AUTO)] == [
        name for name in names if name in OF_AUTO
    ]
    with pytest.raises(InputError, match="unknown problem 'gmnt'"):
        chosen_problems(suite_problems(), ["gmnt"])


def test_workloads_are_added(tmp_path: Path) -> None:
    file = tmp_path / "throughput" / "LayerGraphs" / "one.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    added = suite_problems(tmp_path)[len(suite_problems()) :]
    assert [one.name for one in added] == ["tarnawski throughput/LayerGraphs/one"]


def test_workloads_of_learners_are_chosen_by_parts_of_names(tmp_path: Path) -> None:
    for name in ("latency/LayerGraphs/a", "latency/OperatorGraphs/a", "throughput/LayerGraphs/a"):
        file = tmp_path / f"{name}.json"
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    every = ["latency/LayerGraphs/a", "latency/OperatorGraphs/a"]
    assert [case.name for case in workload_cases(tmp_path)] == every
    assert [case.name for case in workload_cases(tmp_path, ["LayerGraphs/a"])] == every[:1]
    with pytest.raises(InputError, match="no workloads named like latency/LayerGraphs/b"):
        workload_cases(tmp_path, ["LayerGraphs/b"])


@pytest.mark.parametrize("n_ops", [1, 2, 3, 4, 5, 17, 80])
def test_series_parallel_graphs_reduce_to_one_edge(n_ops: int) -> None:
    """An independent recognition: drop parallel edges and ops of one edge in and out, to the end.

    Valdes et al.: only a series-parallel graph with one source and one sink ends as one edge.
    """
    problem = random_series_parallel_problem(np.random.default_rng(n_ops), n_ops, 2)
    successors = problem.unit_graph.successors
    assert problem.n_units == n_ops
    edges = set(zip(successors.row_of_each().tolist(), successors.indices.tolist(), strict=True))
    while True:
        inner = [
            unit
            for unit in range(n_ops)
            if sum(b == unit for _, b in edges) == 1 == sum(a == unit for a, _ in edges)
        ]
        if not inner:
            break
        unit = inner[0]
        before = next(a for a, b in edges if b == unit)
        after = next(b for a, b in edges if a == unit)
        edges = {edge for edge in edges if unit not in edge} | {(before, after)}
    assert len(edges) == min(1, n_ops - 1)


def test_a_random_problem_of_the_suite_is_the_same_every_time() -> None:
    by_name = {one.name: one for one in suite_problems()}
    for name in ("layered 1000 x 4", "series-parallel 1000 x 4"):
        assert content_sha256(by_name[name].build()) == content_sha256(by_name[name].build())


def test_profiles_by_hand() -> None:
    """Problem p: a 10, b 11; problem q: a 6, b 3; r: only b, which found 5.

    a: ratios 1, 2, inf; b: 1.1, 1, 1.
    """
    rows = [row("p", "a", 10.0), row("p", "b", 11.0), row("q", "a", 6.0), row("q", "b", 3.0)]
    rows += [row("r", "a", math.nan), row("r", "b", 5.0)]
    a, b = profiles(rows)
    assert (a.placer, a.ratios) == ("a", (1.0, 2.0, math.inf))
    assert b.ratios == (1.0, 1.0, pytest.approx(1.1))
    assert [a.share_within(t) for t in (1.0, 1.99, 2.0)] == [1 / 3, 1 / 3, 2 / 3]
    assert [b.share_within(t) for t in (1.0, 1.2)] == [2 / 3, 1.0]


def test_figures_of_auto_by_hand() -> None:
    """Twelve problems, of which one may be above 1.01 x; 1.04 x is no breach, 1.06 x is."""
    rows = [row(f"p{at}", "auto", 1.0) for at in range(11)] + [row("p11", "auto", 1.04)]
    assert figures(comparisons(rows), 12)[0].is_met is None  # no rival ran
    rows += [row(f"p{at}", "heft", 1.0) for at in range(12)]
    rows += [row(f"p{at}", "cem", 2.0) for at in range(12)]
    found = comparisons(rows)
    assert found[-1].rival == "heft"
    assert found[-1].ratio == pytest.approx(1.04)
    assert [one.is_met for one in figures(found, 12)] == [True, True, None]
    worse = [row("p0", "post", 0.94), *rows]
    assert [one.is_met for one in figures(comparisons(worse), 12)] == [False, False, None]
    assert figures(comparisons(worse)[:5], 12)[0].is_met is None  # not all are done
    slow = [row("gnmt training 8gpu", "auto", 0.0379), row("gnmt training 8gpu", "post", 0.05)]
    assert figures(comparisons(slow), 1)[-1].is_met is False


def test_runs_are_kept_and_not_repeated(tmp_path: Path) -> None:
    """A second call runs only what is missing; what a placer does not take has a row, too."""
    builds: list[int] = []

    def build() -> object:
        builds.append(1)
        return random_problem(np.random.default_rng(1), n_ops=6, n_devices=2)

    problems = [SuiteProblem("small", "test", build)]  # type: ignore[arg-type]
    results = tmp_path / "suite.json"
    first = run_suite(problems, ["single", "ideal-dp"], 5.0, results)
    assert first[0].status in ("feasible", "optimal")
    assert first[0].history
    assert first[0].peak_bytes > 0
    assert (first[1].status, first[1].message != "") == ("left out", True)
    new: list[SuiteRow] = []
    again = run_suite(problems, ["single", "heft"], 5.0, results, on_row=new.append)
    assert again[0] == first[0]
    assert [one.placer for one in new] == ["heft"]
    assert len(read_rows(results, FORMAT, SuiteRow)) == 3
    run_suite(problems, ["single", "heft"], 5.0, results)
    assert len(builds) == 2


def test_a_run_whose_process_dies_is_a_row(tmp_path: Path) -> None:
    """The others go on."""
    problems = [
        SuiteProblem("small", "test", lambda: random_problem(np.random.default_rng(1), n_ops=5))
    ]
    killed = "support.dying_placer:Dying"
    rows = run_suite(problems, [killed, "single"], 5.0, tmp_path / "suite.json")
    assert rows[0].status == "error"
    assert "ended with -9" in rows[0].message
    assert rows[1].status in ("feasible", "optimal")


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    history = [[0.01, 3.0, 0.5], [2.0, 1.0, 0.8]]
    rows = [row("p", "a", 1.0, history=history), row("p", "b", 2.0), row("q", "a", math.nan)]
    draw_profiles(rows, tmp_path / "profiles.svg")
    draw_over_time(rows, tmp_path / "time.svg")
    text = (tmp_path / "profiles.svg").read_text()
    assert ">a</text>" in text
    assert ">b</text>" in text
    assert ">p</text>" in (tmp_path / "time.svg").read_text()


def test_a_run_that_lacked_a_package_is_done_when_it_is_there(tmp_path: Path) -> None:
    lacking = row("small", "heft", math.nan, message="needs 'x'; pip install 'placewright[x]'")
    other = row("small", "random", math.nan, message="takes no such problem")
    rows = [replace(one, version=SUITE_VERSION, budget=5.0) for one in (lacking, other)]
    file = ResultsFile(tmp_path / "s.json", FORMAT, SuiteRow, lambda one: one.identity)
    file.add(rows)
    small = SuiteProblem("small", "random", lambda: random_problem(np.random.default_rng(0)))
    found = run_suite([small], ["heft", "random", "heft"], 5.0, tmp_path / "s.json")
    assert [(one.placer, one.status) for one in found] == [
        ("heft", "feasible"), ("random", "left out")
    ]  # fmt: skip
