"""The rule of dispatch on the command line, and in problem files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli.runner import InProcess, the_line

import placewright as pw
from placewright.core.execution_models import Event
from placewright.files.problem_file import problem_text, read_problem, write_problem
from placewright.testing.problems import random_problem

TINY = ("zoo:moe/tiny", "--devices", "catalogue:2gpu", "--placer", "round-robin")


def test_a_problem_keeps_its_rule(tmp_path: Path) -> None:
    """The usual rule is not written, so that earlier files keep their content."""
    problem = random_problem(np.random.default_rng(0))
    assert "execution_parameters" not in json.loads(problem_text(problem))
    served = replace(problem, execution_model=Event(dispatch="fifo"))
    write_problem(tmp_path / "fifo.json", served)
    assert read_problem(tmp_path / "fifo.json").execution_model == Event(dispatch="fifo")


def test_an_unknown_rule_of_a_file_is_refused(tmp_path: Path) -> None:
    document = json.loads(problem_text(random_problem(np.random.default_rng(0))))
    document["execution_parameters"] = {"dispatch": "lifo"}
    (tmp_path / "problem.json").write_text(json.dumps(document))
    with pytest.raises(pw.PlacewrightError, match="is rank or fifo, got 'lifo'"):
        read_problem(tmp_path / "problem.json")


def test_place_and_simulate_follow_the_rule(tmp_path: Path, cli: InProcess) -> None:
    told = cli("place", *TINY, "--execution-model", "event", "--dispatch", "fifo", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "under execution model 'event' (dispatch fifo)" in told.stdout
    plan = pw.read_plan(tmp_path / "plan.json")
    assert plan.problem.execution_model == Event(dispatch="fifo")
    assert pw.Simulator(plan.problem).value(plan.placement) == plan.value


def test_a_stored_problem_takes_another_rule(tmp_path: Path, cli: InProcess) -> None:
    write_problem(
        tmp_path / "stored.json",
        random_problem(np.random.default_rng(3), n_ops=6, constrained=False),
    )
    for rule in ("fifo", "rank"):
        words = ("place", "stored.json", "--placer", "single", "--dispatch", rule)
        told = cli(*words, "-o", f"{rule}.json", cwd=tmp_path)
        assert told.returncode == 0, told.stderr
        problem = pw.read_plan(tmp_path / f"{rule}.json").problem
        assert problem.execution_model == Event(dispatch=rule)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--dispatch", "lifo"),
            "unknown dispatch 'lifo'; did you mean fifo? available: rank, fifo",
        ),
        (
            ("--objective", "throughput", "--dispatch", "fifo"),
            "--dispatch fifo: execution model 'max-load' dispatches no ops",
        ),
    ],
)
def test_what_cannot_be_is_one_line(
    words: tuple[str, ...], said: str, tmp_path: Path, cli: InProcess
) -> None:
    told = cli("place", *TINY, *words, cwd=tmp_path)
    assert said in the_line(told, 2)
