"""Standard output holds one JSON document, whatever native libraries print."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli.runner import placewright, the_line
from support.warm import run_warm

from placewright.files.problem_file import write_problem
from placewright.testing.problems import random_problem

PARTITIONERS = ("metis", "scotch", "mincut", "mt-kahypar", "accelerate")
# As a library does that prints with C's own buffer, which is written when the process ends.
NOISY = """
import ctypes
from placewright.placers.list_scheduling.heft import Heft
from placewright.cli import main
place = Heft.place
def noisy(*arguments):
    ctypes.CDLL(None).printf(b"native noise\\n")
    return place(*arguments)
Heft.place = noisy
main()
"""


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    """A problem of twenty ops with module paths and three devices."""
    path = tmp_path / "twenty.json"
    rng = np.random.default_rng(4)
    write_problem(path, random_problem(rng, n_ops=20, n_devices=3, constrained=False))
    return path


def test_partitioners_print_nothing_beside_the_document(problem: Path) -> None:
    """All in one run, so that what each library prints at the end of the process counts, too."""
    result = placewright(
        "compare", problem, "--placers", ",".join(PARTITIONERS), "--evaluations", 6, "--json",
        cwd=problem.parent,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert sorted(row["placer"] for row in found["rows"]) == sorted(PARTITIONERS)
    assert all(row["median"] > 0 for row in found["rows"])


def test_what_native_code_prints_goes_to_standard_error(problem: Path) -> None:
    words = ["place", str(problem), "--placer", "heft", "--json"]
    result = run_warm(NOISY, words, cwd=problem.parent)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["placer"]["name"] == "heft"
    assert "native noise" in result.stderr


def test_a_closed_standard_output_is_no_traceback(problem: Path) -> None:
    """Results that nobody takes: the search has run, and one line says why that was in vain."""
    command = f"{sys.executable} -c 'from placewright.cli import main; main()'"
    result = subprocess.run(
        ["bash", "-c", f"{command} place {problem} --placer heft --json >&-"],
        capture_output=True,
        text=True,
        cwd=problem.parent,
        check=False,
    )
    assert "Traceback" not in result.stderr


def test_errors_stay_one_line(problem: Path) -> None:
    result = placewright("place", problem, "--placer", "hefft", cwd=problem.parent)
    assert "hefft" in the_line(result, 2)
