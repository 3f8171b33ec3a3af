"""Modules that return dataclasses, and exported programs with open dimensions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from placewright.errors import InputError
from placewright.frameworks.torch.reading.inference import read_inference


@dataclasses.dataclass
class Found:
    """What a module of Hugging Face's kind returns: fields, some of them None or nested."""

    hidden: torch.Tensor
    skipped: torch.Tensor | None
    pair: tuple[torch.Tensor, torch.Tensor]


@dataclasses.dataclass
class Registered:
    """Known to PyTorch, so that a file names it."""

    first: torch.Tensor
    second: torch.Tensor


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        return Found(y, None, (y + 1, y + 2))


class Pair(Network):
    def forward(self, x: torch.Tensor) -> Any:
        return Registered(self.layer(x), x * 2)


class Reshaped(Network):
    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x).view(x.shape[0], 2, 4).transpose(1, 2).reshape(x.shape[0] * 2, 4)
        return torch.cat([y, y])


def test_fields_of_a_dataclass_are_outputs() -> None:
    module = Network().eval()
    read = read_inference(module, (torch.randn(3, 8),), name="m")
    assert read.source.signature is not None
    names = [port.name for port in read.source.signature.outputs]
    assert names == ["hidden", "pair_0", "pair_1"]
    assert isinstance(module(torch.randn(3, 8)), Found), "the module is as it was"
    assert read.graph.op_modules[0] == "layer"


def test_a_file_whose_outputs_are_a_class_is_read_without_the_class(tmp_path: Path) -> None:
    torch.export.register_dataclass(Registered, serialized_type_name="nowhere.Registered")
    program = torch.export.export(Pair().eval(), (torch.randn(3, 8),))
    torch.export.save(program, tmp_path / "m.pt2")
    read = read_inference(tmp_path / "m.pt2")
    assert read.source.signature is not None
    assert [port.name for port in read.source.signature.outputs] == ["first", "second"]


def test_open_dimensions_are_those_of_the_example_or_as_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    module, path = Reshaped().eval(), tmp_path / "m.pt2"
    example = torch.randn(3, 8)
    program = torch.export.export(module, (example,), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    read = read_inference(path)
    assert read.source.shapes == {"x": (3, 8)}
    assert "input 'x' has open dimensions; taking [3, 8] of its example" in caplog.text
    wider = read_inference(path, shapes={"x": (5, 8)})
    assert wider.source.shapes == {"x": (5, 8)}
    assert wider.graph.tensor_shapes[-1] == (20, 4)
    assert wider.graph.op_modules[0] == "layer"
    for shape, reason in (
        ((65, 8), "from 2 to 64, got 65"),
        ((5, 9), r"takes .*, not \[5, 9\]"),
        ((5,), r"takes .*, not \[5\]"),
    ):
        with pytest.raises(InputError, match=f"argument `shapes` x: .*{reason}"):
            read_inference(path, shapes={"x": shape})
