"""Commands take a plan's model from another place, and refuse one of other content."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli.runner import InProcess, the_line
from own_order.models import WRITERS
from own_order.plans import split_plan

import placewright as pw

NATIVE = {"openvino": "m.xml", "onnxruntime": "m.onnx", "torch": "m.pt2"}
COMMANDS = ("run", "simulate", "report", "explain", "diff", "export")


def words(command: str, plan: pw.Plan) -> list[str]:
    """A call of a command on the plan."""
    more = {
        "run": ["--runs", "1", "--json"],
        "explain": [plan.problem.graph.op_names[0]],
        "diff": ["plan.json"],
        "export": ["--to", "onnx-segments", "-o", "parts"],
        "report": ["-o", "page.html"],
    }
    return [command, "plan.json", *more.get(command, [])]


def write_other(path: Path) -> None:
    """A model of another content under the same name."""
    if path.suffix == ".pt2":
        import torch

        program = torch.export.export(torch.nn.Linear(3, 3), (torch.ones(2, 3),))
        torch.export.save(program, path)
        return
    WRITERS[path.name](path)
    if path.suffix == ".xml":
        path.write_text(path.read_text() + "<!-- another one -->")
        return
    import onnx

    model = onnx.load(str(path))
    model.graph.initializer[0].float_data[0] = 2.5
    onnx.save(model, str(path))


@pytest.mark.parametrize("runtime", NATIVE)
def test_the_model_is_taken_from_where_it_is_now(
    runtime: str, tmp_path: Path, cli: InProcess
) -> None:
    path = tmp_path / NATIVE[runtime]
    WRITERS[path.name](path)
    plan = split_plan(path, runtime)
    pw.write_plan(tmp_path / "plan.json", plan)
    moved, other = tmp_path / "moved", tmp_path / "other"
    moved.mkdir()
    other.mkdir()
    for file in tmp_path.glob("m.*"):
        shutil.move(file, moved / file.name)
    write_other(other / path.name)
    missing = cli("run", "plan.json", "--runs", 1, cwd=tmp_path)
    assert missing.returncode == 2, "its place in the plan is empty"
    expected = plan.problem.source.sha256[:12] if plan.problem.source else ""
    for command in COMMANDS:
        if command == "export" and runtime != "onnxruntime":
            continue
        done = cli(*words(command, plan), "--model", moved / path.name, cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)
        if command == "run":
            assert json.loads(done.stdout)["equal"] is True
        line = the_line(cli(*words(command, plan), "--model", other / path.name, cwd=tmp_path), 2)
        assert f"model '{other / path.name}' has changed: its sha256 is " in line
        assert f"expected {expected}" in line


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_a_converted_program_is_named_by_its_own_file(
    runtime: str, tmp_path: Path, cli: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "m.pt2"
    WRITERS["m.pt2"](path)
    plan = split_plan(path, runtime)
    assert plan.problem.source is not None
    assert plan.problem.source.path == str(path)
    pw.write_plan(tmp_path / "plan.json", plan)
    for more in ([], ["--model", path]):
        if runtime == "onnxruntime":  # OpenVINO names operators by a counter of the process
            shutil.rmtree(tmp_path / "cache")
        done = cli("run", "plan.json", "--runs", 1, *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
