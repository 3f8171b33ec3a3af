"""Every runtime keeps the contract that ships in `placewright.testing`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from own_order.models import write_onnx
from support.branching_model import branching_model

from placewright.core.graph import ComputationGraph
from placewright.core.source import ModelSource
from placewright.execution.runtime import whole_segment
from placewright.frameworks.onnxruntime.reader import read_onnx
from placewright.frameworks.openvino.reader import read_openvino
from placewright.frameworks.registry import make_runtime
from placewright.testing.runtime_contract import check_runtime, check_split


def read_for(runtime: str, path: Path) -> tuple[ComputationGraph, ModelSource]:
    return read_onnx(path) if runtime == "onnxruntime" else read_openvino(path)


@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
def test_runtime(name: str, tmp_path: Path) -> None:
    path = tmp_path / "branching.onnx"
    onnx.save(branching_model(), str(path))
    graph, source = read_for(name, path)
    check_runtime(make_runtime(name), source, graph)


def test_torch_runtime(tmp_path: Path) -> None:
    import torch

    from placewright.session.models import load_model, runnable_source, runtime_named

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
