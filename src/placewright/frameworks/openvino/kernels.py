"""Kernels that an OpenVINO device makes of a graph's ops, and their seconds.

A compiled model lists the nodes that each kernel computes (``originalLayersNames``). A kernel
without such nodes (a layout conversion) belongs to the kernel that reads its result. An op that
appears in no kernel was merged without a trace or needs no work; it joins its only reader.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping

_OP = re.compile(r"op(\d+)")


class KernelMap:
    """The op of each kernel of a model whose nodes are called ``op<number>``, by kernel name.

    Args:
        compiled: an ``openvino.CompiledModel`` of the whole graph.
    """

    def __init__(self, graph: ComputationGraph, compiled: Any) -> None:
        self.graph = graph
        kernels = compiled.get_runtime_model().get_ordered_ops()
        ops_of = {node.get_friendly_name(): _ops_in(node, graph.n_ops) for node in kernels}
        self.op_of: dict[str, int] = {}
        for node in reversed(kernels):
            name = node.get_friendly_name()
            own = ops_of[name]
            if own:
                self.op_of[name] = own[-1]
            else:
                read_by = _readers(node)
                self.op_of[name] = next((self.op_of[r] for r in read_by if r in self.op_of), -1)
        for node in kernels:  # a kernel that makes an output has no reader, but a producer
            name = node.get_friendly_name()
            if self.op_of[name] < 0:
                made_by = [value.get_node().get_friendly_name() for value in node.input_values()]
                self.op_of[name] = next((self.op_of[m] for m in made_by if self.op_of[m] >= 0), -1)
        self.grouping = self._grouping([ops for ops in ops_of.values() if ops])

    def seconds(self, profile: Any) -> FloatArray:
        """Seconds of each op in ``InferRequest.profiling_info``, shape (n_ops,)."""
        seconds = np.zeros(self.graph.n_ops)
        for entry in profile:
            op = self.op_of.get(entry.node_name, -1)
            if op >= 0:
                seconds[op] += entry.real_time.total_seconds()
        return seconds

    def _grouping(self, kernels: list[list[int]]) -> Grouping:
        graph = self.graph
        label = np.full(graph.n_ops, -1, dtype=np.int64)
        for number, ops in enumerate(kernels):
            label[ops] = number
        for op in reversed(graph.topological_order.tolist()):
            if label[op] < 0:
                readers = np.unique(label[graph.successors.row(op)])
                makers = np.unique(label[graph.predecessors.row(op)])
                if len(readers) == 1:
                    label[op] = readers[0]
                elif len(readers) == 0 and len(makers) == 1 and makers[0] >= 0:
                    label[op] = makers[0]
                else:
                    label[op] = len(kernels) + op
        return Grouping.from_labels(label)


def _ops_in(node: Any, n_ops: int) -> list[int]:
    info = node.get_rt_info()
    text = str(info["originalLayersNames"].astype(str)) if "originalLayersNames" in info else ""
    names = [*text.split(","), node.get_friendly_name()]
    ops = [int(match[1]) for name in names if (match := _OP.fullmatch(name))]
    return sorted({op: None for op in ops if op < n_ops})


def _readers(node: Any) -> list[str]:
    return [
        target.get_node().get_friendly_name()
        for port in node.outputs()
        for target in sorted(port.get_target_inputs(), key=lambda t: t.get_node().get_instance_id())
    ]
