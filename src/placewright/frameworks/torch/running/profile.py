"""Timing of each op of a model on one device, and of copies between memories."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from placewright.core.arrays import FloatArray
from placewright.execution.runtime import OpSegment, median_seconds
from placewright.frameworks.torch.running.devices import SAME_KERNELS, limited_threads
from placewright.frameworks.torch.running.functions import (
    ScriptedFunction,
    SegmentFunction,
    segment_function,
)
from placewright.frameworks.torch.running.instances import Arriving, DeviceState, Lane, moved
from placewright.frameworks.torch.running.nodes import NodeMap
from placewright.frameworks.torch.running.segments import (
    SegmentModule,
    StateWrites,
    segment_module,
)

_QUIET_CYCLES = 20_000_000  # ten milliseconds, in which the host gets ahead of an accelerator
_OPS_AHEAD = 128  # queued by the host in that time; an accelerator's queue holds a thousand


class OpTimer:
    """Runs a model op by op.

    On the processor a counter is read around every call, and the seconds of an empty call are
    subtracted. On an accelerator events stand between the ops. Its queue is blocked every few ops
    until the host is ahead, so that only kernels run between two events.

    Args:
        device: on which the ops run.
        lane: queues of the device; None for the processor.
        threads: of an op on the processor.
    """

    def __init__(
        self, nodes: NodeMap, device: torch.device, lane: Lane | None, threads: int
    ) -> None:
        graph = nodes.graph
        self.nodes, self.device, self.lane, self.threads = nodes, device, lane, threads
        self._order = graph.topological_order.tolist()
        self._segments: list[OpSegment] = []
        self._functions: list[SegmentFunction] = []
        self._names: list[tuple[str, ...]] = []
        self._boxes: list[Any] = []
        last = np.full(graph.n_tensors, -1, dtype=np.int64)
        taken = graph.tensor_is_output.copy()  # TorchScript drops a call whose results none takes
        taken[list(nodes.updates.values())] = True
        for at, op in enumerate(self._order):
            last[graph.op_inputs.row(op)] = at
            row = graph.op_outputs.row(op).tolist()
            outputs = tuple(t for t in row if taken[t] or len(graph.tensor_consumers.row(t)))
            inputs = tuple(dict.fromkeys(graph.op_inputs.row(op).tolist()))
            segment = OpSegment(0, (op,), inputs, outputs)
            part = segment_module(nodes, segment, device, StateWrites())
            self._segments.append(segment)
            self._functions.append(segment_function(part, "eager"))
            self._names.append(part.state)
        self._last_use = last

    def seconds(self, inputs: Sequence[torch.Tensor], state: DeviceState) -> FloatArray:
        """Seconds of each op in one run, shape (n_ops,)."""
        with self.prepared(state), torch.inference_mode():
            values = self.entered(inputs)
            if self.lane is not None:
                return self._by_events(self.lane, values)
            return self._by_counter(values)

    @contextmanager
    def prepared(self, state: DeviceState) -> Iterator[None]:
        """Bring the state of each op to the device, and set the threads of the device meanwhile."""
        if not self._boxes:
            for function, names in zip(self._functions, self._names, strict=True):
                self._boxes.append(function.state_box([state.tensor(name) for name in names]))
        with limited_threads(self.threads), SAME_KERNELS:
            yield

    def entered(self, inputs: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Graph input -> its value on the device."""
        starts = np.flatnonzero(self.nodes.graph.tensor_producers < 0).tolist()
        return {t: v.to(self.device) for t, v in zip(starts, inputs, strict=True)}

    def calls(self, values: dict[int, torch.Tensor]) -> Iterator[tuple[int, Callable[[], None]]]:
        """Yield each op in the order of a run, with a function that runs it.

        Args:
            values: of the graph's inputs, from `entered`; outputs that a later op reads are added.
        """
        for at, op in enumerate(self._order):

            def call(at: int = at) -> None:
                results = self._functions[at].run(self._entering(values, at), self._boxes[at])
                self._keep(values, at, results)

            yield op, call

    def _by_counter(self, values: dict[int, torch.Tensor]) -> FloatArray:
        seconds = np.zeros(len(self._order))
        empty = _empty_call_seconds()
        for at, op in enumerate(self._order):
            entering = self._entering(values, at)
            start = time.perf_counter()
            results = self._functions[at].run(entering, self._boxes[at])
            taken = time.perf_counter() - start
            seconds[op] = max(0.0, taken - empty)
            self._keep(values, at, results)
            del results
        return seconds

    def _by_events(self, lane: Lane, values: dict[int, torch.Tensor]) -> FloatArray:
        seconds = np.zeros(len(self._order))
        events: list[tuple[Any, Any]] = []
        block = getattr(lane.module, "_sleep", None)
        with lane.module.stream(lane.compute):
            begin = lane.event(timed=True)
            for at in range(len(self._order)):
                if at % _OPS_AHEAD == 0:
                    if block is not None:
                        block(_QUIET_CYCLES)
                    begin = lane.event(timed=True)  # behind the blocked part
                    begin.record(lane.compute)
                entering = self._entering(values, at)
                results = self._functions[at].run(entering, self._boxes[at])
                end = lane.event(timed=True)
                end.record(lane.compute)
                events.append((begin, end))
                begin = end
                self._keep(values, at, results)
                del results
            begin.synchronize()
        for op, (begin, end) in zip(self._order, events, strict=True):
            seconds[op] = begin.elapsed_time(end) / 1e3
        return seconds

    def _entering(self, values: dict[int, torch.Tensor], at: int) -> list[torch.Tensor]:
        """Inputs of an op; those that no later op reads are removed from `values`."""
        inputs = self._segments[at].inputs
        return [values.pop(t) if self._last_use[t] == at else values[t] for t in inputs]

    def _keep(
        self, values: dict[int, torch.Tensor], at: int, results: Sequence[torch.Tensor]
    ) -> None:
        """Add the results of an op that a later op reads to `values`."""
        for tensor, result in zip(self._segments[at].outputs, results, strict=True):
            if self._last_use[tensor] >= 0:
                values[tensor] = result


def _empty_call_seconds() -> float:
    """Median seconds of a call that computes nothing."""
    graph = torch.fx.Graph()
    graph.output([graph.placeholder("x")])
    empty = ScriptedFunction(SegmentModule(torch.fx.GraphModule({}, graph), n_inputs=1, state=()))
    tensor, state = torch.zeros(1), empty.state_box([torch.zeros(1)])
    seconds = []
    for _ in range(31):
        entering = [tensor]
        start = time.perf_counter()
        empty.run(entering, state)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def copy_seconds(source: torch.device, destination: torch.device, size_bytes: int) -> float:
    """Median seconds of a copy from one memory to another, as a run makes it; 0 within one memory.

    A tensor of the processor is first copied to pinned memory, which may take most of the time.
    """
    if source == destination or (source.type == destination.type == "cpu"):
        return 0.0
    data = torch.zeros(size_bytes, dtype=torch.uint8, device=source)
    ends = [None if device.type == "cpu" else Lane(device) for device in (source, destination)]
    for lane in ends:
        if lane is not None:
            lane.module.synchronize(lane.device)

    def copy() -> None:
        copied = moved(data, *ends)
        assert isinstance(copied, Arriving)
        copied.event.synchronize()

    return median_seconds(copy)
