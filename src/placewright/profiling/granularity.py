"""Coarser units by module path: whole layers, or modules that a device can hold as a whole."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.graph import FORWARD, ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.errors import FieldError
from placewright.profiling.units import common_units, numbered_layers

Granularity = Literal["op", "module", "layer"]
GRANULARITIES: tuple[str, ...] = get_args(Granularity)
_SCALAR_BYTES = 8.0  # a number may be read on any device


def with_granularity(problem: Problem, granularity: str) -> Problem:
    """The problem with coarser units, whose costs are the sums of those of its own units.

    Args:
        problem: with its own units.
        granularity: ``"op"`` keeps them, ``"layer"`` joins those of a numbered layer, ``"module"``
            those of a module (see `modules_kept_whole`).

    Raises:
        FieldError: the ops have no module paths, or the problem is a training step.
    """
    if granularity == "op":
        return problem
    graph = problem.graph
    if not any(graph.op_modules):
        raise FieldError(
            "granularity",
            f"{granularity}: the ops of this model have no module paths; place a PyTorch module, a "
            ".pt2 file or a zoo model, or take op",
        )
    if (graph.op_phases != FORWARD).any():
        raise FieldError(
            "granularity",
            f"{granularity}: the backward ops of a training step follow its forward ops in "
            "reverse, so that no part of it moves as a whole; take op",
        )
    labels = layer_labels(graph) if granularity == "layer" else modules_kept_whole(graph)
    joined = common_units(graph, [problem.units, Grouping.from_labels(labels)])
    first = problem.units.members.indices[problem.units.members.indptr[:-1]]
    return problem.coarsened(Grouping.from_labels(joined.group_of[first]))


def layer_labels(graph: ComputationGraph) -> IntArray:
    """A label per op: its numbered layer, else its module; an op outside of all has its own."""
    layers = numbered_layers(graph.op_modules)
    return _numbered(
        [
            layer or path or f"#{op}"
            for op, (layer, path) in enumerate(zip(layers, graph.op_modules, strict=True))
        ]
    )


def modules_kept_whole(graph: ComputationGraph) -> IntArray:
    """A label per op: the module that stays whole so that Accelerate can run the placement.

    A library that moves modules runs the ops between them where their inputs lie. So a module is
    opened, and its children move by themselves, only if all its own ops allow it: they have no
    weights, and none reads from two of the children, or from ops outside the module. Each of these
    ops goes with the child that it reads. The model itself is opened even if an op reads from
    several children, which then move as one, unless it has weights of its own.
    """
    labels = [f"#{op}" for op in range(graph.n_ops)]
    _open("", list(range(graph.n_ops)), graph, labels)
    return _numbered(labels)


def _open(path: str, ops: list[int], graph: ComputationGraph, labels: list[str]) -> None:
    """Label the ops of a module: as a whole, or those of its children."""
    depth = len(path.split(".")) if path else 0
    children: dict[str, list[int]] = {}
    own: list[int] = []
    for op in ops:
        parts = graph.op_modules[op].split(".") if graph.op_modules[op] else []
        if len(parts) == depth:
            own.append(op)
        else:
            children.setdefault(".".join(parts[: depth + 1]), []).append(op)
    before = {op: labels[op] for op in ops}
    for child, inside in children.items():
        _open(child, inside, graph, labels)
    has_weights = any(len(graph.op_weights.row(op)) for op in own)
    if children and not has_weights and _joined(own, set(ops), graph, labels, is_root=not path):
        return
    for op in before:
        labels[op] = path or "the model"


def _joined(
    own: list[int], inside: set[int], graph: ComputationGraph, labels: list[str], *, is_root: bool
) -> bool:
    """Give each op of a module the label of the child that it reads; False if the module is whole.

    In the model itself two children that an op reads become one.
    """
    position = {int(op): at for at, op in enumerate(graph.topological_order)}
    for op in sorted(own, key=position.__getitem__):
        read: dict[str, None] = {}
        for tensor in graph.op_inputs.row(op).tolist():
            maker = int(graph.tensor_producers[tensor])
            if maker < 0 or graph.tensor_bytes[tensor] <= _SCALAR_BYTES:
                continue
            if maker not in inside:
                return False  # it would run where that op lies
            if not labels[maker].startswith("#"):
                read[labels[maker]] = None
        if len(read) > 1 and not is_root:
            return False
        if read:
            first, *others = read
            labels[op] = first
            for other in inside if others else ():
                if labels[other] in others:
                    labels[other] = first
    return True


def _numbered(labels: list[str]) -> IntArray:
    number = {label: at for at, label in enumerate(dict.fromkeys(labels))}
    return np.array([number[label] for label in labels], dtype=np.int64)
