"""Examples in docstrings run and print what they show."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import placewright
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.problem import Problem
from tests.model_makers import write_onnx

SOURCE = Path(__file__).parents[1] / "src"
MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>> " in path.read_text()
]
CLUSTER = """\
format: placewright.cluster/1
devices:
- {name: cpu, kind: cpu}
- {name: gpu, kind: gpu, memory: 8GiB}
"""


def diamond(seconds: float) -> Problem:
    """A stem, two branches of 2 s each, a head; both devices are equal and transfers are free.

    One device takes 1 + 2 + 2 + 1 = 6 s, a branch on either 1 + 2 + 1 = 4 s if `seconds` is 1.
    """
    builder = GraphBuilder()
    read = builder.add_input(4.0)
    made = []
    for name, inputs in (("stem", [read]), ("left", [1]), ("right", [1]), ("head", [2, 3])):
        op = builder.add_op(name, "MatMul", inputs=inputs)
        made.append(builder.add_tensor(op, 4.0, is_output=name == "head"))
    links = (Link("cpu", "gpu"), Link("gpu", "cpu"))
    cluster = Cluster((Device("cpu"), Device("gpu", "gpu")), links, host="cpu")
    column = seconds * np.array([1.0, 2.0, 2.0, 1.0])
    return Problem.of_ops(builder.build(), cluster, CostTable(np.stack([column, column], axis=1)))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    before = Path.cwd()
    os.chdir(folder)
    try:
        placewright.write_problem("problem.json", diamond(1.0))
        placewright.write_problem("other.json", diamond(2.0))
        Path("cluster.yaml").write_text(CLUSTER)
        write_onnx(Path("model.onnx"))
        request = {"devices": "cpu", "placer": "single", "calibrate": False, "check": False}
        placewright.write_plan("plan.json", placewright.place("model.onnx", **request))
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def folder(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A copy of the files, as current folder."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    yield
    placewright.unload()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_show(name: str) -> None:
    module = importlib.import_module(name)
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS, extraglobs={"pw": placewright})
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize("name", placewright.__all__)
def test_every_public_name_has_an_example_that_runs(name: str) -> None:
    text = getattr(placewright, name).__doc__ or ""
    assert re.search(r"^ *>>> ", text, re.M)
    assert "+SKIP" not in text
