"""Peak memory of each device, from the allocators' own records.

The peak counts the weights and the state of a device, each tensor once, and every byte that its
allocator hands out while segments run, until it is given back. Working space of operators and
arriving copies are part of it. One thread runs segment after segment, each with as many threads per
operator as its device has. A tensor for another device is always copied, even if both share memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from placewright.core.arrays import FloatArray
from placewright.core.cluster import Device
from placewright.core.graph import ComputationGraph
from placewright.execution.routes import Routes, routes_of
from placewright.execution.runtime import OpSegment, graph_inputs
from placewright.frameworks.torch.running.devices import limited_threads
from placewright.frameworks.torch.running.instances import (
    DeviceState,
    Lane,
    TorchInstance,
    TorchSegment,
    moved,
    on_host,
)
from placewright.frameworks.torch.running.profile import OpTimer
from placewright.frameworks.torch.running.script import without_optimization

_MARK = "placewright memory "
_OP_MARK = "placewright op "
_Values = dict[tuple[int, int], Any]  # (tensor, memory) -> value


def peaks_in_use(
    graph: ComputationGraph,
    segments: Sequence[OpSegment],
    devices: Sequence[Device],
    compiled: Sequence[TorchSegment],
    inputs: Sequence[torch.Tensor],
    readers: Mapping[str, Sequence[int]],
    schedule: Sequence[tuple[int, int]] | None = None,
) -> FloatArray:
    """Peak bytes in use on each device, shape (n_devices,).

    Args:
        segments: of one sample, in an order in which they can execute.
        devices: ``segments[i].device`` indexes it.
        compiled: the segments, for this call alone.
        inputs: of the graph, in the host's memory, the same for every sample.
        readers: name of a weight or state -> ops that read it, ascending.
        schedule: (sample, segment) of a stream in the order in which they begin; segment -1 means
            that the sample is done, and frees its outputs. None runs each segment once.
    """
    parts = _Parts.of(graph, segments, devices, compiled, inputs)

    def run() -> None:
        if schedule is None:
            _run_sample(parts)
        else:
            _run_stream(parts, schedule)

    # Each segment sets the number of threads of the one that calls it.
    with without_optimization(), limited_threads(torch.get_num_threads()):
        allocated = _peaks_of(run, parts.lanes, len(devices))
        return allocated + _resident(segments, compiled, readers, len(devices))


@dataclass(frozen=True, eq=False)
class _Parts:
    """The segments of a model on its devices, ready to run, and the routes of their tensors."""

    graph: ComputationGraph  # from which segments were cut
    segments: Sequence[OpSegment]  # in an order in which they can execute
    inputs: Sequence[torch.Tensor]  # of the graph, in the host's memory
    routes: Routes  # of tensors between memories
    instances: Sequence[TorchInstance]  # of each segment
    lanes: Mapping[int, Lane]  # device -> its queues; accelerators only, not the processor

    @classmethod
    def of(
        cls,
        graph: ComputationGraph,
        segments: Sequence[OpSegment],
        devices: Sequence[Device],
        compiled: Sequence[TorchSegment],
        inputs: Sequence[torch.Tensor],
    ) -> _Parts:
        """Make an instance of each compiled segment, and find the routes."""
        routes = routes_of(graph, segments, len(devices), shared=False)
        lanes = {
            segment.device: made.lane
            for segment, made in zip(segments, compiled, strict=True)
            if made.lane is not None
        }
        return cls(graph, segments, inputs, routes, [made.instance() for made in compiled], lanes)

    def entering(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yield (tensor, memory, value) for each graph input and each memory in which it is read.

        The value is the one in the host's memory, not yet copied.
        """
        starts = zip(graph_inputs(self.graph), self.inputs, self.routes.inputs, strict=True)
        for tensor, value, memories in starts:
            for memory in memories:
                yield tensor, memory, value

    def run(self, index: int, held: _Values) -> list[Any]:
        """Run segment `index`, and return the values of its outputs.

        Args:
            held: values that the segments can read; those of which this is the last reader in its
                memory are removed.
        """
        segment, route = self.segments[index], self.routes.segments[index]
        entering = [
            held.pop((tensor, route.memory)) if last else held[tensor, route.memory]
            for tensor, last in zip(segment.inputs, route.takes, strict=True)
        ]
        with record_function(f"{_MARK}{route.memory}"):
            return list(self.instances[index].run(entering))

    def synchronize(self) -> None:
        """Wait until the compute queues of all accelerators are empty."""
        for lane in self.lanes.values():
            lane.compute.synchronize()


def _run_sample(parts: _Parts) -> None:
    """Run each segment once; copy a tensor for another memory as soon as its segment has run."""
    held: _Values = {}
    for tensor, memory, value in parts.entering():
        held[tensor, memory] = _copied(parts.lanes, value, None, memory)
    for index, (segment, route) in enumerate(
        zip(parts.segments, parts.routes.segments, strict=True)
    ):
        values = parts.run(index, held)
        for at, tensor in enumerate(segment.outputs):
            for memory in route.goes_to[at]:
                held[tensor, memory] = _copied(parts.lanes, values[at], route.memory, memory)
            if route.stays[at]:
                held[tensor, route.memory] = values[at]
            values[at] = None
    parts.synchronize()


def _copied(lanes: Mapping[int, Lane], value: Any, source: int | None, memory: int) -> Any:
    origin, goal = lanes.get(-1 if source is None else source), lanes.get(memory)
    with record_function(f"{_MARK}{memory}"):
        if goal is None:
            # Pinned memory, where copies arrive, is not in the processor's record.
            return on_host(moved(value, origin, goal)).clone()
        return moved(value, origin, goal)


def _run_stream(parts: _Parts, schedule: Sequence[tuple[int, int]]) -> None:
    """Run samples in the order of the schedule that the simulator found.

    A tensor for another device waits in memory that counts for no device, until the segment that
    receives it begins.
    """
    held: dict[int, _Values] = {}
    under_way: dict[int, _Values] = {}
    outputs: dict[int, list[Any]] = {}
    for sample, index in schedule:
        if index < 0:
            for rows in (held, under_way, outputs):
                rows.pop(sample, None)
            continue
        if sample not in held:
            held[sample], outputs[sample] = {}, []
            under_way[sample] = {(t, memory): v for t, memory, v in parts.entering()}
        outputs[sample] += _run_in_stream(parts, index, held[sample], under_way[sample])
    parts.synchronize()


def _run_in_stream(parts: _Parts, index: int, held: _Values, under_way: _Values) -> list[Any]:
    """Run segment `index` of a sample; return the values of the graph outputs that it makes.

    Args:
        held: values of the sample in the memories of devices.
        under_way: values in the host's memory that wait for their receiving segment.
    """
    segment, route = parts.segments[index], parts.routes.segments[index]
    memory = route.memory
    for tensor in segment.inputs:
        if (tensor, memory) in under_way:
            held[tensor, memory] = _received(parts, under_way.pop((tensor, memory)), memory)
    values = parts.run(index, held)
    outputs = []
    for at, tensor in enumerate(segment.outputs):
        for other in route.goes_to[at]:
            if other < parts.routes.host:
                copy = on_host(moved(values[at], parts.lanes.get(memory), None)).clone()
                under_way[tensor, other] = copy
        if route.stays[at]:
            held[tensor, memory] = values[at]
        if parts.graph.tensor_is_output[tensor]:
            outputs.append(values[at])
        values[at] = None
    return outputs


def _received(parts: _Parts, value: Any, memory: int) -> Any:
    lane = parts.lanes.get(memory)
    with record_function(f"{_MARK}{memory}"):
        return value.clone() if lane is None else moved(value, None, lane)


def _peaks_of(run: Callable[[], None], lanes: Mapping[int, Lane], n_devices: int) -> FloatArray:
    """Peak bytes handed out for each device in the second of two runs, shape (n_devices,).

    Bytes that are in use before the second run do not count.
    """
    run()  # libraries set up working space that they keep
    before = {device: _allocated(lane) for device, lane in lanes.items()}
    for lane in lanes.values():
        lane.module.reset_peak_memory_stats(lane.device)
    with _recorded() as record:
        run()
    peaks = _processor_peaks(record, n_devices)
    for device, lane in lanes.items():
        peaks[device] = lane.module.max_memory_allocated(lane.device) - before[device]
    return peaks


@contextlib.contextmanager
def _recorded() -> Iterator[profile]:
    """Record calls and allocations in the context; the record also ends if the context raises."""
    record = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with _without_remarks():
        record.start()
    try:
        yield record
    finally:
        with _without_remarks():
            record.stop()


@contextlib.contextmanager
def _without_remarks() -> Iterator[None]:
    """Suppress what the profiler's library writes to standard error at its start and end."""
    try:
        standard_error = os.dup(2)
    except OSError:  # there is no standard error
        yield
        return
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)


def _allocated(lane: Lane) -> float:
    lane.module.synchronize(lane.device)
    return float(lane.module.memory_allocated(lane.device))


def _resident(
    segments: Sequence[OpSegment],
    compiled: Sequence[TorchSegment],
    readers: Mapping[str, Sequence[int]],
    n_devices: int,
) -> FloatArray:
    """Bytes of the weights and the state that each device holds, shape (n_devices,).

    A tensor that devices share in one memory counts once: on the device that runs the lowest op
    that reads it.
    """
    first: dict[int, tuple[int, int, int]] = {}  # address -> lowest op, its device, bytes
    for segment, made in zip(segments, compiled, strict=True):
        for name in (*made.names, *made.writes.after):
            here = set(segment.ops).intersection(readers.get(name, ()))
            lowest = min(here, default=max(segment.ops))
            for storage in _storages(made.state.tensor(name)):
                row = (lowest, segment.device, storage.nbytes())
                first[storage.data_ptr()] = min(row, first.get(storage.data_ptr(), row))
    held = np.zeros(n_devices)
    for _, device, size in first.values():
        held[device] += size
    return held


def _storages(value: Any) -> list[Any]:
    """Storage of a tensor; of a branch's or a loop's body, those of its parameters and buffers."""
    is_body = isinstance(value, torch.nn.Module)
    tensors = [*value.parameters(), *value.buffers()] if is_body else [value]
    return [tensor.untyped_storage() for tensor in tensors]


def _processor_peaks(record: Any, n_devices: int) -> FloatArray:
    """Peak bytes that the processor's allocator handed out for each device, shape (n_devices,).

    Memory counts for the device whose segment, or copy to it, asked for it.
    """
    events = []
    for root in record.profiler.kineto_results.experimental_event_tree():
        memory = int(root.name.removeprefix(_MARK)) if root.name.startswith(_MARK) else -1
        events += [(event.start_time_ns, memory, event) for event in _allocations(root)]
    events.sort(key=lambda entry: entry[0])
    owner: dict[int, tuple[int, int]] = {}  # address of a block -> device, bytes
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


def _allocations(root: Any) -> Iterator[Any]:
    """Yield allocations and releases of the processor's memory in an event and all events in it."""
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
    """Working bytes of each op: peak bytes handed out while it runs, less the bytes of its outputs.

    A convolution on the processor, for example, brings its inputs and weights into the layout of
    its kernel; on an accelerator its library asks for working space.

    Args:
        timer: runs the model op by op.
        inputs: of the graph, in the host's memory.
        state: weights and state on the device of the timer.

    Returns:
        Bytes, shape (n_ops,), at least 0.
    """
    lane = timer.lane
    queue = contextlib.nullcontext() if lane is None else lane.module.stream(lane.compute)
    with timer.prepared(state), torch.inference_mode(), queue:
        for _, call in timer.calls(timer.entered(inputs)):
            call()  # libraries set up working space that they keep, for each queue
        values = timer.entered(inputs)
        taken = _by_record(timer, values) if timer.lane is None else _by_lane(timer, values)
    graph = timer.nodes.graph
    made = np.zeros(graph.n_ops)
    producers = graph.tensor_producers
    np.add.at(made, producers[producers >= 0], graph.tensor_bytes[producers >= 0])
    return np.maximum(taken - made, 0.0)


def _by_record(timer: OpTimer, values: dict[int, torch.Tensor]) -> FloatArray:
    with _recorded() as record:
        for op, call in timer.calls(values):
            with record_function(f"{_OP_MARK}{op}"):
                call()
    taken = np.zeros(timer.nodes.graph.n_ops)
    for root in record.profiler.kineto_results.experimental_event_tree():  # type: ignore[union-attr]
        if root.name.startswith(_OP_MARK):
            taken[int(root.name.removeprefix(_OP_MARK))] = _peak(root)
    return taken


def _peak(root: Any) -> float:
    """Peak of the bytes handed out inside an event; older blocks that it frees do not count."""
    events = sorted(_allocations(root), key=lambda event: event.start_time_ns)
    size_of: dict[int, int] = {}  # address of a block -> bytes
    in_use = peak = 0
    for event in events:
        fields = event.extra_fields
        if fields.alloc_size < 0:
            in_use -= size_of.pop(fields.ptr, 0)
        else:
            size_of[fields.ptr] = fields.alloc_size
            in_use += fields.alloc_size
            peak = max(peak, in_use)
    return float(peak)


def _by_lane(timer: OpTimer, values: dict[int, torch.Tensor]) -> FloatArray:
    lane = timer.lane
    assert isinstance(lane, Lane)
    taken = np.zeros(timer.nodes.graph.n_ops)
    for op, call in timer.calls(values):
        before = lane.module.memory_allocated(lane.device)
        lane.module.reset_peak_memory_stats(lane.device)
        call()
        taken[op] = lane.module.max_memory_allocated(lane.device) - before
    return taken
