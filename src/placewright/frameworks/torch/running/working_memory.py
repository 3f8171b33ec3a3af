"""What each op takes beside its inputs and outputs while it runs, as the allocator tells.

A convolution on the processor, for example, brings its inputs and weights into the layout of its
kernel first; on an accelerator its library asks for working space.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from placewright.core.arrays import FloatArray
from placewright.frameworks.torch.running.instances import DeviceState
from placewright.frameworks.torch.running.lanes import Lane
from placewright.frameworks.torch.running.memory import allocations, without_remarks
from placewright.frameworks.torch.running.profile import OpTimer

_MARK = "placewright op "


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
        with record_function(f"{_MARK}{op}"):
            call()
    with without_remarks():
        record.stop()
    found = np.zeros(timer.nodes.graph.n_ops)
    for root in record.profiler.kineto_results.experimental_event_tree():  # type: ignore[union-attr]
        if root.name.startswith(_MARK):
            found[int(root.name.removeprefix(_MARK))] = _peak(root)
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
