"""`export`: files for other tools, and one line where a plan cannot be said in a format."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from cli.runner import InProcess, the_line
from support.branching_model import branching_model

PLACE = ("--placer", "single", "--quick", "--no-check", "--evaluations", 5)


@pytest.fixture
def folder(tmp_path: Path, cli: InProcess) -> Path:
    """With a plan on one core for each of two runtimes."""
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    for runtime in ("onnxruntime", "openvino"):
        plan = f"{runtime}.json"
        words = ("--devices", "cpu:0", "--runtime", runtime, "-o", plan)
        done = cli("place", "m.onnx", *PLACE, *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    return tmp_path


def test_every_format(folder: Path, cli: InProcess) -> None:
    for form, plan, path in (
        ("openvino-affinity", "openvino", "affinity.json"),
        ("onnx-layers", "onnxruntime", "layers.onnx"),
        ("onnx-segments", "onnxruntime", "parts"),
    ):
        done = cli("export", f"{plan}.json", "--to", form, "-o", path, "--json", cwd=folder)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["path"] == path
        assert (folder / path).exists()
    again = cli("export", "onnxruntime.json", "--to", "onnx-segments", "-o", "parts", cwd=folder)
    assert again.returncode == 0, again.stderr
    told = " ".join(again.stdout.split())
    tried = "(tried here: ONNX Runtime loads it on the CPU)"
    assert f"run 1 file in the order of parts/segments.json {tried}" in told
    assert "inputs are fixed to x=1,4,16,16: --shape of a new plan changes them" in told


def test_what_is_refused(folder: Path, cli: InProcess) -> None:
    def line(plan: str, form: str, path: str, code: int) -> str:
        return the_line(cli("export", plan, "--to", form, "-o", path, cwd=folder), code)

    assert "not OpenVINO's" in line("onnxruntime.json", "openvino-affinity", "a.json", 1)
    assert "has no PyTorch modules" in line("openvino.json", "device-map", "a.json", 1)
    assert "not the nodes" in line("openvino.json", "onnx-layers", "a.onnx", 1)
    assert "no segments" in line("openvino.json", "onnx-segments", "a", 1)
    assert "unknown export format 'banana'" in line("openvino.json", "banana", "a.json", 2)
    assert "does not exist" in line("none.json", "device-map", "a.json", 2)
    assert "folder 'none'" in line("openvino.json", "openvino-affinity", "none/a.json", 2)
    (folder / "m.onnx").unlink()
    assert "does not exist" in line("onnxruntime.json", "onnx-layers", "a.onnx", 2)
    assert not list(folder.glob("a*"))
