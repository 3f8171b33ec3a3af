"""README runs as it stands: its commands in their order, and its Python.

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
    "python3.11 -m ": "test_outside_the_repository.py builds the wheel and installs it",
}
SMALLER = {
    r"\bzoo:[a-z0-9_]+(?= |$)": "zoo:rnnlm/tiny",
    "--evaluations 500 --seeds 5": "--evaluations 20 --seeds 1",
    "--evaluations 500": "--evaluations 50",
    "--samples 200": "--samples 40",
}


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: behind its fence.
        text: all its lines.
        file: that the page says to write it to; "" if none.
    """

    language: str
    text: str
    file: str


def blocks(page: str) -> Iterator[Block]:
    told = r"(?:Write this file as `(\S+)`:\n+)?"
    for file, language, text in re.findall(rf"{told}^```(\w*)\n(.*?)^```$", page, re.M | re.S):
        first = re.match(r"# (\S+\.yaml): ", text)
        yield Block(language, text, file or (first[1] if first else ""))


def commands(block: Block) -> Iterator[tuple[list[str], int]]:
    """Words of each command that is run, and its exit code."""
    for line in block.text.splitlines():
        if block.language == "yaml":  # its first line may show a command that takes the file
            _, _, line = line.partition(f"# {block.file}: ")
        plain = line.removeprefix("$ ").removeprefix("mine/bin/")
        if not plain or any(plain.startswith(begin) for begin in LEFT_OUT):
            continue
        code = re.search(r"# exit code (\d)", plain)
        for pattern, by in SMALLER.items():
            plain = re.sub(pattern, by, plain)
        name, *words = shlex.split(plain, comments=True)
        assert name == "placewright", f"neither run nor left out: {line}"
        searches = words[0] == "place" and not {"--budget", "--evaluations", "--quick"} & {*words}
        yield words + ["--evaluations", "50"] * searches, int(code[1]) if code else 0


def run_page(page: str, folder: Path, cli: InProcess) -> int:
    """All blocks in the order of the page, in one folder; how many commands and programs ran."""
    ran = 0
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.text)
        if block.language == "python":
            if not block.file:
                exec(compile(block.text, "page", "exec"), {})
                ran += 1
            continue
        for words, code in commands(block):
            done = cli(*words, cwd=folder)
            assert done.returncode == code, (words, done.stdout, done.stderr)
            ran += 1
    return ran


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
    monkeypatch.chdir(folder)
    page = re.sub("<!-- demo: begin -->.*<!-- demo: end -->", "", README.read_text(), flags=re.S)
    assert run_page(page, folder, cli) >= 3
    assert (folder / "plan.html").exists()
