"""Frameworks and runtimes keep the contracts of `placewright.testing`; broken ones do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from own_order.models import write_onnx
from support.branching_model import branching_model

from placewright.core.graph import ComputationGraph
from placewright.core.source import ModelSource
from placewright.execution.runtime import whole_segment
from placewright.frameworks.onnxruntime.reader import read_onnx
from placewright.frameworks.openvino.reader import read_openvino
from placewright.frameworks.registry import framework_named, make_runtime
from placewright.session.models import finder, load_model, runnable_source, runtime_named
from placewright.testing.framework_contract import (
    check_declaration,
    check_framework,
    check_runtime,
    check_split,
)


def onnx_file(folder: Path) -> Path:
    path = folder / "branching.onnx"
    onnx.save(branching_model(), str(path))
    return path


class Gated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.one(x)) * torch.relu(self.other(x))


@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
def test_those_that_read_onnx_files(name: str, tmp_path: Path) -> None:
    framework = framework_named(name)
    check_framework(framework, onnx_file(tmp_path), find=finder(framework))


def test_the_one_that_reads_programs(tmp_path: Path) -> None:
    path = tmp_path / "gated.pt2"
    torch.export.save(torch.export.export(Gated().eval(), (torch.randn(4, 8),)), path)
    framework = framework_named("torch")
    check_framework(framework, path, find=finder(framework))


class Wrong:
    """Another framework's declaration with one thing changed."""

    __module__ = "placewright.frameworks.onnxruntime.declaration"

    def __init__(self, **changed: Any) -> None:
        self.__dict__.update(changed)

    def __getattr__(self, name: str) -> Any:
        return getattr(framework_named("onnxruntime"), name)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"name": ""}, "a framework has a name"),
        ({"objectives": ("speed",)}, "no objectives: \\['speed'\\]"),
        ({"suffixes": ("onnx",)}, "'onnx' is no suffix"),
        ({"formats": ("other",)}, "'onnx' is none of its formats"),
        ({"suffixes": (".pt2",)}, "is none of"),
        ({"again": lambda source, find: (branching_graph(), source)}, "it is another graph"),
    ],
)
def test_a_broken_declaration_is_told(changed: Any, told: str, tmp_path: Path) -> None:
    wrong: Any = Wrong(**changed)
    with pytest.raises(AssertionError, match=told):
        check_framework(wrong, onnx_file(tmp_path))


def branching_graph() -> Any:
    from placewright.core.builder import GraphBuilder

    builder = GraphBuilder()
    builder.mark_output(builder.add_tensor(builder.add_op("alone", "Relu"), 4.0))
    return builder.build()


def test_a_declaration_that_imports_its_library_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "heavy_declaration.py").write_text("import numpy\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    wrong: Any = Wrong()
    monkeypatch.setattr(Wrong, "__module__", "heavy_declaration")
    with pytest.raises(AssertionError, match="imports numpy"):
        check_declaration(wrong)


def read_for(runtime: str, path: Path) -> tuple[ComputationGraph, ModelSource]:
    return read_onnx(path) if runtime == "onnxruntime" else read_openvino(path)


@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
def test_runtime(name: str, tmp_path: Path) -> None:
    graph, source = read_for(name, onnx_file(tmp_path))
    check_runtime(make_runtime(name), source, graph)


def test_torch_runtime(tmp_path: Path) -> None:
    class Branches(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            sizes = [(16, 32), (32, 32), (32, 32), (64, 4)]
            self.layers = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in sizes)

        def forward(self, x: Any) -> tuple[Any, Any]:
            hidden = torch.relu(self.layers[0](x))
            sides = [torch.tanh(self.layers[1](hidden)), self.layers[2](hidden)]
            return self.layers[3](torch.cat(sides, -1)), hidden.sum()

    torch.manual_seed(0)
    program = torch.export.export(Branches(), (torch.randn(2, 16),))
    torch.export.save(program, tmp_path / "branches.pt2")
    model = load_model(str(tmp_path / "branches.pt2"), runtime="torch")
    assert model.source is not None
    source = runnable_source(model.source, model.graph)
    check_runtime(runtime_named("torch"), source, model.graph)


@pytest.mark.parametrize("side", ["inputs", "outputs"])
@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
def test_an_order_that_is_not_the_model_s_breaks_the_contract(
    name: str, side: str, tmp_path: Path
) -> None:
    """Shapes are equal, so that only the values of the library's own call tell."""
    write_onnx(tmp_path / "m.onnx")
    graph, source = read_for(name, tmp_path / "m.onnx")
    assert source.signature is not None
    ports = getattr(source.signature, side)
    exchanged = replace(source.signature, **{side: (ports[1], ports[0], *ports[2:])})
    runtime = make_runtime(name)
    devices = [one for one in runtime.discover() if one.name.startswith("cpu:")][:2]
    whole = [whole_segment(graph)]
    check_split(runtime.load(source, graph), devices, whole)
    with pytest.raises(AssertionError, match=r"output '.*' in 1 segments: error"):
        check_split(runtime.load(replace(source, signature=exchanged), graph), devices, whole)
