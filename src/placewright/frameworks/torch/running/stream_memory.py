"""Peak memory of each device while samples follow each other, from the allocators' own records.

The schedule that the simulator plays is executed serially, segment after segment as they begin. A
tensor for another device waits in memory that is nobody's until the segment there begins that
receives it, as on devices that share no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.profiler import record_function

from placewright.core.cluster import Device
from placewright.core.graph import ComputationGraph
from placewright.execution.routes import Routes, routes_of
from placewright.execution.runtime import OpSegment, graph_inputs
from placewright.frameworks.torch.running.instances import TorchInstance, TorchSegment
from placewright.frameworks.torch.running.lanes import Lane, moved, on_host
from placewright.frameworks.torch.running.memory import MARK

_Key = tuple[int, int]  # tensor, memory


class StreamRun:
    """Samples in the order of a schedule, in the calling thread.

    Args:
        graph: that segments were cut from.
        segments: of one sample.
        devices: ``segments[i].device`` indexes it.
        compiled: the segments.
        inputs: of the graph, in the host's memory, the same for every sample.
        schedule: (sample, segment) as they begin; segment -1 says that the sample is done.
    """

    def __init__(
        self,
        graph: ComputationGraph,
        segments: Sequence[OpSegment],
        devices: Sequence[Device],
        compiled: Sequence[TorchSegment],
        inputs: Sequence[torch.Tensor],
        schedule: Sequence[tuple[int, int]],
    ) -> None:
        self.graph, self.segments, self.inputs = graph, segments, inputs
        self.schedule = schedule
        self.routes: Routes = routes_of(graph, segments, len(devices), shared=False)
        self.instances: list[TorchInstance] = [one.instance() for one in compiled]
        self.lanes: dict[int, Lane] = {
            segment.device: one.lane
            for segment, one in zip(segments, compiled, strict=True)
            if one.lane is not None
        }

    def all_segments(self) -> None:
        """The whole schedule once."""
        held: dict[int, dict[_Key, Any]] = {}
        under_way: dict[int, dict[_Key, Any]] = {}
        kept: dict[int, list[Any]] = {}
        for sample, index in self.schedule:
            if index < 0:
                for rows in (held, under_way, kept):
                    rows.pop(sample, None)
                continue
            if sample not in held:
                held[sample], kept[sample] = {}, []
                under_way[sample] = self._entering()
            self._run(index, held[sample], under_way[sample], kept[sample])
        for lane in self.lanes.values():
            lane.compute.synchronize()

    def _entering(self) -> dict[_Key, Any]:
        starts = zip(graph_inputs(self.graph), self.inputs, self.routes.inputs, strict=True)
        return {
            (tensor, memory): value for tensor, value, memories in starts for memory in memories
        }

    def _run(
        self,
        index: int,
        held: dict[_Key, Any],
        under_way: dict[_Key, Any],
        kept: list[Any],
    ) -> None:
        segment, route = self.segments[index], self.routes.segments[index]
        memory = route.memory
        for tensor in segment.inputs:
            if (tensor, memory) in under_way:
                held[tensor, memory] = self._received(under_way.pop((tensor, memory)), memory)
        entering = [
            held.pop((tensor, memory)) if last else held[tensor, memory]
            for tensor, last in zip(segment.inputs, route.takes, strict=True)
        ]
        with record_function(f"{MARK}{memory}"):
            values = list(self.instances[index].run(entering))
        for at, tensor in enumerate(segment.outputs):
            for other in route.goes_to[at]:
                if other < self.routes.host:
                    copy = on_host(moved(values[at], self.lanes.get(memory), None)).clone()
                    under_way[tensor, other] = copy
            if route.stays[at]:
                held[tensor, memory] = values[at]
            if self.graph.tensor_is_output[tensor]:
                kept.append(values[at])
            values[at] = None

    def _received(self, value: Any, memory: int) -> Any:
        lane = self.lanes.get(memory)
        with record_function(f"{MARK}{memory}"):
            return value.clone() if lane is None else moved(value, None, lane)
