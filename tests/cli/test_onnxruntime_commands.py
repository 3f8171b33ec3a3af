"""Every command with ``--runtime onnxruntime``, from end to end on a small model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from cli.runner import Benchmark, InProcess, the_line
from support.branching_model import branching_model

import placewright as pw

RUNTIME = ("--runtime", "onnxruntime")
CORES = ("--devices", "cores", *RUNTIME)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    return tmp_path


def test_place_then_run(folder: Path, cli: InProcess) -> None:
    placed = cli("place", "m.onnx", *CORES, "--evaluations", 30, "--json", cwd=folder)
    assert placed.returncode == 0, placed.stderr
    plan = json.loads(placed.stdout)
    assert plan["runtime"] == "onnxruntime"
    assert sorted(plan["placement"]) == sorted(n.name for n in branching_model().graph.node)
    assert plan["measured"]["median"] > 0
    done = cli("run", "plan.json", "--boundaries", "--runs", 2, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["equal"] is True


def test_a_saved_problem_remembers_its_runtime(folder: Path, cli: InProcess) -> None:
    saved = cli("profile", "m.onnx", *CORES, "--quick", "-o", "problem.json", cwd=folder)
    assert saved.returncode == 0, saved.stderr
    placed = cli("place", "problem.json", "--evaluations", 20, cwd=folder)
    assert placed.returncode == 0, placed.stderr
    assert json.loads((folder / "plan.json").read_text())["runtime"] == "onnxruntime"
    other = cli("place", "problem.json", "--runtime", "openvino", "--evaluations", 5, cwd=folder)
    assert "'openvino' cannot check what 'onnxruntime' measured" in the_line(other, 2)


def test_compare_and_graph(folder: Path, cli: InProcess) -> None:
    words = (
        "compare",
        "m.onnx",
        "--quick",
        "--placers",
        "heft,random",
        "--evaluations",
        20,
        "--json",
    )
    table = json.loads(cli(*words, *CORES, cwd=folder).stdout)
    assert {row["placer"] for row in table["rows"]} == {"heft", "random"}
    summary = json.loads(cli("graph", "m.onnx", *RUNTIME, "--json", cwd=folder).stdout)
    assert summary["kinds"]["Conv"] == 3
    assert summary["ops"] == 12


def test_random_placements_are_equal(folder: Path, benchmark: Benchmark) -> None:
    done = benchmark("equality", "m.onnx", *RUNTIME, "--placements", 5, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["equal"] == found["placements"] == 5


def test_devices_of_every_runtime(folder: Path, cli: InProcess) -> None:
    told = json.loads(cli("devices", *RUNTIME, "--json", cwd=folder).stdout)
    assert told["runtime"] == "onnxruntime"
    assert {"cpu", "cpu:0"} <= set(told["runtimes"]["onnxruntime"])
    text = cli("devices", *RUNTIME, cwd=folder).stdout
    assert "Devices of onnxruntime" in text
    if "openvino" in told["runtimes"]:
        assert "With --runtime openvino: cpu, cpu:0" in text


def test_without_the_library(folder: Path, cli: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    told = the_line(cli("place", "m.onnx", *CORES, cwd=folder), 2)
    assert "pip install 'placewright[onnxruntime]'" in told
    text = cli("devices", "--json", cwd=folder).stdout
    assert "placewright[onnxruntime]" in json.loads(text)["not_installed"]["onnxruntime"]


def test_zoo_model_through_the_facade(cli: InProcess) -> None:
    model = pw.read("zoo:rnnlm/tiny", runtime="onnxruntime")
    assert model.graph.op_names[0] == "embedding/Gather"
    cluster = pw.discover("cpu:0", runtime="onnxruntime")
    problem = pw.profile(model, cluster, quick=True)
    plan = pw.place(problem, placer="single", check=False)
    assert plan.runtime == "onnxruntime"
    first, second = pw.run(plan), pw.run(plan)
    np.testing.assert_array_equal(first[0], second[0])
    assert first[0].std() > 0
