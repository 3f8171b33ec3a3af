"""Programs as others export them: numbers, assertions, branches, loops, state, sub-modules.

Each is saved, read from its file, run with every op on another device than the one before it, and
compared with the exported module itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_programs import read_torch

from placewright.errors import FileFormatError
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import MeasuresMemory, segments_of_ops
from placewright.frameworks.registry import make_runtime
from placewright.frameworks.torch.pt2.grammar import expression


class Item(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().to(torch.int64).item() + 1


class Asserted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = x.abs().sum().to(torch.int64).item()
        torch._check(count >= 0)
        torch._check(count < 10000)
        torch._assert_async(x.abs().sum() >= 0)
        return torch.relu(x) + count


class DataDependentSize(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.nonzero(x > 0)[:, 0]
        rows = torch.cat([found, torch.arange(4)])  # one more than the size of what was found
        return torch.zeros(4).index_add(0, rows, rows.float()) + torch.zeros(rows.shape[0]).sum()


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, (x,))
        return self.layer(found) + 1


class Loop(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.while_loop import while_loop

        start = (torch.tensor(0), x)
        found: torch.Tensor = while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), start)[1]
        return found + 1


class Mapped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.map import map as mapped

        found: torch.Tensor = mapped(lambda row: row * 2, x.reshape(2, 2))
        return found.sum(0)


class Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.ones(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int, None]:
        return x * self.factor + torch.tensor([1.0, 2.0, 3.0, 4.0]), 7, None


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        found: torch.Tensor = self.layer(x)
        return found + self.count


class SubModules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            found = self.layer(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = self.layer(found)
        return torch.relu(found.float())


class Unusual(nn.Module):
    """Operators that computations seldom use, under names that only PyTorch gives them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (slope,) = torch.gradient(x.reshape(2, 2).T, dim=0)
        return slope @ x.reshape(2, 2)


class NamedFreely(nn.Module):
    """Names of modules and keys of results that are no identifiers."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"out-1": nn.Linear(4, 4), "größe": nn.Linear(4, 4)})

    def forward(self, x: torch.Tensor) -> Any:
        first = self.heads["out-1"](x)
        return {"0": first, 1: torch.relu(self.heads["größe"](first)), "out-1": first + 1}


MODULES = (
    Item, Asserted, DataDependentSize, Branch, Loop, Mapped, Constants, Counting, SubModules,
    Unusual, NamedFreely,
)  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
def test_it_is_read_and_runs_split(module: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    example = (torch.arange(4.0) + 1,)
    path = tmp_path / "foreign.pt2"
    torch.export.save(torch.export.export(module().eval(), example), path)
    graph, source = read_torch(path)
    runtime = make_runtime("torch")
    devices = [device for device in runtime.discover() if device.name.startswith("cpu:")][:2]
    model = runtime.load(source, graph)
    inputs = [np.abs(values) + 1 for values in model.random_inputs(np.random.default_rng(0))]
    parts = [(at % len(devices), [op]) for at, op in enumerate(graph.topological_order.tolist())]
    segments = segments_of_ops(graph, parts)
    with ConcurrentRunner(model, segments, devices) as runner:
        found = runner.run(inputs).outputs
    expected = model.plain(devices[0])(inputs)
    assert len(found) == len(expected) >= 1
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5)
    assert np.isfinite(model.profiler(devices[0])()).all()
    assert isinstance(model, MeasuresMemory)
    assert (model.memory_peaks(segments, devices) > 0).any()


@pytest.mark.parametrize(
    "size",
    [
        "4",
        "s0",
        "Symbol('u0', integer=True)",
        "Add(Symbol('u0', integer=True, positive=True), Integer(-4))",
        "Mul(Integer(2), Pow(Symbol('s1', integer=True), Integer(2)))",
        "Pow(Add(Pow(Symbol('u0', integer=True), Integer(2)), Integer(1)), Integer(4))",
        "FloorDiv(Symbol('u12', integer=True), Integer(2))",
        "LessThan(Symbol('u0', integer=True), Integer(9999))",
    ],
)
def test_a_size_that_is_computed_passes_as_it_is(size: str) -> None:
    assert expression(size) == size


@pytest.mark.parametrize(
    "size",
    [
        "__import__('os').system('touch PWNED')",
        "Symbol('u0').__class__",
        "Symbol(__import__('os').name)",
        "Symbol('u0; x')",
        "Symbol('u0', integer=open('/etc/passwd'))",
        "Symbol('u0', function=True)",
        "Lambda(x, x)",
        "Add(*[1])",
        "Add(**{})",
        "Add(1, lambda: 1)",
        "[x for x in ()]",
        "Pow(Integer(9), Pow(Integer(9), Integer(9)))",
        "Pow(Integer(9), Integer(99999999))",
        "Pow(" * 12 + "Integer(9)" + ", Integer(8))" * 12,
        "Pow(Add(Pow(Symbol('u0'), Integer(4)), Integer(1)), Integer(4))",
        "Integer('1')",
        "Integer(True)",
        "Integer(99999999999999999999)",
        "f'{1}'",
        "Max(u0)",
        "sympify('1')",
        "Add(" * 100 + ")" * 100,
        "Add(" + "Integer(1)," * 1000 + ")",
        "",
        "\x00",
    ],
)
def test_a_size_that_is_code_is_refused(size: str) -> None:
    with pytest.raises(FileFormatError, match="computes sizes"):
        expression(size)
