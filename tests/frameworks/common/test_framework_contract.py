"""Every framework passes the contract of frameworks, and a broken one does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from support.branching_model import branching_model

from placewright.frameworks.registry import framework_named
from placewright.session.models import finder
from placewright.testing.framework_contract import check_declaration, check_framework


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
