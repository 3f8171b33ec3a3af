"""What bounds a whole call: `--total` and `--quick`, and what is said of it."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from cli.runner import InProcess, the_line

from placewright.core.solution import Budget
from placewright.profiling.hardware import Deadline, Stopwatch
from placewright.session import devices
from placewright.session.search import _within

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
PAIR = ("--devices", "cpu:0,cpu:1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import onnx
    from support.branching_model import branching_model

    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    return tmp_path


def plan_of(cli: InProcess, folder: Path, *words: object) -> dict[str, Any]:
    done = cli("place", "m.onnx", *PAIR, *words, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    written = json.loads((folder / "plan.json").read_text())
    assert written["left_out"] == printed["left_out"]
    return printed


def test_quick_says_what_it_left_out_and_a_full_call_leaves_out_nothing(
    folder: Path, cli: InProcess
) -> None:
    missing = ["rounds", "calibration", "check on the hardware"]
    text = cli("place", "m.onnx", *PAIR, "--quick", "--evaluations", 20, cwd=folder)
    assert text.returncode == 0, text.stderr
    lines = [line for line in text.stdout.splitlines() if line.startswith("left out: ")]
    assert [line.split(": ")[1] for line in lines] == missing
    quick = json.loads((folder / "plan.json").read_text())
    assert [text.split(":")[0] for text in quick["left_out"]] == missing
    assert quick["measured"] is None
    for device in quick["cluster"]["devices"]:
        costs = (device["dispatch"], device["cut"], device["cut_per_byte"])
        assert max(costs) > 0.0, "a segment or a cut costs something"
    assert quick["cluster"]["prediction_error"] > 0
    full = plan_of(cli, folder, "--evaluations", 20)
    assert full["left_out"] == []
    assert full["measured"] is not None
    after = plan_of(cli, folder, "--quick", "--evaluations", 20)
    assert [text.split(":")[0] for text in after["left_out"]] == ["check on the hardware"]
    assert after["cluster"]["contention"] == full["cluster"]["contention"], "stored ones are used"


def test_a_machine_that_has_drifted_is_calibrated_again(
    folder: Path, cli: InProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Probes see the machine before, then as it was, then with cores that hold each other up."""

    def profile_is_calibrated() -> bool:
        caplog.clear()
        done = cli("profile", "m.onnx", *PAIR, "-o", "p.json", cwd=folder)
        assert done.returncode == 0, done.stderr
        return "calibration" in caplog.text

    caplog.set_level(logging.INFO, logger="placewright")
    monkeypatch.setattr(devices, "probe", lambda _: (1.0, 1.2, 1e-5))
    assert profile_is_calibrated()
    monkeypatch.setattr(devices, "probe", lambda _: (1.1, 1.2, 1e-5))
    assert not profile_is_calibrated()
    monkeypatch.setattr(devices, "probe", lambda _: (1.8, 1.2, 1e-5))
    assert profile_is_calibrated()


def test_what_is_ahead_is_said_on_standard_error(folder: Path, cli: InProcess) -> None:
    done = cli("place", "m.onnx", *PAIR, "--budget", "1s", cwd=folder)
    assert done.returncode == 0, done.stderr
    ahead = next(line for line in done.stderr.splitlines() if " in all (" in line)
    assert "units, measured on cpu:0" in ahead
    assert "search up to 1 s" in ahead
    assert "in all (" in ahead
    assert " in all (" not in done.stdout
    silent = cli("place", "m.onnx", *PAIR, "--quick", "--budget", "1s", "--quiet", cwd=folder)
    assert " in all (" not in silent.stderr


def test_a_total_that_ends_before_a_device_has_run_is_one_line(
    folder: Path, cli: InProcess
) -> None:
    line = the_line(cli("place", "m.onnx", *PAIR, "--total", "1us", "--quiet", cwd=folder), 1)
    assert line.startswith("placewright: the total ended before ")
    assert not (folder / "plan.json").exists()
    wrong = the_line(cli("place", "m.onnx", *PAIR, "--total", "0s", cwd=folder), 2)
    assert "--total" in wrong


def test_a_total_cuts_the_search_and_says_so(folder: Path, cli: InProcess) -> None:
    words = ("--quick", "--total", "6s", "--budget", "10min", "--placer", "random")
    plan = plan_of(cli, folder, *words)
    assert any(text.startswith("search: ") for text in plan["left_out"]), plan["left_out"]
    assert plan["placer"]["seconds"] < 6.0


def test_the_check_keeps_its_seconds_of_a_total() -> None:
    """100 s are left and 40 are for the check: the search and its last bound get 60, 50 + 10."""
    deadline = Deadline(100.0, clock=Stopwatch(lambda: 0.0))
    assert _within(Budget(seconds=1e9), deadline, 40.0) == Budget(seconds=50.0)
    assert _within(Budget(seconds=8.0), deadline, 40.0) == Budget(seconds=8.0)
    assert _within(Budget(evaluations=5), deadline, 40.0) == Budget(seconds=50.0, evaluations=5)
    assert _within(Budget(seconds=1e9), deadline, 99.0).seconds == pytest.approx(25.0)
