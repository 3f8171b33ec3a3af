"""What README shows runs as it stands there: its commands in their order, and its Python.

Models have the names that README gives them, and are small: each model of the zoo becomes one that
is measured in a second. Searches that README leaves to their default are cut short.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from cli.runner import InProcess

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
# Lines that are not run, and why.
LEFT_OUT = {
    "make ": "needs a clone of its own; the tests are inside it",
    "python -m ": "test_outside_the_repository.py builds the wheel and installs it",
    "placewright bench tarnawski": "needs the published workloads",
}
SMALLER = {
    r"\bzoo:[a-z0-9_]+(?= |$)": "zoo:rnnlm/tiny",
    "--evaluations 500 --seeds 5": "--evaluations 20 --seeds 1",
    "--evaluations 500": "--evaluations 50",
    "--samples 200": "--samples 40",
}


@dataclass(frozen=True)
class Block:
    """A fenced block: what stands behind its fence, and its lines."""

    language: str
    lines: tuple[str, ...]


def blocks(text: str) -> Iterator[Block]:
    for language, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        yield Block(language, tuple(body.splitlines()))


def commands(block: Block) -> Iterator[list[str]]:
    """Words of each command that is run."""
    for line in block.lines:
        plain = line.removeprefix("$ ").removeprefix("mine/bin/")
        if any(plain.startswith(begin) for begin in LEFT_OUT):
            continue
        for pattern, by in SMALLER.items():
            plain = re.sub(pattern, by, plain)
        name, *words = shlex.split(plain, comments=True)
        assert name == "placewright", f"neither run nor left out: {line}"
        searches = words[0] == "place" and not {"--budget", "--evaluations"} & {*words}
        yield words + ["--evaluations", "50"] * searches


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The models that README names: an embedding, then convolutions beside each other."""
    import onnx
    import openvino
    import torch

    onnx.save(_model(), str(tmp_path / "model.onnx"))
    openvino.save_model(openvino.convert_model(tmp_path / "model.onnx"), tmp_path / "model.xml")
    (tmp_path / "elsewhere").mkdir()
    for name in ("model.onnx", "model.xml", "model.bin"):
        shutil.copy(tmp_path / name, tmp_path / "elsewhere" / name)
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    program = torch.export.export(module, (torch.zeros(2, 8),))
    torch.export.save(program, tmp_path / "model.pt2")
    return tmp_path


def _model() -> object:
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    sizes = {"table": (20, 16), "w1": (8, 4, 3, 3), "w2": (8, 4, 3, 3)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(size).astype(np.float32), name)
        for name, size in sizes.items()
    ]
    weights.append(numpy_helper.from_array(np.array([1, 4, 8, 8]), "shape"))
    same = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["e"], name="embedding"),
        helper.make_node("Reshape", ["e", "shape"], ["image"], name="image"),
        helper.make_node("Conv", ["image", "w1"], ["c1"], name="conv1", **same),
        helper.make_node("Conv", ["image", "w2"], ["c2"], name="conv2", **same),
        helper.make_node("Sigmoid", ["c1"], ["s1"], name="gate"),
        helper.make_node("Mul", ["s1", "c2"], ["y"], name="join"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "readme",
        [value("tokens", TensorProto.INT64, [1, 16])],
        [value("y", TensorProto.FLOAT, [1, 8, 8, 8])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_every_line_that_is_left_out_is_there() -> None:
    text = README.read_text()
    for begin in LEFT_OUT:
        assert re.search(rf"^{re.escape(begin)}", text, re.M), begin


def test_what_readme_shows_runs(
    folder: Path, cli: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command exits with 0 in the order of the page; then the Python, in the same folder."""
    ran = 0
    for block in blocks(README.read_text()):
        if block.language == "python":
            monkeypatch.chdir(folder)
            exec(compile("\n".join(block.lines), "README.md", "exec"), {})
            ran += 1
            continue
        found = block
        if block.language == "yaml":  # its first line names the file, and a command that takes it
            name, _, command = block.lines[0].removeprefix("# ").partition(": ")
            (folder / name).write_text("\n".join(block.lines))
            found = Block("", (command,))
        for words in commands(found):
            done = cli(*words, cwd=folder)
            assert done.returncode == 0, (words, done.stdout, done.stderr)
            ran += 1
    assert ran >= 15
    for name in ("plan.html", "t.json", "step.json", "parts"):
        assert (folder / name).exists(), name
