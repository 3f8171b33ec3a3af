"""A command that searches again and again ends with the first signal, and keeps no cut-off run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.warm import run_warm

# The signal comes within the second search of the process; `searches` has one letter for each.
WITHIN_A_SEARCH = """
import os, signal
from placewright.cli import main
from placewright.placers.bases import anytime
from placewright.placers.portfolio.auto import Auto
from placewright.placers.search.local_search import LocalSearch

def signalled(place):
    def search(self, problem, evaluator, rng):
        with open("searches", "a") as file:
            file.write("x")
        if os.path.getsize("searches") == 2:
            os.kill(os.getpid(), signal.{signal})
            while True:
                pass
        return place(self, problem, evaluator, rng)
    return anytime(search)

for placer in (Auto, LocalSearch):
    placer.place = signalled(placer.place)
main()
"""
LEARNED = (
    "bench", "learned", "--models", "zoo:moe/tiny", "--clusters", "2gpu", "--objectives", "latency",
    "--placers", "local-search", "--no-controls", "--evaluations", "20", "--seeds", "4",
    "--results", "rows.json", "--quiet",
)  # fmt: skip
COMMANDS = {
    "bench learned": LEARNED,
    "compare": (
        "compare", "branching.onnx", "--placers", "local-search,auto,heft", "--evaluations", "20",
        "--quiet",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "name"),
    [("bench learned", "SIGTERM"), ("compare", "SIGINT"), ("compare", "SIGTERM")],
)
def test_the_first_signal_ends_them_all(command: str, name: str, tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parents[1] / "data" / "plans" / "branching.onnx", tmp_path)
    program = WITHIN_A_SEARCH.format(signal=name)
    result = run_warm(program, list(COMMANDS[command]), cwd=tmp_path)
    code, word = (130, "interrupted") if name == "SIGINT" else (143, "terminated")
    assert result.returncode == code, result.stderr
    assert result.stderr.endswith(f"placewright: {word}\n")
    assert (tmp_path / "searches").read_text() == "xx"
    if (tmp_path / "rows.json").exists():
        assert len(json.loads((tmp_path / "rows.json").read_text())["rows"]) <= 1
