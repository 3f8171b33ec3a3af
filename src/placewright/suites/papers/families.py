"""Families of graphs in the spirit of Placeto's data: cells found by ENAS, and translation models.

The authors' 3 x 32 graphs could not be had. A family here is one architecture with a cell that is
drawn anew for each graph (Pham et al. 2018: two inputs and an operation for each node of the cell),
or whose layers and steps are drawn. Costs are the roofline's, the forward pass with its outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from placewright.core.builder import GraphBuilder
from placewright.core.graph import ComputationGraph

BYTES = 4.0  # of a number
FAMILIES = ("cifar10", "ptb", "nmt")


def family_graph(family: str, index: int) -> ComputationGraph:
    """Graph number `index` of a family; the same on every call."""
    rng = np.random.default_rng((FAMILIES.index(family), index))
    return _MAKERS[family](rng)


def cifar10_graph(rng: np.random.Generator) -> ComputationGraph:
    """Six times one convolutional cell of five nodes, images 32 x 32, batch 64."""
    build = _Layers()
    batch, channels, size = 64, 36, 32
    cell = [(int(rng.integers(0, n + 2)), int(rng.integers(0, n + 2))) for n in range(5)]
    kinds = [tuple(rng.choice(_CELL_OPERATIONS, size=2).tolist()) for _ in range(5)]
    image = build.graph.add_input(BYTES * batch * 3 * size**2, shape=(batch, 3, size, size))
    before = [build.convolution([image], batch, 3, channels, size, 3)] * 2
    for number in range(6):
        if number in (2, 4):  # half the size, twice the channels
            channels, size = 2 * channels, size // 2
            before = [
                build.convolution([x], batch, channels // 2, channels, size, 1) for x in before
            ]
        states, used = list(before), [False] * 7
        for node in range(5):
            parts = []
            for source, kind in zip(cell[node], kinds[node], strict=True):
                used[source] = True
                parts.append(build.cell_operation(kind, states[source], batch, channels, size))
            states.append(build.elementwise("Add", parts, batch * channels * size**2))
        loose = [state for state, taken in zip(states[2:], used[2:], strict=True) if not taken]
        joined = build.elementwise("Concat", loose, batch * channels * size**2 * len(loose))
        out = build.convolution([joined], batch, channels * len(loose), channels, size, 1)
        before = [before[1], out]
    build.matmul([before[1]], batch, channels, 10, is_output=True)
    return build.graph.build()


def ptb_graph(rng: np.random.Generator) -> ComputationGraph:
    """A recurrent cell of eight nodes over ten steps, 850 wide, batch 64."""
    build = _Layers()
    batch, width, steps, nodes = 64, 850, 10, 8
    parents = [int(rng.integers(0, node + 1)) for node in range(nodes)]  # 0 is the cell's input
    kinds = rng.choice(["Tanh", "Relu", "Sigmoid", "Identity"], size=nodes).tolist()
    weights = [build.graph.add_weight(BYTES * 2 * width * width) for _ in range(nodes + 1)]
    tokens = build.graph.add_input(BYTES * batch * width * steps, shape=(batch, steps, width))
    hidden = build.elementwise("Slice", [tokens], batch * width)
    for step in range(steps):
        x = build.elementwise("Slice", [tokens], batch * width)
        states = [build.matmul([x, hidden], batch, 2 * width, width, weights[0])]
        for node in range(nodes):
            gate = build.matmul([states[parents[node]]], batch, width, 2 * width, weights[node + 1])
            states.append(build.elementwise(kinds[node], [gate], batch * width))
        ends = [states[i] for i in range(1, nodes + 1) if i not in parents]
        hidden = build.elementwise("Add", ends, batch * width)
        build.matmul([hidden], batch, width, 10_000, is_output=True, name=f"logits{step}")
    return build.graph.build()


def nmt_graph(rng: np.random.Generator) -> ComputationGraph:
    """Encoder and decoder of 2 to 4 LSTM layers over 4 to 10 steps with attention, batch 64."""
    build = _Layers()
    batch, width = 64, 512
    layers, steps = int(rng.integers(2, 5)), int(rng.integers(4, 11))
    sides = [
        [build.graph.add_weight(BYTES * 8 * width * width) for _ in range(layers)] for _ in range(2)
    ]
    source = build.graph.add_input(BYTES * batch * steps, shape=(batch, steps))
    target = build.graph.add_input(BYTES * batch * steps, shape=(batch, steps))
    xs = [build.elementwise("Gather", [source], batch * width) for _ in range(steps)]
    for weight in sides[0]:
        xs = build.lstm(xs, weight, batch, width)
    memory = build.elementwise("Concat", xs, batch * width * steps)
    ys = [build.elementwise("Gather", [target], batch * width) for _ in range(steps)]
    for weight in sides[1]:
        ys = build.lstm(ys, weight, batch, width)
    head = build.graph.add_weight(BYTES * 2 * width * 16_000)
    for y in ys:
        scores = build.matmul([y, memory], batch, width, steps)
        context = build.matmul([scores, memory], batch, steps, width)
        build.matmul([context, y], batch, 2 * width, 16_000, head, is_output=True)
    return build.graph.build()


_CELL_OPERATIONS = ["conv3", "conv5", "avgpool", "maxpool", "identity"]
_MAKERS: dict[str, Callable[[np.random.Generator], ComputationGraph]] = {
    "cifar10": cifar10_graph,
    "ptb": ptb_graph,
    "nmt": nmt_graph,
}


class _Layers:
    """Adds ops with the arithmetic and the bytes of layers; each gives its output tensor."""

    def __init__(self) -> None:
        self.graph = GraphBuilder()
        self._n_ops = 0

    def elementwise(self, kind: str, inputs: list[int], numbers: float) -> int:
        return self._add(kind, inputs, flops=numbers * len(inputs), numbers=numbers)

    def matmul(
        self,
        inputs: list[int],
        rows: int,
        inner: int,
        columns: int,
        weight: int | None = None,
        *,
        is_output: bool = False,
        name: str = "",
    ) -> int:
        weights = [] if weight is None else [weight]
        if weight is None and len(inputs) == 1:
            weights = [self.graph.add_weight(BYTES * inner * columns)]
        return self._add(
            "MatMul",
            inputs,
            flops=2.0 * rows * inner * columns,
            numbers=rows * columns,
            weights=weights,
            is_output=is_output,
            name=name,
        )

    def convolution(
        self, inputs: list[int], batch: int, before: int, after: int, size: int, kernel: int
    ) -> int:
        return self._add(
            "Convolution",
            inputs,
            flops=2.0 * batch * size**2 * kernel**2 * before * after,
            numbers=batch * after * size**2,
            weights=[self.graph.add_weight(BYTES * kernel**2 * before * after)],
        )

    def cell_operation(self, kind: str, x: int, batch: int, channels: int, size: int) -> int:
        if kind == "identity":
            return x
        if kind.startswith("conv"):
            return self.convolution([x], batch, channels, channels, size, int(kind[-1]))
        numbers = batch * channels * size**2
        return self._add(kind, [x], flops=9.0 * numbers, numbers=numbers)

    def lstm(self, xs: list[int], weight: int, batch: int, width: int) -> list[int]:
        """One layer over all steps: a product and the cell's arithmetic for each."""
        outputs: list[int] = []
        for x in xs:
            gates = self.matmul([x, *outputs[-1:]], batch, 2 * width, 4 * width, weight)
            outputs.append(
                self._add("LSTMGates", [gates], flops=12.0 * batch * width, numbers=batch * width)
            )
        return outputs

    def _add(
        self,
        kind: str,
        inputs: list[int],
        *,
        flops: float,
        numbers: float,
        weights: list[int] | None = None,
        is_output: bool = False,
        name: str = "",
    ) -> int:
        self._n_ops += 1
        op = self.graph.add_op(
            name or f"{kind}{self._n_ops}", kind, inputs=inputs, flops=flops, weights=weights or []
        )
        return self.graph.add_tensor(
            op, BYTES * numbers, shape=(int(numbers),), dtype="f32", is_output=is_output
        )
