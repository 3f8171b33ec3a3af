"""Placeto's transfer: one policy for a family of graphs, tested on graphs of it that it never saw.

For each family a policy is trained on its first graphs and places the next ones without a query:
the most likely device at every step, from a random first placement as in training. It is compared,
on each of those graphs, with Placeto trained there (with and without that policy to start from),
draws of Placeto's untrained policy, local search, and the best single device. All values come from
the execution model `placeto`.

The authors' 3 x 32 graphs are not available. Our families resemble them: one architecture with a
random cell for each graph (as in ENAS, Pham et al. 2018), or translation models with random numbers
of layers and steps. The graphs are forward passes that include the output layers; the roofline
model gives their costs. In `ptb` each step has an output weight of its own; the paper's steps share
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from placewright.core.builder import GraphBuilder
from placewright.core.execution_models import Placeto
from placewright.core.graph import ComputationGraph
from placewright.core.problem import Problem
from placewright.errors import FileFormatError, InputError
from placewright.files.problem_file import content_sha256
from placewright.io.opened import shown_name
from placewright.profiling.roofline import roofline_problem
from placewright.report.learned_statistics import LearnedRun
from placewright.report.time_left import Report, no_report
from placewright.suites.learned import one_run, runs_file

CLUSTER = "2gpu"
GROUPS = 32
SETTINGS = {"groups": str(GROUPS)}
TRANSFERRED = "placeto, trained on other graphs of the family, no query"
FINE_TUNED = "placeto, from that policy, 1,000 evaluations"
RETRAINED = "placeto, trained on this graph, 1,000 evaluations"
SAMPLED = "placeto, updates off, 1,000 evaluations"
SEARCH = "local search, 1,000 evaluations"
LABELS = (TRANSFERRED, FINE_TUNED, RETRAINED, SAMPLED, SEARCH)
BUDGET = 1_000
_TRAINING = 0.3  # share of the time of a family
BYTES = 4.0  # of a number
FAMILIES = ("cifar10", "ptb", "nmt")
_NMT_GRAPHS = 21
_CELL_OPERATIONS = ["conv3", "conv5", "avgpool", "maxpool", "identity"]


@dataclass(frozen=True)
class TransferRuns:
    """Settings of the experiment: families, numbers of graphs, and episodes of training."""

    families: tuple[str, ...] = FAMILIES  # of `FAMILIES`
    training: int = 8  # graphs of each family that the policy learns on
    test: int = 8  # graphs that it never saw, numbered after those
    episodes: int = 400  # of the training of one family, over all its training graphs

    def label(self, family: str, index: int) -> str:
        """Name of the problem of graph number `index` of a family."""
        return f"{family} {index}"

    def file(self, family: str) -> str:
        """Name of the file that holds the policy of a family."""
        return f"placeto-{family}-{self.training}-graphs-{self.episodes}.safetensors"


def family_problem(family: str, index: int) -> Problem:
    """Problem of a family's graph on `CLUSTER`, with the execution model `placeto`."""
    return roofline_problem(family_graph(family, index), CLUSTER, execution_model=Placeto())


def run_transfer(
    transfer: TransferRuns, results: Path, policies: Path, progress: Report | None = None
) -> list[LearnedRun]:
    """Train one policy per family and test it; return the runs of all test graphs.

    Args:
        results: file of runs; a run that it already has is not repeated, others are added.
        policies: folder of the trained policies. An interrupted training continues. A policy of
            another training, such as one of an earlier version, is replaced by a new one.
        progress: called with the fraction done, and with the training or the graph that is done.

    Raises:
        InputError: the path of `policies` cannot stand in a placer's settings.
    """
    if ":" in str(policies):
        raise InputError(
            f"the folder of policies '{shown_name(policies)}' has ':' in its path, which divides "
            "the settings of a placer; take another folder"
        )
    rows: list[LearnedRun] = []
    numbers = range(transfer.training, transfer.training + transfer.test)
    report = progress or no_report
    file = runs_file(results)
    kept = file.rows
    for at, family in enumerate(transfer.families):
        problems = {index: family_problem(family, index) for index in numbers}
        names = _names(str(policies / transfer.file(family)))
        if any(identity not in kept for identity in _with_policy(problems, names)):
            _train(transfer, family, policies, _part(report, at, len(transfer.families)))
        for index, problem in problems.items():
            for label, (placer, evaluations) in names.items():
                identity = (content_sha256(problem), evaluations, label, 0)
                if identity not in kept:
                    run = one_run(transfer.label(family, index), problem, evaluations, placer, 0)
                    file.add([replace(run, placer=label)])
                rows.append(kept[identity])
            placed = (index - transfer.training + 1) / transfer.test
            done = at + _TRAINING + (1.0 - _TRAINING) * placed
            report(done / len(transfer.families), transfer.label(family, index))
    return rows


def _names(policy: str) -> dict[str, tuple[str, int]]:
    """The runs on each test graph: label -> (placer with settings, evaluations).

    Args:
        policy: path of the file with the family's policy.
    """
    settings = ":".join(f"{key}={value}" for key, value in SETTINGS.items())
    ours = f"placeto:{settings}:homogeneous_starts=false"
    return {
        TRANSFERRED: (f"{ours}:policy={policy}", 1),
        FINE_TUNED: (f"{ours}:policy={policy}", BUDGET),
        RETRAINED: (ours, BUDGET),
        SAMPLED: (f"{ours}:updates=false", BUDGET),
        SEARCH: ("local-search", BUDGET),
    }


def _with_policy(
    problems: dict[int, Problem], names: dict[str, tuple[str, int]]
) -> Iterator[tuple[str, int, str, int]]:
    """Yield the identity of each run that needs the family's policy.

    An identity is (hash of the problem's content, evaluations, label, seed), as in `LearnedRun`.
    """
    for problem in problems.values():
        key = content_sha256(problem)
        for label in (TRANSFERRED, FINE_TUNED):
            yield key, names[label][1], label, 0


def _part(report: Report, at: int, families: int) -> Report:
    """A callback for the training of family number `at`, which reports its share of the whole.

    Args:
        families: number of families.
    """
    return lambda done, text: report((at + _TRAINING * done) / families, f"training, {text}")


def _train(transfer: TransferRuns, family: str, policies: Path, report: Report) -> None:
    from placewright.placers.learned.training import TrainingOptions, train

    policies.mkdir(parents=True, exist_ok=True)
    again = partial(
        train,
        "placeto",
        [family_problem(family, index) for index in range(transfer.training)],
        policies / transfer.file(family),
        episodes=transfer.episodes,
        settings=SETTINGS,
        progress=report,
    )
    try:
        again()
    except FileFormatError:
        again(options=TrainingOptions(resume=False))


def family_graph(family: str, index: int) -> ComputationGraph:
    """Graph number `index` of a family, the same on every call.

    In `nmt` all graphs differ; in the others each has a random cell, so that equal ones are rare.
    """
    if family == "nmt":
        return nmt_graph(*nmt_sizes(index))
    return _MAKERS[family](np.random.default_rng((FAMILIES.index(family), index)))


def cifar10_graph(rng: np.random.Generator) -> ComputationGraph:
    """Six copies of one random convolutional cell of five nodes; images 32 x 32, batch 64."""
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
    """A random recurrent cell of eight nodes, unrolled over ten steps; width 850, batch 64."""
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


def nmt_sizes(index: int) -> tuple[int, int]:
    """Layers, 2 to 4, and steps, 4 to 10, of graph number `index` < 21.

    Sizes that an earlier graph has are drawn again, since a policy must not have seen the graphs of
    its test.
    """
    if not 0 <= index < _NMT_GRAPHS:
        raise ValueError(f"there are {_NMT_GRAPHS} graphs of nmt, got number {index}")
    drawn: dict[tuple[int, int], None] = {}
    for number in range(index + 1):
        rng = np.random.default_rng((FAMILIES.index("nmt"), number))
        while len(drawn) <= number:
            drawn[int(rng.integers(2, 5)), int(rng.integers(4, 11))] = None
    return list(drawn)[index]


def nmt_graph(layers: int, steps: int) -> ComputationGraph:
    """Translation model: LSTM encoder and decoder with attention, unrolled over steps, batch 64."""
    build = _Layers()
    batch, width = 64, 512
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


_MAKERS: dict[str, Callable[[np.random.Generator], ComputationGraph]] = {
    "cifar10": cifar10_graph,
    "ptb": ptb_graph,
}


class _Layers:
    """Adds ops with the flops and bytes of layers; its methods return indices of output tensors."""

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
        """Add one LSTM layer: for each step a product, and one op for the cell's elementwise work.

        Args:
            xs: input tensor of each step.
            weight: shared by the steps.

        Returns:
            Output tensor of each step.
        """
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
