"""What `run` measures a plan against."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import onnx
import pytest
from cli.runner import InProcess
from frameworks.common.test_runtime_contract import branching_model

from placewright.profiling.hardware import measure_interleaved
from placewright.session import contenders, running


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_best_single_device_keeps_pins(tmp_path: Path, cli: InProcess) -> None:
    """Of the devices that the problem allows alone; where it allows none, that is said."""
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    cores = ("--devices", "cpu:0,cpu:1", "--evaluations", 20, "--no-check")
    first, last = "a", "gate"

    def run(*pins: str) -> dict[str, Any]:
        words = [word for pin in pins for word in ("--pin", pin)]
        placed = cli("place", "m.onnx", *cores, *words, cwd=tmp_path)
        assert placed.returncode == 0, placed.stderr
        done = cli("run", "plan.json", "--runs", 1, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    bound = run(f"{first}=cpu:1")
    assert bound["best_single_device"] == "cpu:1"
    assert bound["best_single_device_is_legal"] is True
    assert bound["best_single_device_predicted"] > 0
    unbound = run(f"{first}=cpu:1", f"{last}=cpu:0")
    assert unbound["best_single_device_is_legal"] is False
    assert unbound["best_single_device_predicted"] is None
    text = cli("run", "plan.json", "--runs", 1, cwd=tmp_path).stdout
    assert "(breaks a limit or a pin)" in text


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_machine_that_has_changed_its_speed_is_told(
    tmp_path: Path, cli: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every round takes a hundred times what it takes: far beyond what a busy machine makes."""
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))

    def slow(*runners: Any, **options: Any) -> dict[str, list[float]]:
        rounds = measure_interleaved(*runners, **options)
        return {name: [100 * seconds for seconds in found] for name, found in rounds.items()}

    monkeypatch.setattr(contenders, "measure_interleaved", slow)
    monkeypatch.setattr(running, "measure_interleaved", slow)
    placed = cli("place", "m.onnx", "--devices", "cpu:0,cpu:1", "--evaluations", 20, cwd=tmp_path)
    assert placed.returncode == 0, placed.stderr
    done = cli("run", "plan.json", cwd=tmp_path)
    for text in (placed.stdout, done.stdout):
        assert " times as long as when " in text
        assert "now slower or faster: 'cpu:" in text
        assert "of what a perfect split could gain" not in text
