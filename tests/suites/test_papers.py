"""`bench paper`: published figures agree with one another, runs resume, reports say what ran."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from placewright.core.execution_models import Placeto
from placewright.core.problem import Problem
from placewright.errors import UnknownNameError
from placewright.placers.registry import reason_against
from placewright.profiling.roofline import roofline_problem
from placewright.report.learned_statistics import LearnedRun
from placewright.session.comparison import named_placer
from placewright.suites.learned import Case, read_runs
from placewright.suites.papers import generalisation, hsdag, placeto
from placewright.suites.papers.catalogue import PAPERS, paper_suite
from placewright.suites.papers.generalisation import (
    FAMILIES,
    LABELS,
    TransferRuns,
    family_graph,
    family_problem,
    run_transfer,
)
from placewright.suites.papers.report import (
    draw_suite,
    draw_transfer,
    suite_report,
    transfer_report,
)
from placewright.suites.papers.suite import BOUND, PaperSuite, Published, Stage, run_suite


def small_problem() -> Problem:
    return roofline_problem(family_graph("nmt", 5), "2gpu")


def test_the_table_of_hsdag_gives_the_gains_that_were_read() -> None:
    cpu, ours = hsdag.TABLE["CPU-only"], hsdag.TABLE["HSDAG"]
    gains = [100.0 * (1.0 - b / a) for a, b in zip(cpu, ours, strict=True) if a and b]
    assert gains == pytest.approx([17.9, 52.1, 58.2], abs=0.1)


def test_the_table_of_placeto_gives_its_gains_over_the_recurrent_policy() -> None:
    gains = [100.0 * (1.0 - row[4] / row[5]) for row in placeto.TABLE.values() if row[4] and row[5]]
    assert gains == pytest.approx([-0.85, 5.0, 1.3, 16.5, 3.4, 2.6], abs=0.1)


@pytest.mark.parametrize("name", PAPERS)
def test_every_placer_of_a_suite_can_place_what_the_paper_places(name: str) -> None:
    suite = paper_suite(name)
    small = small_problem()
    objective = "latency" if name == "hsdag" else "training"
    problem = dataclasses.replace(small, objective=objective)
    for stage in suite.stages:
        for placer in stage.placers:
            assert reason_against(named_placer(placer, {}), problem) is None
    names = [case.name for case in suite.cases]
    assert {figure.problem for figure in suite.published} <= set(names)
    assert len(set(names)) == len(names)


def test_an_unknown_paper_is_named() -> None:
    with pytest.raises(UnknownNameError, match="paper 'mars'"):
        paper_suite("mars")


@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_of_a_family_are_alike_and_not_the_same(family: str) -> None:
    first, again, other = (family_graph(family, index) for index in (3, 3, 4))
    assert first.op_names == again.op_names
    assert first.op_flops.tolist() == again.op_flops.tolist()
    assert first.tensor_consumers.indices.tolist() == again.tensor_consumers.indices.tolist()
    assert first.tensor_consumers.indices.tolist() != other.tensor_consumers.indices.tolist()
    assert 50 < first.n_ops < 400
    assert set(first.op_kinds) & set(other.op_kinds) >= {"MatMul"}
    assert family_problem(family, 3).execution_model == Placeto()


def suite_of(problem: Problem) -> PaperSuite:
    return PaperSuite(
        name="toy",
        title="A paper",
        rules=("It is small.",),
        cases=(Case("nmt 2gpu", lambda: problem),),
        baseline="one GPU",
        stages=(
            Stage("Baselines", {"single": "one GPU"}, 40, 1),
            Stage("Its method", {"post": "Post", "random": ""}, 40),
        ),
        published=(
            Published("nmt 2gpu", "one GPU", 2.0, "recalled"),
            Published("nmt 2gpu", "Post", 1.5, "uncertain"),
        ),
        claims=("it is good (abstract)",),
        missing=("The hardware.",),
    )


def test_a_suite_resumes_and_its_report_says_what_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, results = small_problem(), tmp_path / "paper.json"
    suite = suite_of(problem)
    run_suite(suite, results, seeds=2)
    rows = read_runs(results)
    assert [row.placer for row in rows].count("post") == 2
    assert [row.placer for row in rows].count("single") == 1
    (bound,) = [row for row in rows if row.placer == BOUND]
    assert 0.0 < bound.value <= min(row.value for row in rows)

    def refuse(*_: object) -> LearnedRun:
        raise AssertionError("a run was made again")

    monkeypatch.setattr("placewright.suites.learned.one_run", refuse)
    assert len(run_suite(suite, results, seeds=2)) == len(rows)

    text = suite_report(suite, rows, "toy.svg")
    assert "| one GPU | 2 (1.000, recalled) |" in text
    assert "| Post | 1.5 (0.750, uncertain) |" in text
    above = 100.0 * (bound.single / bound.value - 1.0)
    assert re.search(rf"\| one GPU: `single` \| 1 \| [^|]+ \| 1\.000 \({above:.0f}\) \|", text)
    assert "- The hardware." in text
    draw_suite(suite, rows, tmp_path / "toy.svg")
    assert (tmp_path / "toy.svg").read_text().count("<svg") == 1


def test_what_never_fits_and_what_was_not_run_is_told_apart() -> None:
    suite = suite_of(small_problem())
    row = LearnedRun("nmt 2gpu", "k", 40, "post", 0, float("nan"), 1.0, 0.1, 9, [], [])
    text = suite_report(suite, [row], "toy.svg")
    assert "| Post: `post` | 1 | 0.1 | - |" in text
    assert "| `random` | 0 |  |  |" in text


def test_the_transfer_trains_once_and_tests_on_other_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generalisation, "BUDGET", 40)
    monkeypatch.setattr(generalisation, "SETTINGS", {"groups": "4", "rounds": "2"})
    transfer = TransferRuns(families=("nmt",), training=1, test=2, episodes=2)
    results = tmp_path / "rows.json"
    rows = run_transfer(transfer, results, tmp_path / "policies")
    assert [row.placer for row in rows] == [*LABELS, *LABELS]
    assert {row.problem for row in rows} == {"nmt 1", "nmt 2"}  # number 0 was trained on
    assert all(row.evaluations == 1 for row in rows if row.placer == LABELS[0])
    (tmp_path / "policies" / "placeto-nmt-2.safetensors").unlink()
    assert run_transfer(transfer, results, tmp_path / "policies") == rows
    assert not list((tmp_path / "policies").iterdir())
    assert f"| {LABELS[-1]} | 1.000 (1.000 to 1.000) |" in transfer_report(rows, "unseen.svg")
    draw_transfer(rows, tmp_path / "unseen.svg")
    assert "nmt" in (tmp_path / "unseen.svg").read_text()
