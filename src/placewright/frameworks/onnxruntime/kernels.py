"""Kernels that ONNX Runtime makes of a graph's ops, and their seconds.

ONNX Runtime writes the model as it executes it, after all its optimisations. Nodes of a sub-model
are called ``op<number>`` (see `segments`), and names survive in most kernels: as the kernel's own
name or a part of it, as the value that a layout conversion renamed, or as the value that the kernel
makes. A kernel that has none of these is an addition (a reshape around a matrix product, a layout
conversion). If it makes a value of the original model, it belongs to the kernel that makes its
input, else to the kernel that reads its output. An op that appears in no kernel was merged without
a trace or needs no work; it joins its only reader. A ``QuantizeLinear`` joins its maker instead:
kernels of integers unpack what they read and pack what they make.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import DisjointSets, Grouping

_log = logging.getLogger(__name__)
_OP = re.compile(r"op<(\d+)>")
_SUFFIX = re.compile(r"(_nchwc|_nhwc)?(_token_\d+)?$")
_EVENT = "_kernel_time"
_WITH_BODIES = ("If", "Loop", "Scan")
_QUEUES = ("CUDAExecutionProvider", "ROCMExecutionProvider")
MOST_EVENTS = 1_000_000  # of a profile; ONNX Runtime drops all later ones without an error
_HALF_MICROSECOND = 0.5e-6  # timers round down to microseconds


class KernelMap:
    """The op of each kernel of a whole model, by the kernel's name.

    Args:
        nodes: of the optimized model, producers first.
        op_of_value: value name -> op that makes it in the original model.
    """

    def __init__(
        self, graph: ComputationGraph, nodes: Sequence[Any], op_of_value: Mapping[str, int]
    ) -> None:
        self.graph = graph
        self._op_of_value = op_of_value
        self._maker = {value: at for at, n in enumerate(nodes) for value in n.output if value}
        self._readers: dict[str, list[int]] = {}
        for at, node in enumerate(nodes):
            for value in filter(None, node.input):
                self._readers.setdefault(value, []).append(at)
        named = [self._ops_in_name(node) for node in nodes]
        ops = [self._with_made(node, own) for node, own in zip(nodes, named, strict=True)]
        self.op_of: dict[str, int] = {}
        anchors = self._anchors(nodes, ops)
        for node, anchor in zip(nodes, anchors, strict=True):
            self.op_of[node.name] = anchor
        self.grouping = self._joined(nodes, named, ops)

    def seconds(self, microseconds: Mapping[str, float]) -> FloatArray:
        """Seconds of each op from those of each kernel, shape (n_ops,)."""
        seconds = np.zeros(self.graph.n_ops)
        for name, value in microseconds.items():
            op = self.op_of.get(name, -1)
            if op >= 0:
                seconds[op] += value * 1e-6 + _HALF_MICROSECOND
        return seconds

    def _ops_in_name(self, node: Any) -> list[int]:
        ops = [int(number) for number in _OP.findall(node.name)]
        if not ops:
            value = _SUFFIX.sub("", node.name)
            ops = [self._op_of_value[value]] if value in self._op_of_value else []
        return sorted({op: None for op in ops if op < self.graph.n_ops})

    def _with_made(self, node: Any, named: list[int]) -> list[int]:
        made = [self._op_of_value[v] for v in node.output if v in self._op_of_value]
        return sorted(dict.fromkeys([*named, *made]))

    def _anchors(self, nodes: Sequence[Any], ops: Sequence[list[int]]) -> list[int]:
        """The op to which each kernel's seconds count; -1 if there is none."""
        anchors = [own[-1] if own else -1 for own in ops]
        for at in reversed(range(len(nodes))):
            if anchors[at] < 0:
                readers = [r for v in nodes[at].output for r in self._readers.get(v, ())]
                anchors[at] = next((anchors[r] for r in readers if anchors[r] >= 0), -1)
        for at, node in enumerate(nodes):
            if anchors[at] < 0:
                makers = [self._maker[v] for v in node.input if v in self._maker]
                anchors[at] = next((anchors[m] for m in makers if anchors[m] >= 0), -1)
        return anchors

    def _joined(
        self, nodes: Sequence[Any], named: Sequence[list[int]], ops: Sequence[list[int]]
    ) -> Grouping:
        """Group the ops of each kernel; an addition joins the ops whose values it reads."""
        joined = DisjointSets(self.graph.n_ops)

        def join(ops: Sequence[int]) -> None:
            for op in ops[1:]:
                joined.join(ops[0], op)

        traced = np.zeros(self.graph.n_ops, dtype=bool)
        for at, own in enumerate(ops):
            traced[own] = True
            join(own)
            if own and not named[at]:
                join([*own, *self._before_addition(nodes, ops, at)])
        graph = self.graph
        ends = np.array([kind == "QuantizeLinear" for kind in graph.op_kinds])  # of a kernel
        for op in reversed(graph.topological_order.tolist()):
            if not traced[op]:
                before = graph.predecessors.row(op)
                readers = dict.fromkeys(joined.root(r) for r in graph.successors.row(op).tolist())
                makers = dict.fromkeys(joined.root(m) for m in before.tolist())
                if len(makers) == 1 and (ends[op] or not readers):
                    join([op, *makers])
                    ends[before] |= ends[op]  # an activation between them left no trace either
                elif len(readers) == 1:
                    join([op, *readers])
        return joined.grouping()

    def _before_addition(
        self, nodes: Sequence[Any], ops: Sequence[list[int]], at: int
    ) -> list[int]:
        """Ops of the kernels from which an addition reads values that the original model lacks."""
        before: list[int] = []
        left = [at]
        while left:
            for value in nodes[left.pop()].input:
                maker = self._maker.get(value)
                if value in self._op_of_value or maker is None:
                    continue
                if ops[maker]:
                    before += ops[maker]
                else:
                    left.append(maker)
        return before


def kernel_microseconds(profile: Path, runs: int) -> dict[str, float]:
    """Kernel name -> median microseconds of its last `runs` executions in a profile.

    A kernel outside loops has one execution in each run.

    The times of nodes on a CUDA or ROCm device are those of queueing their kernels. Builds with
    the profiler of the device list its kernels, each with the name of its node's event. Without
    them the seconds of all nodes are unknown.

    Args:
        profile: what ``InferenceSession.end_profiling`` wrote.
        runs: number of the last runs that count; the profile holds at least so many.

    Returns:
        nothing if the seconds are unknown, also because the profile is full and lacks nodes.
    """
    events = json.loads(profile.read_text(encoding="utf-8"))
    if sum(event.get("cat") != "Kernel" for event in events) >= MOST_EVENTS:
        _log.warning(
            "ONNX Runtime's profiler keeps %d events, and runs of this model have more, with those "
            "in its loops; its operators get shares of the model's seconds by their work",
            MOST_EVENTS,
        )
        return {}
    rows: dict[str, list[float]] = {}
    is_queued, has_kernels = False, False
    for event in events:
        name, of = str(event.get("name", "")), event.get("args", {})
        if event.get("cat") == "Node" and name.endswith(_EVENT):
            # A loop or a branch takes as long as its body, whose nodes have events of their own.
            waits = of.get("provider") in _QUEUES and of.get("op_name") not in _WITH_BODIES
            is_queued |= waits
            row = rows.setdefault(name.removesuffix(_EVENT), [])
            row.append(0.0 if waits else float(event["dur"]))
        elif event.get("cat") == "Kernel":
            node = rows.get(str(of.get("parent_name", "")).removesuffix(_EVENT))
            if node:
                has_kernels = True
                node[-1] += float(event["dur"])
    if is_queued and not has_kernels:
        return {}
    return {name: float(np.median(row[-runs:])) for name, row in rows.items()}
