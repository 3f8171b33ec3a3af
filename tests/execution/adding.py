"""A runtime whose ops add numbers, and plans for it: what tests of runners run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from signatures import ascending_signature

from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Device
from placewright.core.graph import ComputationGraph
from placewright.core.source import Signature
from placewright.execution.runtime import OpSegment, graph_outputs

Hook = Callable[[int], None]


def nothing(op: int) -> None:
    """The default hook."""


@dataclass
class Adding:
    """A runtime whose every op adds its inputs, and its own number plus one."""

    graph: ComputationGraph
    hook: Hook = nothing
    threads: dict[int, str] = field(default_factory=dict)
    keeps_state = False

    @property
    def signature(self) -> Signature:
        return ascending_signature(self.graph)

    def input_dtypes(self) -> list[np.dtype[Any]]:
        return [np.dtype(np.float64) for _ in self.signature.inputs]

    def compile(self, segments: Sequence[OpSegment], devices: Sequence[Device]) -> list[Any]:
        return [AddingSegment(self, segment) for segment in segments]

    def from_host(self, array: Any) -> Any:
        return array

    def to_host(self, tensor: Any) -> Any:
        return np.asarray(tensor)

    def worker_setup(self, device: Device) -> Callable[[], None]:
        return lambda: None


@dataclass
class AddingSegment:
    model: Any
    segment: OpSegment

    def instance(self) -> AddingSegment:
        return self

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        graph, values = self.model.graph, dict(zip(self.segment.inputs, inputs, strict=True))
        for op in self.segment.ops:
            self.model.hook(op)
            self.model.threads[op] = threading.current_thread().name
            total = sum(values[t] for t in graph.op_inputs.row(op).tolist()) + op + 1
            values |= dict.fromkeys(graph.op_outputs.row(op).tolist(), total)
        return [values[tensor] for tensor in self.segment.outputs]


def layered(edges: Sequence[tuple[int, int]], n_ops: int) -> ComputationGraph:
    builder = GraphBuilder()
    x = builder.add_input(4)
    tensors: list[int] = []
    for op in range(n_ops):
        inputs = [tensors[a] for a, b in edges if b == op] or [x]
        builder.add_op(f"op {op}", "Add", inputs=inputs)
        has_reader = any(a == op for a, _ in edges)
        tensors.append(builder.add_tensor(op, 4, is_output=not has_reader))
    return builder.build()


def expected(graph: ComputationGraph, x: float) -> list[float]:
    values = {int(t): x for t in np.flatnonzero(graph.tensor_producers < 0)}
    for op in graph.topological_order.tolist():
        total = sum(values[t] for t in graph.op_inputs.row(op).tolist()) + op + 1
        values |= dict.fromkeys(graph.op_outputs.row(op).tolist(), total)
    return [values[t] for t in graph_outputs(graph)]


DEVICES = (Device("a"), Device("b"), Device("c"))


@st.composite
def plans(draw: st.DrawFn) -> tuple[ComputationGraph, list[tuple[int, list[int]]]]:
    n_ops = draw(st.integers(1, 9))
    pairs = [(a, b) for b in range(n_ops) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    devices = draw(st.lists(st.integers(0, 2), min_size=n_ops, max_size=n_ops))
    parts: list[tuple[int, list[int]]] = []
    for op, device in enumerate(devices):
        if parts and parts[-1][0] == device and draw(st.booleans()):
            parts[-1][1].append(op)
        else:
            parts.append((device, [op]))
    return layered(edges, n_ops), parts


class Unlucky(Adding):
    """Fails in one op for the samples whose input is in `bad`."""

    def __init__(self, graph: ComputationGraph, bad: set[float], op: int) -> None:
        super().__init__(graph)
        self.bad, self.op = bad, op

    def compile(self, segments: Any, devices: Any) -> list[Any]:
        return [_Failing(self, inner) for inner in super().compile(segments, devices)]


class _Failing:
    def __init__(self, model: Unlucky, inner: Any) -> None:
        self.model, self.inner = model, inner

    def instance(self) -> _Failing:
        return self

    def run(self, inputs: Any) -> list[Any]:
        if self.model.op in self.inner.segment.ops and float(inputs[0]) in self.model.bad:
            raise ValueError("no luck")
        return self.inner.run(inputs)


class Compiling(Adding):
    """An adding model whose segments may take 30 s to compile at their first run."""

    def compile(self, segments: Any, devices: Any) -> list[Any]:
        return [_CompiledAtFirst(self, segment) for segment in segments]


class _CompiledAtFirst(AddingSegment):
    first_run_seconds = 30.0
