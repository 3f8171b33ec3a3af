"""What happens to a request's tensors: they enter, pass between memories, and leave."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from placewright.core.cluster import Device
from placewright.core.signature import NO_TENSOR
from placewright.execution.members import Members
from placewright.execution.requests import Execution, RequestProgress
from placewright.execution.routes import routes_of
from placewright.execution.runtime import (
    HostArray,
    LoadedModel,
    MovesTensors,
    NativeTensor,
    OpSegment,
    RunsAsynchronously,
    SegmentInstance,
    graph_inputs,
    graph_outputs,
)


class RequestTensors:
    """Runs segments of requests on the tensors that they hold.

    Args:
        model: what `segments` were cut from.
        segments: see `ConcurrentRunner`.
        members: of its devices.
    """

    def __init__(self, model: LoadedModel, segments: Sequence[OpSegment], members: Members) -> None:
        self.model, self.segments, self.members = model, segments, members
        self.inputs = graph_inputs(model.graph)
        self.outputs = graph_outputs(model.graph)
        self.mover = model if isinstance(model, MovesTensors) else None
        self.routes = routes_of(
            model.graph, segments, len(members.count), shared=self.mover is None
        )
        self._plain_outputs: list[HostArray] | None = None

    def settle(self, done: RequestProgress) -> None:
        """Wait for what is queued on devices; its real spans take the place of the queueing's."""
        if self.mover is None:
            return
        queued = False
        for index, segment in enumerate(self.segments):
            instance = self._instance(done, index, segment)
            if isinstance(instance, RunsAsynchronously):
                span = instance.settled_span()
                if span is not None:
                    done.spans[index] = (span[0] - done.start, span[1] - done.start)
                    queued = True
        if queued:
            for tensor in self.outputs:
                if (value := done.slot.tensors.get((tensor, self.routes.host))) is not None:
                    self.mover.arrived(value)
            done.arrival = time.perf_counter() - done.start

    def run_segment(self, request: RequestProgress, index: int) -> None:
        """Run one segment and send its outputs on; what nobody reads any more is dropped."""
        slot, segment, route = request.slot, self.segments[index], self.routes.segments[index]
        held = slot.tensors
        memory = route.memory
        # The list is the only one that holds what this segment reads last.
        entering = [
            held.pop((tensor, memory)) if last else held[tensor, memory]
            for tensor, last in zip(segment.inputs, route.takes, strict=True)
        ]
        values = self._instance(request, index, segment).run(entering)
        for tensor, value, stays, memories in zip(
            segment.outputs, values, route.stays, route.goes_to, strict=True
        ):
            if stays:
                held[tensor, memory] = value
            for other in memories:
                held[tensor, other] = self._moved(request, value, segment.device, other)
            if slot.kept is not None:
                slot.kept[tensor] = value

    def _instance(
        self, request: RequestProgress, index: int, segment: OpSegment
    ) -> SegmentInstance:
        member = self.members.serving(segment.device, request.number)
        return request.slot.instances[index][member - self.members.first[segment.device]]

    def send_inputs(self, request: RequestProgress) -> None:
        slot = request.slot
        slot.tensors.clear()
        for tensor, value, memories in zip(
            self.inputs, slot.inputs or (), self.routes.inputs, strict=True
        ):
            slot.tensors[tensor, self.routes.host] = value
            for memory in memories:
                if memory != self.routes.host:
                    moved = self._moved(request, value, None, memory)
                    slot.tensors[tensor, memory] = moved
            if slot.kept is not None:
                slot.kept[tensor] = value

    def _moved(
        self, request: RequestProgress, value: NativeTensor, source: int | None, memory: int
    ) -> NativeTensor:
        assert self.mover is not None  # without it there is one memory, and nothing moves
        ends: list[Device | None] = [
            None
            if place is None or place == self.routes.host
            else self.members.devices[self.members.serving(place, request.number)]
            for place in (source, memory)
        ]
        return self.mover.move(value, *ends)

    def execution(self, done: RequestProgress) -> Execution:
        to_host, tensors = self.model.to_host, done.slot.tensors
        kept = {tensor: to_host(value) for tensor, value in (done.slot.kept or {}).items()}
        outputs = tuple(
            self._constant(at)
            if port.tensor == NO_TENSOR
            else to_host(tensors[port.tensor, self.routes.host])
            for at, port in enumerate(self.model.signature.outputs)
        )
        return Execution(outputs, kept, done.seconds, tuple(done.spans), done.start)

    def _constant(self, at: int) -> HostArray:
        """The value of an output that no input changes and no op makes."""
        if self._plain_outputs is None:
            inputs = self.model.random_inputs(np.random.default_rng(0))
            self._plain_outputs = self.model.plain(self.members.devices[0])(inputs)
        return self._plain_outputs[at].copy()
