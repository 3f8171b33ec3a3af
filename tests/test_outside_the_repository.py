"""The package as a user gets it: a wheel, a new environment, a folder of one's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
_NET = 3_600  # seconds: against hanging only


def _run(*words: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    command = [str(word) for word in words]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=cwd, env={**clean, **(env or {})}, capture_output=True, text=True, timeout=_NET
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that nothing is left in the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    names = _run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).splitlines()
    wanted = [
        n for n in names if n.startswith(("src/", "README", "LICENSE", "pyproject", "setup.py"))
    ]
    for name in wanted:
        if (ROOT / name).is_file():
            (folder / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "copy" / name).write_bytes((ROOT / name).read_bytes())
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    _run(*pip, "-w", folder, folder / "copy", cwd=folder)
    return next(folder.glob("placewright-*.whl"))


def test_a_wheel_holds_the_page_and_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
    for wanted in ("page.html", "page.css", "simulate.js", "vendor/uplot.min.js"):
        assert f"placewright/report/assets/{wanted}" in names
    assert "placewright/report/assets/vendor/LICENSE-d3.txt" in names
    assert "placewright/profiling/catalogue.yaml" in names
    assert "Classifier: Programming Language :: Python :: 3.11" in metadata


@pytest.mark.slow
def test_a_new_environment_places_an_own_onnx_file(
    wheel: Path, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    """Install with [openvino], three commands, a report; seconds of each step are recorded."""
    onnx = pytest.importorskip("onnx", reason="the model is made with onnx: pip install onnx")
    _write_model(onnx, tmp_path / "mine.onnx")
    seconds: dict[str, float] = {}

    def timed(step: str, *words: str | Path) -> str:
        begin = time.monotonic()
        caches = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        text = _run(*words, cwd=tmp_path, env=caches)
        seconds[step] = round(time.monotonic() - begin, 1)
        return text

    timed("venv", sys.executable, "-m", "venv", tmp_path / "venv")
    python, command = tmp_path / "venv/bin/python", tmp_path / "venv/bin/placewright"
    timed("install", python, "-m", "pip", "install", "--quiet", f"{wheel}[openvino]")
    graph = json.loads(timed("graph", command, "graph", "mine.onnx", "--json"))
    assert graph["ops"] >= 4
    search = ("--devices", "cores", "--evaluations", "50", "--no-check", "--quiet")
    timed("place", command, "place", "mine.onnx", *search)
    ran = json.loads(timed("run", command, "run", "plan.json", "--runs", "3", "--json"))
    assert ran["equal"]
    timed("report", command, "report", "plan.json")
    assert "Placewright" in (tmp_path / "report.html").read_text()
    where = _run(python, "-c", "import placewright; print(placewright.__file__)", cwd=tmp_path)
    assert str(tmp_path) in where
    record_property("seconds", seconds)
    if target := os.environ.get("PLACEWRIGHT_INSTALL_TIMES"):
        Path(target).write_text(json.dumps(seconds, indent=1) + "\n")


def _write_model(onnx: object, path: Path) -> None:
    """Two convolutions beside each other, joined."""
    from onnx import TensorProto, helper, numpy_helper, save

    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((16, 3, 3, 3)).astype(np.float32) for _ in range(2)]
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Conv", ["x", f"w{at}"], [f"c{at}"], name=f"conv{at}", pads=[1, 1, 1, 1])
        for at in range(2)
    ]
    nodes += [helper.make_node("Relu", [f"c{at}"], [f"r{at}"], name=f"relu{at}") for at in range(2)]
    nodes.append(helper.make_node("Add", ["r0", "r1"], ["y"], name="join"))
    graph = helper.make_graph(
        nodes,
        "mine",
        [value("x", TensorProto.FLOAT, [1, 3, 32, 32])],
        [value("y", TensorProto.FLOAT, [1, 16, 32, 32])],
        [numpy_helper.from_array(array, f"w{at}") for at, array in enumerate(weights)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    save(model, str(path))
