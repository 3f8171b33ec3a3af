"""Small PyTorch programs for tests, captured with PyTorch's own tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from signatures import ascending_signature
from torch import nn

from placewright.core.builder import GraphBuilder
from placewright.core.graph import ComputationGraph
from placewright.core.source import ModelSource
from placewright.execution.exported_program import OwnClasses
from placewright.frameworks.torch.reading.fx_graph import FxRules, add_fx_graph
from placewright.frameworks.torch.reading.fx_program import FxProgram, plain_call
from placewright.frameworks.torch.reading.reader import _exported, functional, read_inference


def read_torch(
    model: Any, examples: Sequence[torch.Tensor] = (), **options: Any
) -> tuple[ComputationGraph, ModelSource]:
    """Graph and source of a module or a ``.pt2`` file."""
    read = read_inference(model, examples, **options)
    return read.graph, read.source


def functional_program(model: Any, examples: Sequence[torch.Tensor] = ()) -> Any:
    """A module as `read_inference` exports it: without in-place operators."""
    return functional(_exported(model, examples, OwnClasses()))


def inference_program(
    module: nn.Module, examples: Sequence[torch.Tensor]
) -> tuple[FxProgram, ComputationGraph, ModelSource]:
    """An exported module with its graph."""
    exported = functional_program(module, examples)
    signature = exported.graph_signature
    held: dict[str, Any] = {**exported.constants, **exported.state_dict}
    targets = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    inputs = tuple(str(name) for name in signature.user_inputs)
    program = FxProgram(
        torch.fx.GraphModule(nn.Module(), exported.graph),
        {name: held[target].detach() for name, target in targets.items()},
        inputs,
        tuple(str(name) for name in signature.user_outputs),
        {},
        dict(zip(inputs, examples, strict=True)),
        plain_call(exported),
    )
    graph, source = read_torch(module, examples)
    return program, graph, source


def step_program() -> tuple[FxProgram, ComputationGraph, ModelSource]:
    """One step of gradient descent with momentum on a two-layer network, traced by hand.

    The second parameter's new value is made before the last reader of its old value, a view.
    """
    generator = torch.Generator().manual_seed(3)
    shapes = {"w1": (6, 8), "w2": (8, 4), "m1": (6, 8), "m2": (8, 4)}
    state = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    examples = {
        "x": torch.randn(5, 6, generator=generator),
        "y": torch.randn(5, 4, generator=generator),
    }

    def step(w1: Any, w2: Any, m1: Any, m2: Any, x: Any, y: Any) -> Any:
        flipped = torch.ops.aten.t.default(w2)
        hidden = torch.ops.aten.tanh.default(torch.ops.aten.mm.default(x, w1))
        error = torch.ops.aten.sub.Tensor(torch.ops.aten.mm.default(hidden, w2), y)
        loss = torch.ops.aten.mean.default(torch.ops.aten.mul.Tensor(error, error))
        gradient = torch.ops.aten.mul.Tensor(error, 2.0 / error.numel())
        g2 = torch.ops.aten.mm.default(torch.ops.aten.t.default(hidden), gradient)
        new_m2 = torch.ops.aten.add.Tensor(torch.ops.aten.mul.Tensor(m2, 0.9), g2)
        new_w2 = torch.ops.aten.sub.Tensor(w2, torch.ops.aten.mul.Tensor(new_m2, 0.1))
        back = torch.ops.aten.mm.default(gradient, flipped)
        slope = torch.ops.aten.tanh_backward.default(back, hidden)
        g1 = torch.ops.aten.mm.default(torch.ops.aten.t.default(x), slope)
        new_m1 = torch.ops.aten.add.Tensor(torch.ops.aten.mul.Tensor(m1, 0.9), g1)
        new_w1 = torch.ops.aten.sub.Tensor(w1, torch.ops.aten.mul.Tensor(new_m1, 0.1))
        return loss, new_w1, new_w2, new_m1, new_m2

    from torch.fx.experimental.proxy_tensor import make_fx

    module = make_fx(step, tracing_mode="fake")(*state.values(), *examples.values())
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    held = dict(zip(names, state.values(), strict=False))
    results = next(node for node in module.graph.nodes if node.op == "output").args[0]
    inputs = tuple(names[len(state) :])
    updates = dict(zip(held, [node.name for node in results[1:]], strict=True))
    builder = GraphBuilder()
    weights = {n: builder.add_weight(t.numel() * t.element_size()) for n, t in held.items()}
    ops = add_fx_graph(builder, module.graph, FxRules(weights=weights, fold_constants=False))
    for tensor in ops.tensors_of[results[0].name]:
        builder.mark_output(tensor)
    program = FxProgram(
        module,
        held,
        inputs,
        (results[0].name,),
        updates,
        dict(zip(inputs, examples.values(), strict=True)),
        list,
    )
    graph = builder.build()
    return program, graph, ModelSource("step", "", "torch", signature=ascending_signature(graph))


class Branches(nn.Module):
    """Convolutions, normalisation, a split, an index, tied weights and a view of a weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.normal = nn.BatchNorm2d(8)
        self.left = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(8, 10)
        self.tied = nn.Embedding(10, 8)
        self.tied.weight = self.head.weight
        self.register_buffer("order", torch.tensor([3, 1, 0]))

    def forward(self, x: torch.Tensor, words: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Scores and the sum of chosen words."""
        shared = torch.relu(self.normal(self.first(x)))
        a, b = shared.split([4, 4], 1)
        joined = torch.cat([self.left(a), b * 0.5], 1)
        values, _ = joined.flatten(2).max(2)
        scores = self.head(values)
        embedded = self.tied(words)
        return torch.softmax(scores, -1)[:, self.order], embedded.sum(1) @ self.head.weight.t()


def branches() -> tuple[FxProgram, ComputationGraph, ModelSource]:
    """`Branches` in evaluation mode."""
    generator = torch.Generator().manual_seed(1)
    examples = (
        torch.randn(2, 3, 12, 12, generator=generator),
        torch.randint(0, 10, (2, 5), generator=generator),
    )
    return inference_program(Branches().eval(), examples)
