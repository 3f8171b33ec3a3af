"""Peak memory of a split on each device, from the allocators' own records.

Segments run one after the other, each tensor that goes to another device is a copy there, as on
devices that share no memory. What is counted: the state that a device holds, each tensor once, and
every byte that its allocator hands out while its segments run, working space of operators and
arriving copies among them, until it is given back.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from placewright.core.arrays import FloatArray
from placewright.core.cluster import Device
from placewright.core.graph import ComputationGraph
from placewright.execution.routes import Routes, routes_of
from placewright.execution.runtime import OpSegment, graph_inputs
from placewright.frameworks.torch.running.instances import DeviceState, TorchInstance, TorchSegment
from placewright.frameworks.torch.running.lanes import Lane, moved, on_host
from placewright.frameworks.torch.running.profile import OpTimer

MARK = "placewright memory "
_OP_MARK = "placewright op "
_Key = tuple[int, int]  # tensor, memory


def peaks_in_use(
    graph: ComputationGraph,
    segments: Sequence[OpSegment],
    devices: Sequence[Device],
    compiled: Sequence[TorchSegment],
    inputs: Sequence[torch.Tensor],
) -> FloatArray:
    """Largest number of bytes in use on each device at one time, shape (n_devices,).

    Args:
        graph: that segments were cut from.
        segments: in an order in which they can execute.
        devices: ``segments[i].device`` indexes it.
        compiled: the segments, for this call alone.
        inputs: of the graph, in the host's memory.
    """
    run = _SerialRun(graph, segments, devices, compiled, inputs)
    return peaks_of_run(run, segments, compiled, len(devices))


class _Run(Protocol):
    """Segments in the calling thread."""

    lanes: dict[int, Lane]

    def all_segments(self) -> None: ...


def peaks_of_run(
    run: _Run, segments: Sequence[OpSegment], compiled: Sequence[TorchSegment], n_devices: int
) -> FloatArray:
    """As `memory_peaks`, of any way to run the segments."""
    with without_optimization():
        return _peaks_of(run, n_devices) + _resident(segments, compiled, n_devices)


def _peaks_of(run: _Run, n_devices: int) -> FloatArray:
    """Peaks of what is handed out during a run, shape (n_devices,), bytes."""
    run.all_segments()  # libraries set up working space that they keep
    lanes = run.lanes
    before = {device: _allocated(lane) for device, lane in lanes.items()}
    for lane in lanes.values():
        lane.module.reset_peak_memory_stats(lane.device)
    record = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with without_remarks():
        record.start()
    run.all_segments()
    with without_remarks():
        record.stop()
    peaks = _processor_peaks(record, n_devices)
    for device, lane in lanes.items():
        peaks[device] = lane.module.max_memory_allocated(lane.device) - before[device]
    return peaks


class _SerialRun:
    """Segments one after the other in the calling thread, on memories of their own."""

    def __init__(
        self,
        graph: ComputationGraph,
        segments: Sequence[OpSegment],
        devices: Sequence[Device],
        compiled: Sequence[TorchSegment],
        inputs: Sequence[torch.Tensor],
    ) -> None:
        self.graph, self.segments, self.inputs = graph, segments, inputs
        self.routes: Routes = routes_of(graph, segments, len(devices), shared=False)
        self.instances: list[TorchInstance] = [one.instance() for one in compiled]
        self.lanes: dict[int, Lane] = {
            segment.device: one.lane
            for segment, one in zip(segments, compiled, strict=True)
            if one.lane is not None
        }

    def all_segments(self) -> None:
        """One run."""
        held: dict[tuple[int, int], Any] = {}
        starts = zip(graph_inputs(self.graph), self.inputs, self.routes.inputs, strict=True)
        for tensor, value, memories in starts:
            for memory in memories:
                held[tensor, memory] = self._copied(value, None, memory)
        for segment, route, instance in zip(
            self.segments, self.routes.segments, self.instances, strict=True
        ):
            entering = [
                held.pop((t, route.memory)) if last else held[t, route.memory]
                for t, last in zip(segment.inputs, route.takes, strict=True)
            ]
            with record_function(f"{MARK}{route.memory}"):
                values = list(instance.run(entering))
            for at, tensor in enumerate(segment.outputs):
                for memory in route.goes_to[at]:
                    held[tensor, memory] = self._copied(values[at], route.memory, memory)
                if route.stays[at]:
                    held[tensor, route.memory] = values[at]
                values[at] = None
        for lane in self.lanes.values():
            lane.compute.synchronize()

    def _copied(self, value: Any, source: int | None, memory: int) -> Any:
        origin, goal = self.lanes.get(-1 if source is None else source), self.lanes.get(memory)
        with record_function(f"{MARK}{memory}"):
            if goal is None:
                # Pinned memory, where copies arrive, is not in the processor's record.
                return on_host(moved(value, origin, goal)).clone()
            return moved(value, origin, goal)


@contextlib.contextmanager
def without_optimization() -> Iterator[None]:
    """TorchScript calls each operator as it stands, as in the workers, for which they ask for it.

    By default a thread's second run of a segment merges matrix products, which takes less memory.
    """
    before = torch._C._get_graph_executor_optimize()
    torch._C._set_graph_executor_optimize(False)
    try:
        yield
    finally:
        torch._C._set_graph_executor_optimize(before)


@contextlib.contextmanager
def without_remarks() -> Iterator[None]:
    """The profiler's library tells standard error when it starts and stops, whatever one sets."""
    try:
        kept = os.dup(2)
    except OSError:  # there is no standard error
        yield
        return
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _allocated(lane: Lane) -> float:
    lane.module.synchronize(lane.device)
    return float(lane.module.memory_allocated(lane.device))


def _resident(
    segments: Sequence[OpSegment], compiled: Sequence[TorchSegment], n_devices: int
) -> FloatArray:
    """Bytes of the state that each device holds, shape (n_devices,)."""
    held: list[dict[int, float]] = [{} for _ in range(n_devices)]
    for segment, one in zip(segments, compiled, strict=True):
        for tensor in one.state.tensors.values():
            storage = tensor.untyped_storage()
            held[segment.device][storage.data_ptr()] = float(storage.nbytes())
    return np.array([sum(row.values()) for row in held])


def _processor_peaks(record: Any, n_devices: int) -> FloatArray:
    """Peaks by the device whose segment or arriving copy asked for the memory."""
    events = []
    for root in record.profiler.kineto_results.experimental_event_tree():
        memory = int(root.name.removeprefix(MARK)) if root.name.startswith(MARK) else -1
        events += [(event.start_time_ns, memory, event) for event in allocations(root)]
    events.sort(key=lambda entry: entry[0])
    owner: dict[int, tuple[int, int]] = {}
    in_use = np.zeros(n_devices)
    peaks = np.zeros(n_devices)
    for _, memory, event in events:
        fields = event.extra_fields
        if fields.alloc_size < 0:
            device, size = owner.pop(fields.ptr, (-1, 0))
            if device >= 0:
                in_use[device] -= size
        elif 0 <= memory < n_devices:
            owner[fields.ptr] = (memory, fields.alloc_size)
            in_use[memory] += fields.alloc_size
            peaks[memory] = max(peaks[memory], in_use[memory])
    return peaks


def allocations(root: Any) -> Iterator[Any]:
    """What the processor's allocator did inside an event."""
    waiting = [root]
    while waiting:
        event = waiting.pop()
        waiting += event.children
        is_allocation = event.tag == torch._C._profiler._EventType.Allocation
        if is_allocation and event.extra_fields.device.type == "cpu":
            yield event


def bytes_beside_outputs(
    timer: OpTimer, inputs: Sequence[torch.Tensor], state: DeviceState
) -> FloatArray:
    """Largest bytes handed out during each op less those of its outputs, shape (n_ops,).

    Args:
        timer: runs the model op by op.
        inputs: of the graph, in the host's memory.
        state: of the device.
    """
    timer.prepare(state)
    with torch.inference_mode():
        for _, call in timer.calls(timer.entered(inputs)):
            call()  # libraries set up working space that they keep
        values = timer.entered(inputs)
        taken = _by_record(timer, values) if timer.lane is None else _by_lane(timer, values)
    graph = timer.nodes.graph
    made = np.zeros(graph.n_ops)
    producers = graph.tensor_producers
    np.add.at(made, producers[producers >= 0], graph.tensor_bytes[producers >= 0])
    return np.maximum(taken - made, 0.0)


def _by_record(timer: OpTimer, values: dict[int, torch.Tensor]) -> FloatArray:
    record = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with without_remarks():
        record.start()
    for op, call in timer.calls(values):
        with record_function(f"{_OP_MARK}{op}"):
            call()
    with without_remarks():
        record.stop()
    found = np.zeros(timer.nodes.graph.n_ops)
    for root in record.profiler.kineto_results.experimental_event_tree():  # type: ignore[union-attr]
        if root.name.startswith(_OP_MARK):
            found[int(root.name.removeprefix(_OP_MARK))] = _peak(root)
    return found


def _peak(root: Any) -> float:
    """Of what is handed out inside an event; what it gives back from before does not count."""
    events = sorted(allocations(root), key=lambda event: event.start_time_ns)
    own: dict[int, int] = {}
    in_use = peak = 0
    for event in events:
        fields = event.extra_fields
        if fields.alloc_size < 0:
            in_use -= own.pop(fields.ptr, 0)
        else:
            own[fields.ptr] = fields.alloc_size
            in_use += fields.alloc_size
            peak = max(peak, in_use)
    return float(peak)


def _by_lane(timer: OpTimer, values: dict[int, torch.Tensor]) -> FloatArray:
    lane = timer.lane
    assert isinstance(lane, Lane)
    found = np.zeros(timer.nodes.graph.n_ops)
    with lane.module.stream(lane.compute):
        for op, call in timer.calls(values):
            before = lane.module.memory_allocated(lane.device)
            lane.module.reset_peak_memory_stats(lane.device)
            call()
            found[op] = lane.module.max_memory_allocated(lane.device) - before
    return found


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
