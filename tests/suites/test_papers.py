"""`bench paper`: published figures agree with one another, runs resume, reports say what ran."""

from __future__ import annotations

import dataclasses
import re
import statistics
from pathlib import Path

import numpy as np
import pytest
from cli.runner import InProcess

from placewright.core.execution_models import Placeto
from placewright.core.problem import Problem
from placewright.errors import FieldError, InputError, UnknownNameError
from placewright.files.results import write_rows
from placewright.profiling.roofline import roofline_problem
from placewright.report.learned_statistics import LearnedRun, controls_of
from placewright.session.comparison import named_placer
from placewright.simulation.evaluator import Evaluator
from placewright.suites.learned import FORMAT, Case, read_runs
from placewright.suites.papers import generalisation
from placewright.suites.papers.generalisation import (
    FAMILIES,
    LABELS,
    TransferRuns,
    family_graph,
    family_problem,
    nmt_sizes,
    run_transfer,
)
from placewright.suites.papers.report import (
    SINGLES,
    cells_of,
    draw_suite,
    draw_transfer,
    headline_rows,
    published_marks,
    suite_report,
    transfer_report,
    unseen_rows,
)
from placewright.suites.papers.suite import (
    BOUND,
    PAPERS,
    Headline,
    PaperSuite,
    Published,
    Stage,
    equal_budgets,
    paper_suite,
    run_suite,
    scaled_cases,
)
from placewright.zoo.convolutional import resnet152


def small_problem() -> Problem:
    return roofline_problem(family_graph("nmt", 5), "2gpu")


def gains(paper: str, method: str, *over: str) -> list[float]:
    """Time saved over the best of other methods in each problem of a paper's table, in per cent."""
    suite = paper_suite(paper)
    seconds: dict[str, dict[str, float]] = {name: {} for name in suite.headline.cases}
    for figure in suite.published:
        seconds[figure.problem][figure.method] = figure.seconds
    rows = [(row[method], [row[name] for name in over if name in row]) for row in seconds.values()]
    return [100.0 * (1.0 - own / min(others)) for own, others in rows if others]


def test_the_tables_of_hsdag_and_placeto_give_the_gains_that_were_read() -> None:
    assert gains("hsdag", "HSDAG", "CPU-only") == pytest.approx([17.9, 52.1, 58.2], abs=0.1)
    found = gains("placeto", "Placeto", "RNN-based")
    assert found == pytest.approx([-0.85, 5.0, 1.3, 16.5, 3.4, 2.6], abs=0.1)


def test_the_tables_of_mirhoseini_give_their_gains() -> None:
    """Of 2017 over the better of expert and one GPU; of 2018 over the expert, within rounding."""
    saved = gains("mirhoseini2017", "RL", "expert", "1 GPU")
    faster = [100.0 * (1.0 / (1.0 - each / 100.0) - 1.0) for each in saved]
    assert faster == pytest.approx([0, 0, 23.5, 20.6, 0, 19.5], abs=0.6)
    later = gains("mirhoseini2018", "HDP", "expert")
    assert later[1:] == pytest.approx([0, 0, 60.6, 53.6, -4.9], abs=0.1)


def test_the_scaled_cpu_is_as_slow_as_in_the_paper() -> None:
    graph = family_graph("nmt", 5)
    problem = roofline_problem(graph, "cpu+gpu")
    (case,) = scaled_cases([Case("nmt", lambda: problem)], [1.75])
    scaled, evaluator = case.build(), {}
    kinds = [device.kind for device in problem.cluster.devices]
    for kind in ("cpu", "gpu"):
        placement = np.full(problem.n_units, kinds.index(kind))
        evaluator[kind] = [Evaluator(it).evaluate(placement) for it in (problem, scaled)]
    assert evaluator["cpu"][1] / evaluator["gpu"][1] == pytest.approx(1.75)
    assert evaluator["gpu"][0] == evaluator["gpu"][1]
    assert case.name == "nmt, CPU scaled"


def test_equal_budgets_have_the_four_controls_of_the_learner() -> None:
    stage = equal_budgets("seq2seq-entropy", {"post": ""}, 100, 3)
    assert set(controls_of("seq2seq-entropy")) | {"seq2seq-entropy", "post", "local-search"} == set(
        stage.placers
    )


def test_resnet_152_has_its_published_parameters() -> None:
    built = resnet152(32).module
    assert sum(weight.numel() for weight in built.parameters()) == 60_192_808  # torchvision's


@pytest.mark.parametrize("name", PAPERS)
def test_every_placer_of_a_suite_can_place_what_the_paper_places(name: str) -> None:
    suite = paper_suite(name)
    small = small_problem()
    objective = "latency" if name == "hsdag" else "training"
    problem = dataclasses.replace(small, objective=objective)
    for stage in suite.stages:
        for placer in stage.placers:
            assert named_placer(placer, {}).why_not(problem) is None
    assert all(suite.cases_of(stage) for stage in suite.stages)
    ran = {(p, stage.evaluations) for stage in suite.stages for p in stage.placers}
    wanted = {*suite.headline.over, *suite.headline.placers}
    assert {(placer, suite.headline.evaluations) for placer in wanted} <= ran
    names = [case.name for case in suite.cases]
    assert set(suite.headline.cases) <= set(names)
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


def test_no_graph_of_a_test_was_trained_on() -> None:
    """Five of the eight graphs of nmt were among the eight that its policy learned on."""
    first, last = nmt_sizes(0), [nmt_sizes(index) for index in range(21)]
    assert last[0] == first
    assert sorted(last) == [(layers, steps) for layers in (2, 3, 4) for steps in range(4, 11)]
    with pytest.raises(ValueError, match="21 graphs of nmt, got number 21"):
        nmt_sizes(21)
    runs = TransferRuns()
    for family in ("cifar10", "ptb"):
        graphs = [family_graph(family, index) for index in range(runs.training + runs.test)]
        different = {(g.op_names, tuple(g.tensor_consumers.indices.tolist())) for g in graphs}
        assert len(different) == len(graphs)


def suite_of(problem: Problem) -> PaperSuite:
    return PaperSuite(
        name="toy",
        title="A paper",
        stand_ins="All of it is ours.",
        rules=("It is small.",),
        cases=(Case("nmt 2gpu", lambda: problem),),
        baseline="one GPU",
        stages=(
            Stage("Baselines", {"single": "one GPU"}, 40, 1),
            Stage("Its method", {"post": "Post", "random": "", "local-search": ""}, 40),
            Stage("Elsewhere", {"heft": ""}, 40, 1, cases=("another",)),
        ),
        published=(
            Published("nmt 2gpu", "one GPU", 2.0, "recalled"),
            Published("nmt 2gpu", "Post", 1.5, "uncertain"),
        ),
        claims=("it is good (abstract)",),
        missing=("The hardware.",),
        headline=Headline(
            figure="time saved over one GPU",
            stated="Up to 25 % (abstract)",
            over={"single": "one GPU"},
            method="Post",
            rules="post",
            mended="random",
            evaluations=40,
            cases=("nmt 2gpu",),
        ),
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
    assert "heft" not in [row.placer for row in rows]  # of another case
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
    assert re.search(r"\| `post` \| `[^|]*kl_target=0\.03[^|]*` \|", text)
    assert text.splitlines()[2] == "All of it is ours."
    found = dict(headline_rows(suite, cells_of(rows)))
    best = statistics.median(row.value for row in rows if row.placer == "local-search")
    assert found["local search, equal budget"] == pytest.approx([100 * (1 - best / bound.single)])
    assert found["published"] == pytest.approx([25.0])
    assert found["one GPU"] == [0.0]
    assert found["bound"] == pytest.approx([100 * (1 - bound.value / bound.single)])
    assert "| HEFT, one evaluation: `heft` | - |" in text  # it did not run
    draw_suite(suite, rows, tmp_path / "toy.svg")
    assert (tmp_path / "toy.svg").read_text().count("<svg") == 1


def test_no_seed_is_refused_before_a_bound_is_computed(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match="must be >= 1, got 0"):
        run_suite(suite_of(small_problem()), tmp_path / "paper.json", seeds=0)
    assert not (tmp_path / "paper.json").exists()


@pytest.mark.parametrize("name", ["mirhoseini2017", "mirhoseini2018", "placeto", "hsdag"])
def test_published_figures_have_crosses_in_the_picture(name: str) -> None:
    suite = paper_suite(name)
    placers = [placer for stage in suite.stages for placer in stage.placers]
    problem = suite.headline.cases[0]
    figures = {f.method: f.seconds for f in suite.published if f.problem == problem}
    marks = published_marks(suite, problem)
    assert len(marks) == len(figures)
    single = min(figures[method] for method in SINGLES if method in figures)
    own = figures[suite.headline.method] / single
    assert (own, placers.index(suite.headline.rules)) in marks


def test_what_never_fits_and_what_was_not_run_is_told_apart() -> None:
    suite = suite_of(small_problem())
    row = LearnedRun("nmt 2gpu", "k", 40, "post", 0, float("nan"), 1.0, 0.1, 9, [], [])
    text = suite_report(suite, [row], "toy.svg")
    assert "| Post: `post` | 1 | 0.1 | - |" in text
    assert "| `random` | 0 |  |  |" in text
    two = dataclasses.replace(suite, cases=(*suite.cases, Case("nmt 4gpu", small_problem)))
    assert "Not run yet: nmt 4gpu." in suite_report(two, [row], "toy.svg")
    assert "Not run yet: nmt" not in text


def test_the_transfer_trains_once_and_tests_on_other_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generalisation, "BUDGET", 40)
    small = {"groups": "4", "rounds": "2"}
    monkeypatch.setattr(generalisation, "SETTINGS", {**generalisation.SETTINGS, **small})
    transfer = TransferRuns(families=("nmt",), training=1, test=2, episodes=2)
    results = tmp_path / "rows.json"
    rows = run_transfer(transfer, results, tmp_path / "policies")
    assert [row.placer for row in rows] == [*LABELS, *LABELS]
    assert {row.problem for row in rows} == {"nmt 1", "nmt 2"}  # number 0 was trained on
    assert all(row.evaluations == 1 for row in rows if row.placer == LABELS[0])
    (tmp_path / "policies" / transfer.file("nmt")).unlink()
    assert run_transfer(transfer, results, tmp_path / "policies") == rows
    assert not list((tmp_path / "policies").iterdir())
    assert f"| {LABELS[-1]} | 1.000 (1.000 to 1.000) |" in transfer_report(rows, "unseen.svg")
    draw_transfer(rows, tmp_path / "unseen.svg")
    assert "nmt" in (tmp_path / "unseen.svg").read_text()
    # Ctrl-C came on the second graph: the report needs all methods, and has the first graph alone.
    assert unseen_rows(rows[:-1]) == rows[: len(LABELS)]
    assert unseen_rows(rows[:1]) == []


def test_a_policy_in_a_folder_with_a_colon_is_refused_before_the_training(tmp_path: Path) -> None:
    """It would end a setting of the placer in the middle of the path."""
    with pytest.raises(InputError, match="has ':' in its path"):
        run_transfer(TransferRuns(), tmp_path / "rows.json", tmp_path / "a:b")


def test_no_policy_is_trained_for_runs_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generalisation, "BUDGET", 5)
    monkeypatch.setattr(generalisation, "SETTINGS", {"groups": "4", "rounds": "1"})
    transfer = TransferRuns(families=("nmt",), training=1, test=1, episodes=1)
    results, policies = tmp_path / "rows.json", tmp_path / "policies"
    rows = run_transfer(transfer, results, policies)
    write_rows(results, FORMAT, rows[:-1])
    (policies / transfer.file("nmt")).unlink()
    assert run_transfer(transfer, results, policies)[-1].placer == LABELS[-1]
    assert not list(policies.iterdir())


def test_a_policy_of_another_version_is_trained_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies in the user's cache; its refusal told the user to name another file."""
    monkeypatch.setattr(generalisation, "BUDGET", 1)
    told: list[str] = []
    for rounds in ("2", "1"):
        monkeypatch.setattr(generalisation, "SETTINGS", {"groups": "4", "rounds": rounds})
        transfer = TransferRuns(families=("nmt",), training=1, test=1, episodes=1)
        results = tmp_path / f"rows-{rounds}.json"
        run_transfer(
            transfer, results, tmp_path / "policies", lambda part, text: told.append(f"{part:.2f}")
        )
        assert len(read_runs(results)) == len(LABELS)
    assert told == ["0.30", "1.00"] * 2


def test_the_command_runs_a_paper_and_the_graphs_that_its_policy_never_saw(
    tmp_path: Path, cli: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = dataclasses.replace(suite_of(small_problem()), name="placeto")
    monkeypatch.setattr("placewright.suites.papers.suite.paper_suite", lambda name: small)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    monkeypatch.setattr(generalisation, "BUDGET", 5)
    monkeypatch.setattr(generalisation, "SETTINGS", {"groups": "4", "rounds": "1"})
    transfer = TransferRuns(families=("nmt",), training=1, test=1, episodes=1)
    monkeypatch.setattr(generalisation, "TransferRuns", lambda: transfer)
    done = cli("bench", "paper", "placeto", "--seeds", 1, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "## Graphs that the policy never saw" in done.stdout
    assert "<svg" in (tmp_path / "paper-placeto-unseen.svg").read_text()
    rows = read_runs(tmp_path / "paper.json")
    assert [row.placer for row in rows][-len(LABELS) :] == list(LABELS)
    again = cli("bench", "paper", "placeto", "--seeds", 1, cwd=tmp_path)
    assert again.stdout == done.stdout
    assert read_runs(tmp_path / "paper.json") == rows
    write_rows(tmp_path / "paper.json", FORMAT, rows[:-1])  # as Ctrl-C leaves it
    part = cli("bench", "paper", "placeto", "--no-run", cwd=tmp_path)
    assert part.returncode == 0, part.stderr
    assert "never saw" not in part.stdout
