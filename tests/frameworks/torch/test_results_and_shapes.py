"""Modules that return dataclasses, and exported programs with open dimensions."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import placewright as pw
from placewright.errors import InputError
from placewright.execution.exported_program import OwnClasses, plain_results
from placewright.frameworks.torch.reading.fx_program import ReadProgram
from placewright.frameworks.torch.reading.reader import fixed_program, read_inference
from placewright.frameworks.torch.running.runtime import TorchRuntime


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


@dataclasses.dataclass
class Both:
    """As `Registered`, of a module whose batch is open."""

    first: torch.Tensor
    second: torch.Tensor


class ReshapedPair(Reshaped):
    def forward(self, x: torch.Tensor) -> Any:
        return Both(super().forward(x), x * 2)


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


QUICK: dict[str, Any] = {
    "devices": "cpu:0,cpu:1",
    "evaluations": 20,
    "quick": True,
    "calibrate": False,
}
needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="places on two cores")


@needs_two_cores
def test_a_module_that_returns_a_dataclass_is_placed_and_run() -> None:
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    module = Network().eval()
    plan = pw.place(module, example_inputs=(torch.from_numpy(x),), **QUICK)
    outputs = pw.run(plan, {"x": x})
    assert isinstance(outputs, dict)
    with torch.no_grad():
        expected = module(torch.from_numpy(x))
    assert list(outputs) == ["hidden", "pair_0", "pair_1"]
    np.testing.assert_allclose(outputs["pair_1"], expected.pair[1].numpy(), rtol=1e-5)


def test_a_class_of_transformers_holds_its_tensors_in_every_way() -> None:
    """It is a dataclass and a dictionary, and keeps each field twice."""
    from transformers.modeling_outputs import BaseModelOutput

    class Encoder(Network):
        def forward(self, x: torch.Tensor) -> Any:
            return BaseModelOutput(last_hidden_state=self.layer(x))

    module, own, value = Encoder().eval(), OwnClasses(), torch.ones(3, 8)
    with plain_results(module, own):
        assert list(module(torch.randn(3, 8))) == ["last_hidden_state"]
    made = own.restored({"last_hidden_state": value})
    assert type(made) is BaseModelOutput
    assert made.last_hidden_state is value
    assert made["last_hidden_state"] is value
    assert made[0] is value
    assert made.to_tuple() == (value,)


def test_fields_of_a_class_of_transformers_keep_their_order() -> None:
    """A copy of the class begins with fields that hold no tensor, such as tuples of tensors."""
    from transformers.modeling_outputs import BaseModelOutput

    class Encoder(Network):
        def forward(self, x: torch.Tensor) -> Any:
            hidden = self.layer(x)
            return BaseModelOutput(last_hidden_state=hidden, hidden_states=(x, hidden))

    module, own = Encoder().eval(), OwnClasses()
    with plain_results(module, own):
        module(torch.randn(3, 8))
    first, second = torch.ones(1), torch.zeros(1)
    made = own.restored({"last_hidden_state": first, "hidden_states": (second, first)})
    assert list(made) == ["last_hidden_state", "hidden_states"]
    assert made[0] is first
    assert made[1] == (second, first)


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_a_module_in_memory_is_refused_where_it_cannot_be_read(runtime: str) -> None:
    told = "runtime: .* reads no modules in memory: export yours to a file .torch.export.save"
    with pytest.raises(InputError, match=told):
        pw.place(Network().eval(), example_inputs=(torch.randn(3, 8),), runtime=runtime, **QUICK)


@needs_two_cores
@pytest.mark.parametrize("runtime", ["torch", "openvino", "onnxruntime"])
def test_a_file_with_a_class_and_an_open_batch_is_placed_and_run(
    tmp_path: Path, runtime: str
) -> None:
    """By each runtime that reads it, for the batch that is asked for."""
    torch.export.register_dataclass(Both, serialized_type_name="nowhere.Both")
    module, batch = ReshapedPair().eval(), torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(module, (torch.randn(3, 8),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "m.pt2")
    plan = pw.place(str(tmp_path / "m.pt2"), runtime=runtime, shapes={"x": (5, 8)}, **QUICK)
    x = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    with pw.load(plan) as loaded:
        outputs = loaded(x)
        assert [one.name for one in loaded.outputs] == ["first", "second"]
    with torch.no_grad():
        expected = module(torch.from_numpy(x))
    np.testing.assert_allclose(outputs["first"], expected.first.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs["second"], expected.second.numpy(), rtol=1e-4, atol=1e-5)


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


def drawn_input(read: ReadProgram) -> np.ndarray[Any, Any]:
    """Random values of the only input of a model."""
    model = TorchRuntime(lambda _: read.program).load(read.source, read.graph)
    (drawn,) = model.random_inputs(np.random.default_rng(0))
    return drawn


def test_a_file_with_open_dimensions_keeps_the_values_of_its_examples(tmp_path: Path) -> None:
    """They were zeros, which counted as flags, so that all random inputs were zeros, too."""
    batch, example = torch.export.Dim("batch", min=2, max=64), torch.randn(3, 8)
    program = torch.export.export(Reshaped().eval(), (example,), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "m.pt2")
    asked: list[tuple[dict[str, tuple[int, ...]], torch.Tensor]] = [
        ({}, example),
        ({"x": (5, 8)}, torch.cat([example, example[:2]])),
        ({"x": (2, 8)}, example[:2]),
    ]
    for shapes, expected in asked:
        read = read_inference(tmp_path / "m.pt2", shapes=shapes)
        (held,) = read.program.example_inputs.values()
        assert torch.equal(held, expected)
        drawn = drawn_input(read)
        assert drawn.shape == tuple(expected.shape)
        assert len(np.unique(drawn)) > 2


def test_open_dimensions_without_examples_get_random_floats() -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    example = (torch.randn(3, 8),)
    program = torch.export.export(Reshaped().eval(), example, dynamic_shapes=({0: batch},))
    program.example_inputs = None
    ((made,), _) = fixed_program(program, {"x": (5, 8)}).example_inputs
    assert made.shape == (5, 8)
    assert len(made.unique()) > 2


class Bags(Network):
    def forward(
        self, x: torch.Tensor, offsets: torch.Tensor, mask: torch.Tensor, tokens: torch.Tensor
    ) -> Any:
        return self.layer(x), offsets + 1, ~mask, tokens * 2


def bags() -> tuple[torch.Tensor, ...]:
    """Example inputs of `Bags`."""
    mask, tokens = torch.tensor([True, False] * 6), torch.tensor([0, 3, 1] * 4)
    return torch.randn(12, 8), torch.tensor([0, 3, 4, 9]), mask, tokens


def test_integers_of_a_file_stay_but_for_offsets() -> None:
    """Offsets of bags that are repeated or cut, or lead into fewer rows, are none."""
    rows, row = (torch.export.Dim(name, min=2, max=64) for name in ("rows", "row"))
    x, offsets, mask, tokens = bags()
    program = torch.export.export(
        Bags().eval(),
        (x, offsets, mask, tokens),
        dynamic_shapes=({0: rows}, {0: row}, {0: rows}, {0: rows}),
    )
    none = torch.zeros(6, dtype=torch.int64)
    asked: list[tuple[dict[str, tuple[int, ...]], int, torch.Tensor]] = [
        ({}, 12, offsets),
        ({"offsets": (6,)}, 12, none),
        ({"x": (5, 8), "mask": (5,), "tokens": (5,)}, 5, none[:4]),
    ]
    for shapes, n_rows, expected in asked:
        held: Any = fixed_program(program, shapes).example_inputs
        assert torch.equal(held[0][0], x[:n_rows])
        assert torch.equal(held[0][1], expected)
        assert torch.equal(held[0][2], mask[:n_rows])
        assert torch.equal(held[0][3], tokens[:n_rows])


def test_integers_of_a_module_stay_but_for_offsets() -> None:
    module, examples = Bags().eval(), bags()
    asked: list[tuple[dict[str, tuple[int, ...]], list[int], list[int]]] = [
        ({}, [0, 3, 4, 9], [0, 3, 1] * 4),
        ({"x": (5, 8)}, [0, 0, 0, 0], [0, 3, 1] * 4),
        ({"offsets": (6,), "tokens": (14,)}, [0] * 6, [0, 3, 1] * 4 + [0, 3]),
    ]
    for shapes, offsets, tokens in asked:
        held = read_inference(module, examples, shapes=shapes).program.example_inputs
        assert held["offsets"].tolist() == offsets
        assert held["tokens"].tolist() == tokens
