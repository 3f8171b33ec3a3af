"""An operator that fails in a worker: one line that names it, nobody waits, the next run works."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_programs import inference_program

from placewright.core.cluster import Device
from placewright.errors import InputError, RuntimeFailure, UnknownNameError
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import OpSegment, segments_of_ops
from placewright.frameworks.torch.running.runtime import TorchModel, TorchRuntime

CPU = TorchRuntime().discover()[0]
DEVICES = (CPU, replace(CPU, name="again"))  # two workers of one processor


class Words(torch.nn.Module):
    """Looks words up in a table of ten."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.table(words)).sum()


class NoisyWords(Words):
    """The same with noise, whose operator has no TorchScript form."""

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        found = self.table(words)
        return (found + torch.rand_like(found)).sum()


class Huge(torch.nn.Module):
    """One op needs eight tebibytes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(x).expand(1 << 21, 1 << 20) + 1).sum()


def loaded(module: torch.nn.Module, example: torch.Tensor) -> TorchModel:
    program, graph, source = inference_program(module.eval(), [example])
    return TorchRuntime(lambda _: program).load(source, graph)


def split(model: TorchModel, first: int) -> tuple[OpSegment, ...]:
    order = model.graph.topological_order.tolist()
    return segments_of_ops(model.graph, [(0, order[:first]), (1, order[first:])])


def workers(others: list[threading.Thread]) -> list[str]:
    """Of runners that are younger than `others`."""
    names = [thread.name for thread in threading.enumerate() if thread not in others]
    return [name for name in names if name.startswith("placewright")]


@pytest.mark.parametrize("kind", [Words, NoisyWords])
def test_an_operator_that_raises_in_a_worker(kind: type[Words]) -> None:
    """The second device waits for the first one's tensor; the failure must end both."""
    others = threading.enumerate()
    model = loaded(kind(), torch.zeros(3, dtype=torch.int64))
    segments = split(model, 1 if kind is Words else 2)
    runner = ConcurrentRunner(model, segments, DEVICES)
    with pytest.raises(RuntimeFailure) as caught:
        runner.run([np.array([1, 2, 11])])
    text = str(caught.value)
    assert text.startswith("segment 0 on 'cpu' [embedding")
    assert text.endswith("failed: op 'embedding': index out of range in self")
    runner.close()
    assert workers(others) == []
    with ConcurrentRunner(model, segments, DEVICES) as fresh:
        assert np.isfinite(fresh.run([np.array([1, 2, 9])]).outputs[0])


def test_a_device_that_runs_out_of_memory() -> None:
    others = threading.enumerate()
    model = loaded(Huge(), torch.zeros(1, 1))
    runner = ConcurrentRunner(model, split(model, 1), DEVICES)
    with pytest.raises(RuntimeFailure) as caught:
        runner.run([np.zeros((1, 1), np.float32)])
    text = str(caught.value)
    assert "\n" not in text
    start = "segment 1 on 'again' [expand, add, sum_1] failed: op 'add': out of memory"
    assert text.startswith(start)
    assert "8796093022208 bytes" in text
    assert "argument `memory`" in text
    runner.close()
    assert workers(others) == []


def test_out_of_memory_while_memory_is_measured() -> None:
    model = loaded(Huge(), torch.zeros(1, 1))
    with pytest.raises(RuntimeFailure, match="op 'add': out of memory"):
        model.memory_peaks(split(model, 1), DEVICES)


def test_compiling_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    model = loaded(Words(), torch.zeros(3, dtype=torch.int64))
    compiling = replace(CPU, options={**CPU.options, "compile": "inductor"})
    with pytest.raises(InputError, match=r"need a C\+\+ compiler.*run without argument `compiled`"):
        model.compile(split(model, 1), (compiling, compiling))
    unknown = replace(CPU, options={**CPU.options, "compile": "somehow"})
    with pytest.raises(InputError, match="one of eager, inductor, got 'somehow'"):
        model.compile(split(model, 1), (unknown, unknown))


@pytest.mark.parametrize(("options", "compiles"), [
    ({}, False), ({"compile": "eager"}, False), ({"compile": "inductor"}, True),
])  # fmt: skip
def test_a_device_that_says_eager_does_not_compile(options: dict[str, str], compiles: bool) -> None:
    """It keeps the tensors between ops, and no call shows ``torch.compile``."""
    runtime, silent = TorchRuntime(), Device("cpu", options={"device": "cpu"})
    device = Device("cpu", options={"device": "cpu", **options})
    completed = runtime.completed(device)
    for each in (device, completed):
        assert runtime.keeps_inner_tensors([silent, each]) != compiles
        assert runtime.unsplit_call("m.pt2", each).startswith("torch.compile(") == compiles
    assert (completed == runtime.completed(silent)) != compiles, "it would be measured again"


def test_a_way_to_compile_that_does_not_exist_is_refused_with_the_device() -> None:
    unknown = Device("cpu", options={"device": "cpu", "compile": "somehow"})
    with pytest.raises(UnknownNameError, match="option 'compile' of device 'cpu' 'somehow'"):
        TorchRuntime(lambda source: None).completed(unknown)  # type: ignore[arg-type,return-value]


def test_an_option_that_pytorch_does_not_have_is_refused() -> None:
    """A mode in another precision, for example: types are those of the module."""
    half = Device("half", processors=("cpu",), options={"device": "cpu", "precision": "bf16"})
    with pytest.raises(UnknownNameError, match="PyTorch option of device 'half' 'precision'"):
        TorchRuntime().completed(half)
    with pytest.raises(InputError, match="threads must be a number >= 1, got 'two'"):
        TorchRuntime().completed(replace(half, options={"device": "cpu", "threads": "two"}))
