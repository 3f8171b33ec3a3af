"""Scripts run as they are documented."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "measure_cuda.py"


@pytest.mark.slow
def test_measuring_on_two_cores(tmp_path: Path) -> None:
    """One tiny model: its costs, the record with machine and versions, the table; then resumed."""
    command = [
        sys.executable, str(SCRIPT), "--devices", "cpu:0,cpu:1", "--models", "rnnlm/tiny",
        "--accuracy-models", "rnnlm/tiny", "--placements", "3", "--budget", "2s",
        "-o", str(tmp_path / "record"),
    ]  # fmt: skip
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    assert Path(first.stdout.strip()) == tmp_path / "record" / "table.md"
    record = json.loads((tmp_path / "record" / "record.json").read_text())
    text = json.dumps(record)
    assert "torch" in text
    assert "rnnlm/tiny" in text
    entry = record["models"]["rnnlm/tiny"]
    assert entry["equality"]["equal"] == 3
    assert entry["failures"] == {}
    assert [row["name"] for row in entry["limited"]["rows"]][-1] == "chosen"
    assert record["machine"]["versions"]["python"]
    table = (tmp_path / "record" / "table.md").read_text()
    assert "rnnlm/tiny" in table
    assert "| rnnlm/tiny | 3/3 |" in table
    assert "within 10 % of measured ones on" in table
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert json.loads((tmp_path / "record" / "record.json").read_text()) == record


def _record(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, str(SCRIPT), "--devices", "cpu:0,cpu:1", "--placements", "3", "--budget",
        "1s", "--accuracy-models", "", "-o", str(folder), *options,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_what_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    """A model that is not there does not end the next one; a step that is missing is done alone; a
    record of another machine is refused."""
    done = _record(tmp_path, "--models", "nothing,rnnlm/tiny")
    assert done.returncode == 1, done.stderr
    path = tmp_path / "record.json"
    first = json.loads(path.read_text())
    assert "nothing" in first["models"]["nothing"]["failures"]["size"]["error"]
    assert "table" in first["models"]["rnnlm/tiny"]
    assert "## What failed" in (tmp_path / "table.md").read_text()
    del first["models"]["rnnlm/tiny"]["limited"]
    path.write_text(json.dumps(first))
    again = _record(tmp_path, "--models", "rnnlm/tiny")
    assert "contenders under a memory limit" in again.stderr
    assert "rnnlm/tiny: contenders\n" not in again.stderr
    second = json.loads(path.read_text())["models"]["rnnlm/tiny"]
    assert second["table"] == first["models"]["rnnlm/tiny"]["table"]
    problem = tmp_path / "rnnlm-tiny-problem.json"
    problem.write_text(problem.read_text().replace("threads", "tasks"))
    del second["limited"]
    path.write_text(json.dumps(first))
    other = _record(tmp_path, "--models", "rnnlm/tiny")
    assert other.returncode == 2
    assert "was recorded on another machine" in other.stderr


@pytest.mark.slow
def test_fuzzing_workloads(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    options = ["--count", "60", "--formats", "workload", "--results", results]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.fuzz", *map(str, options),
         "--kept", str(tmp_path / "kept")],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(results.read_text())["workload"]
    assert counts.pop("seeds") == [0]
    counts.pop("seconds")
    assert counts.pop("inputs") == 60
    assert sum(counts.values()) == 60
    assert counts.keys() == {"read", "refused"}
    assert not (tmp_path / "kept").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["profile", "place", "run", "train", "bench learned"])
def test_commands_that_are_ended_at_random_moments(command: str, tmp_path: Path) -> None:
    """SIGINT, SIGTERM and SIGKILL, mixed: nothing damaged, lost or left, and a rerun ends well."""
    results = tmp_path / "results.json"
    options = ["--commands", command, "--count", "20", "--seed", "1", "--results", str(results)]
    command_line = [sys.executable, "-m", "benchmarks.kill_sweep", *options]
    done = subprocess.run(command_line, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = json.loads(results.read_text())
    assert sum(one["code"] != 0 for one in trials.values()) == 20
    assert {one["signal"] for one in trials.values()} == {"SIGINT", "SIGTERM", "SIGKILL"}
