"""Ctrl-C: outside of a search one line and exit code 130, in a search the incumbent is the plan."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
from cli.runner import the_line
from support.warm import run_warm

from placewright.files.problem_file import write_problem
from placewright.testing.problems import random_problem

# Ctrl-C arrives when the named function is called, after what `before` does.
INTERRUPTED = """
import importlib
from placewright.cli import main
module = importlib.import_module("{module}")
held = {holder}.{function}
def interrupted(*arguments, **named):
    {before}
    raise KeyboardInterrupt
{holder}.{function} = interrupted
main()
"""


def run(folder: Path, output: str = "plan.json", **names: str) -> subprocess.CompletedProcess[str]:
    rng = np.random.default_rng(4)
    problem = random_problem(rng, n_ops=8, n_devices=2, constrained=False)
    write_problem(folder / "p.json", problem)
    words = ["place", "p.json", "--placer", "random", "-o", output]
    return run_warm(INTERRUPTED.format(**names), words, cwd=folder)


def test_before_the_search_one_line_says_so(tmp_path: Path) -> None:
    result = run(
        tmp_path, module="placewright.session.session", holder="module",
        function="build", before="pass",
    )  # fmt: skip
    assert the_line(result, 130) == "placewright: interrupted\n"
    assert not (tmp_path / "plan.json").exists()


def test_in_the_search_the_incumbent_is_written(tmp_path: Path) -> None:
    result = run(
        tmp_path, module="placewright.simulation.evaluator", holder="module.Evaluator",
        function="evaluate_many", before="held(*arguments, **named)",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "plan.json").exists()


def test_a_plan_of_the_incumbent_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    """The signal has its answer; a full disk is another matter."""
    result = run(
        tmp_path, output="/dev/full",
        module="placewright.simulation.evaluator", holder="module.Evaluator",
        function="evaluate_many",
        before="held(*arguments, **named); import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    )  # fmt: skip
    line = the_line(result, 2)
    assert "No space left on device" in line
    assert "interrupted" not in line
