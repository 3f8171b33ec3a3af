"""Training steps of small modules in split plans, and the batches that they train on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

import placewright as pw
from placewright.core.arrays import frozen_floats
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.execution.runtime import Runtime
from placewright.frameworks.torch.running.runtime import TorchRuntime
from placewright.profiling.units import light_ops_joined
from placewright.session.loaded.steps import LoadedStep
from placewright.session.plans import plan_of


class Residual(nn.Module):
    """A small ResNet with its loss: a stem, two residual blocks, a head."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + torch.relu(norm(conv(x)))
        return nn.functional.cross_entropy(self.head(self.dropout(x.mean((2, 3)))), labels)


class Gpt(nn.Module):
    """Two blocks of causal attention with tied embedding and head, and their loss."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(17, 16), nn.Dropout(dropout)
        # A bias of the keys has no gradient but rounding, which AdamW would follow.
        self.inner = nn.ModuleList(nn.Linear(16, 48, bias=False) for _ in range(2))
        self.outer = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.head = nn.Linear(16, 17, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for inner, outer, norm in zip(self.inner, self.outer, self.norms, strict=True):
            q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2)
                       for part in inner(norm(x)).chunk(3, -1))  # fmt: skip
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.dropout(outer(mixed.transpose(1, 2).flatten(2)))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def made(kind: Callable[..., nn.Module], *given: float) -> nn.Module:
    torch.manual_seed(3)
    return kind(*given).train()


def batches(kind: type[nn.Module], count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    for _ in range(count):
        if kind is Residual:
            images = torch.randn(4, 3, 6, 6, generator=generator)
            yield images, torch.randint(0, 4, (4,), generator=generator)
        else:
            words = torch.randint(0, 17, (2, 7), generator=generator)
            yield words[:, :-1], words[:, 1:]


def cores_of(count: int, runtime: Runtime | None = None) -> tuple[Device, ...]:
    """The first cores of this machine, each with a memory of its own."""
    runtime = runtime or TorchRuntime()
    found = [device for device in runtime.discover() if ":" in device.name]
    return tuple(replace(device, pool=None) for device in found[:count])


def plan_of_step(module: nn.Module, batch: Any, *, seed: int | None, **said: Any) -> Plan:
    """A random split over two cores; without a seed all on the first."""
    model = pw.read(module, batch, objective="training", runtime="torch", **said)
    devices = cores_of(2)
    ends = [*(device.name for device in devices), "host"]
    links = tuple(Link(a, b, 1e-6) for a in ends for b in ends if a != b)
    units = light_ops_joined(model.graph)
    problem = Problem(
        model.graph,
        Cluster(devices, links),
        CostTable(frozen_floats(np.full((units.n_groups, len(devices)), 1e-6)), "measured"),
        units,
        objective="training",
        source=model.source,
    )
    of_class = np.zeros(problem.colocation.n_groups, dtype=np.int64)
    if seed is not None:
        of_class = np.random.default_rng(seed).integers(len(devices), size=len(of_class))
    found = Solution(Placement.of(of_class[problem.colocation.group_of]), 1.0, "feasible", 0.0)
    return plan_of(problem, found, PlacerRecord("manual", "0", 0, 0, 0.0), "torch")


def loaded(kind: type[nn.Module], *, seed: int | None = 1, **said: Any) -> LoadedStep:
    """A loaded step; options of `pw.load` are those of training."""
    of_load = {key: said.pop(key) for key in ("learning_rate",) if key in said}
    dropout = (0.3,) if said.get("dropout") else ()
    plan = plan_of_step(made(kind, *dropout), next(batches(kind, 1)), seed=seed, **said)
    step: LoadedStep = pw.load(plan, **of_load)
    return step
