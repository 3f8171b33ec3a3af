"""Which calls draw random numbers, and that evaluated attention and layers run without Python."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch_programs import inference_program

from placewright.errors import RuntimeFailure
from placewright.execution.runner import ConcurrentRunner
from placewright.frameworks.torch.reading.calls import draws_random_numbers
from placewright.frameworks.torch.running.functions import ScriptedFunction, SteppedFunction
from placewright.frameworks.torch.running.runtime import TorchRuntime
from placewright.frameworks.torch.running.segments import SegmentModule
from placewright.frameworks.torch.training.step import read_training
from placewright.testing.framework_contract import random_segments

aten = torch.ops.aten
Called = Callable[[torch.fx.Graph, torch.fx.Node], torch.fx.Node]


def attention(dropout: float) -> Called:
    return lambda graph, x: graph.call_function(
        aten.scaled_dot_product_attention.default, (x, x, x, None, dropout)
    )


def dropout(is_training: bool) -> Called:
    return lambda graph, x: graph.call_function(aten.dropout.default, (x, 0.5, is_training))


def recurrent(rate: float, is_training: bool) -> Called:
    arguments = ([], True, 1, rate, is_training, False, True)
    return lambda graph, x: graph.call_function(aten.gru.input, (x, x, *arguments))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (attention(0.0), False),
        (attention(0.1), True),
        (lambda g, x: g.call_function(aten.scaled_dot_product_attention.default, (x, x, x)), False),
        (
            lambda g, x: g.call_function(
                aten.scaled_dot_product_attention.default, (x, x, x), {"dropout_p": 0.2}
            ),
            True,
        ),
        (dropout(False), False),
        (dropout(True), True),
        (recurrent(0.3, False), False),
        (recurrent(0.3, True), True),
        (recurrent(0.0, True), False),
        (lambda g, x: g.call_function(aten.bernoulli.p, (x, 0.0)), True),
        (lambda g, x: g.call_function(aten.rand_like.default, (x,)), True),
        (lambda g, x: g.call_function(aten.relu.default, (x,)), False),
    ],
)
def test_what_draws_random_numbers(call: Called, expected: bool) -> None:
    graph = torch.fx.Graph()
    assert draws_random_numbers(call(graph, graph.placeholder("x"))) is expected


class Attention(nn.Module):
    """A transformer's layer and a recurrent one, with dropout, as libraries write them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.project = nn.Linear(16, 48)
        self.drop = nn.Dropout(0.5)
        self.recurrent = nn.GRU(16, 16, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """States of every position."""
        query, key, value = self.project(x).chunk(3, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        states: torch.Tensor = self.recurrent(self.drop(mixed))[0]
        return states


def test_an_evaluated_transformer_runs_without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Called from Python, each small operator of two workers waits for the other's."""
    module, x = Attention().eval(), torch.randn(2, 5, 16)
    program, graph, source = inference_program(module, (x,))
    runtime = TorchRuntime(lambda _: program)
    model = runtime.load(source, graph)
    devices = [device for device in runtime.discover() if ":" in device.name][:2]
    used: list[type] = []
    for kind in (ScriptedFunction, SteppedFunction):

        def noted(self: object, *arguments: object, kind: type = kind, run: object = kind.run):  # type: ignore[no-untyped-def]
            used.append(kind)
            return run(self, *arguments)  # type: ignore[operator]

        monkeypatch.setattr(kind, "run", noted)
    segments = random_segments(model.graph, len(devices), np.random.default_rng(0), ops=3)
    with ConcurrentRunner(model, segments, devices) as runner:
        found = runner.run([x.numpy()]).outputs[0]
    with torch.no_grad():
        np.testing.assert_allclose(found, module(x).numpy(), rtol=1e-5, atol=1e-6)
    assert set(used) == {ScriptedFunction}


def test_attention_without_dropout_can_be_trained() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 24)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            query, key, value = self.layer(x).view(1, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
            return nn.functional.scaled_dot_product_attention(query, key, value).square().mean()

    module, x = Loss(), torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0))
    program = read_training(module, (x,)).program
    loss = program.module(*program.state.values(), x)[0]
    assert float(loss) == pytest.approx(float(module(x).detach()), rel=1e-5)


def test_an_interrupted_run_leaves_no_tensors_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    added = graph.call_function(aten.add.Tensor, (x, y))
    added.meta["val"] = torch.zeros(2)
    graph.output([added])
    module = torch.fx.GraphModule({}, graph)
    function = ScriptedFunction(SegmentModule(module, n_inputs=2, state=()))
    state = function.state_box([])
    with pytest.raises(RuntimeFailure):
        function.run([torch.ones(2), torch.ones(3)], state)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(function, "_function", interrupted)
        with pytest.raises(KeyboardInterrupt):
            function.run([torch.zeros(2), torch.ones(2)], state)
    assert len(state.entering) == 0
    assert function.run([torch.ones(2), torch.ones(2)], state)[0].tolist() == [2.0, 2.0]
