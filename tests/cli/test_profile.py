"""What profiling keeps from one call to the next, and what it does not."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from cli.runner import InProcess

FILE = """\
format: placewright.cluster/1
devices:
- {name: "cpu:0", memory: 64MiB}
- {name: "cpu:1", memory: 32MiB}
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_calibration_goes_with_the_devices_and_not_with_the_objective(
    tmp_path: Path, cli: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    import onnx
    from support.branching_model import branching_model

    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    (tmp_path / "pair.yaml").write_text(FILE)
    caplog.set_level(logging.INFO, logger="placewright")

    def cluster_of_profile(*words: object) -> dict[str, Any]:
        caplog.clear()
        done = cli("profile", "m.onnx", *words, "-o", "p.json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        cluster: dict[str, Any] = json.loads((tmp_path / "p.json").read_text())["cluster"]
        return cluster

    pair = ("--devices", "cpu:0,cpu:1")
    streams = cluster_of_profile(*pair, "--objective", "throughput")
    fitted = cluster_of_profile(*pair)
    assert fitted["contention"], "a call for another objective has fitted nothing"
    assert "calibration" in caplog.text, "streams have a fit of their own"
    again = cluster_of_profile(*pair, "--objective", "throughput")
    assert again["contention"] == streams["contention"], "that of streams is kept"
    assert "calibration" not in caplog.text
    of_file = cluster_of_profile("--cluster", "pair.yaml")
    assert of_file["contention"] == fitted["contention"], "the same devices: fitted once"
    assert "calibration" not in caplog.text
    assert [device["memory"] for device in of_file["devices"]] == [2**26, 2**25]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_core_too_small_for_the_model_is_calibrated_and_left_empty(
    tmp_path: Path, cli: InProcess
) -> None:
    import onnx
    from support.branching_model import branching_model

    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    (tmp_path / "pair.yaml").write_text(FILE.replace("64MiB", "8B"))
    done = cli("profile", "m.onnx", "--cluster", "pair.yaml", "-o", "p.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    placed = cli("place", "p.json", "--budget", "1s", "--json", cwd=tmp_path)
    assert placed.returncode == 0, placed.stderr
    assert set(json.loads(placed.stdout)["placement"].values()) == {"cpu:1"}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_python_profiles_as_the_command_does(tmp_path: Path, cli: InProcess) -> None:
    """Calibration included: the same model and devices, the same problem."""
    import onnx
    from support.branching_model import branching_model

    import placewright as pw
    from placewright.files.problem_file import problem_text

    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    done = cli("profile", str(tmp_path / "m.onnx"), "--devices", "cpu:0,cpu:1", "-o", "p.json",
               cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    command = pw.read_problem(tmp_path / "p.json")
    model = pw.read(str(tmp_path / "m.onnx"))
    python = pw.profile(model, command.cluster)
    assert python.cluster.contention, "it was calibrated"
    assert problem_text(python) == problem_text(command)


def test_the_sums_of_a_workload_have_its_unit(tmp_path: Path, cli: InProcess) -> None:
    """Of Tarnawski's workloads that is a millisecond."""
    workload = Path(__file__).parents[1] / "golden" / "small_workload.json"
    done = cli("profile", workload, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["unit"] == "ms"
    text = cli("profile", workload, cwd=tmp_path).stdout
    for name, total in document["whole_model"].items():
        (line,) = [line for line in text.splitlines() if line.strip().startswith(name)]
        assert line.replace("│", " ").split()[1:] == (
            ["-"] if total is None else [f"{total:g}", "ms"]
        )
    assert any(document["whole_model"].values())
