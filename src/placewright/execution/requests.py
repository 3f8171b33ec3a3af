"""Requests in flight: their buffers and progress, and the way of their tensors between memories."""

from __future__ import annotations

import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Protocol, runtime_checkable

import numpy as np

from placewright.core.cluster import Device
from placewright.core.source import NO_TENSOR
from placewright.errors import RuntimeFailure
from placewright.execution.inputs import checked_inputs
from placewright.execution.members import Members
from placewright.execution.routes import routes_of
from placewright.execution.runtime import (
    CompiledSegment,
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

Place = tuple[int, int]  # tensor, memory
Sample = Sequence[HostArray]  # values of all inputs, in the model's own order


@dataclass(frozen=True)
class Execution:
    """A finished request."""

    outputs: tuple[HostArray, ...]  # all outputs, in the model's own order
    # tensor -> value of every tensor that left a segment, if requested
    tensors: Mapping[int, HostArray]
    seconds: float  # from the first segment's permission to start to the last segment's end
    # (start, end) of each segment in seconds since the request started
    spans: tuple[tuple[float, float], ...]
    start: float = 0.0  # when the request started, on the clock of `time.perf_counter`


Outcome = Execution | RuntimeFailure

_NUMBERS: ContextVar[Iterator[int] | None] = ContextVar("numbers", default=None)


CLOSED = "the runner is closed; load the plan again"


class TimesRequests(ABC):
    """A runner that repeats its last request and times it."""

    model: LoadedModel
    _last: Sequence[HostArray] | None = None  # inputs of the last request
    _last_timed: Execution | None = None

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """True if it can run requests."""

    @abstractmethod
    def run(self, inputs: Sequence[HostArray]) -> Execution:
        """Execute one request, and keep its inputs in `_last`."""

    def time(self, runs: int) -> list[float]:
        """Seconds that a caller waits for each of `runs` requests with the inputs of the last.

        A loaded plan checks the inputs of each call, so that this does, too.

        Raises:
            RuntimeFailure: a request failed, there was none before, or the runner is closed.
        """
        last = self._last
        if last is None:
            raise RuntimeFailure("run the plan once before timing it" if self.is_open else CLOSED)
        dtypes, seconds = self.model.input_dtypes(), []
        for _ in range(runs):
            begin = time.perf_counter()
            self._last_timed = self.run(checked_inputs(self.model, last, dtypes))
            seconds.append(time.perf_counter() - begin)
        return seconds

    @property
    def last_timed(self) -> Execution:
        """The last request that `time` has timed.

        Raises:
            RuntimeFailure: there is none.
        """
        if self._last_timed is None:
            raise RuntimeFailure("no request was timed")
        return self._last_timed

    def forget_last(self) -> None:
        """Release the inputs of the last request and the outputs of the last timed one."""
        self._last = self._last_timed = None


@runtime_checkable
class DrawsByRequest(Protocol):
    """An instance whose random numbers may depend on the request."""

    @property
    def is_random(self) -> bool:
        """True if it draws random numbers."""
        ...

    def begin(self, number: int) -> None:
        """Tell it the number of its next request."""
        ...


@contextmanager
def numbered(numbers: Iterator[int]) -> Iterator[None]:
    """Number the requests of all runners that are made inside together, in order of their start.

    Then random numbers depend neither on the runner nor on how many requests are in flight.
    """
    before = _NUMBERS.set(numbers)
    try:
        yield
    finally:
        _NUMBERS.reset(before)


def request_numbers() -> Iterator[int]:
    """Numbers of requests for a runner that is made here, see `numbered`; by default its own."""
    return _NUMBERS.get() or itertools.count()


def executions(outcomes: Iterable[Outcome]) -> list[Execution]:
    """Collect finished requests.

    Raises:
        RuntimeFailure: a request failed.
    """
    finished = []
    for outcome in outcomes:
        if isinstance(outcome, RuntimeFailure):
            raise outcome
        finished.append(outcome)
    return finished


def in_order(
    samples: Iterator[Sample],
    start: Callable[[int, Sample], None],
    wait: Callable[[], tuple[int, Outcome]],
    *,
    in_flight: int,
    window: int,
) -> Iterator[Outcome]:
    """Start samples as they come, and yield their outcomes in order.

    Args:
        samples: taken one by one, each as soon as the limits allow.
        start: starts sample number n.
        wait: waits for the next sample that ends; returns its number and its outcome.
        in_flight: most samples under way.
        window: most samples that are taken and not yet yielded.
    """
    outcomes: dict[int, Outcome] = {}
    taken = ended = yielded = 0
    is_open = True
    while True:
        while is_open and taken - ended < in_flight and taken - yielded < window:
            try:
                sample = next(samples)
            except StopIteration:
                is_open = False
                break
            start(taken, sample)
            taken += 1
        if yielded in outcomes:
            yield outcomes.pop(yielded)
            yielded += 1
        elif ended < taken:
            number, outcome = wait()
            outcomes[number] = outcome
            ended += 1
        else:
            return


@dataclass(eq=False)
class Slot:
    """Buffers of one request in flight; requests follow each other in it."""

    # an instance of each segment for each member of its device; members with the same compiled
    # segment share it
    instances: list[list[SegmentInstance]]
    # values of all graph inputs, ascending, in the host's memory; None before the first request
    inputs: list[NativeTensor] | None = None
    tensors: dict[Place, NativeTensor] = field(default_factory=dict)  # (tensor, memory) -> value
    # tensor -> value of every tensor that left a segment; None if not requested
    boundary: dict[int, NativeTensor] | None = None
    # whether each instance queues its work, see `RunsAsynchronously`; empty means that none does
    queues: list[list[bool]] = field(default_factory=list)
    random: tuple[DrawsByRequest, ...] = ()  # instances that draw random numbers

    @property
    def is_asynchronous(self) -> bool:
        """True if an instance queues its work."""
        return bool(self.queues)

    def reset_state(self) -> None:
        """Give the state of all instances its initial value."""
        for row in self.instances:
            for instance in row:
                instance.reset_state()


def new_slot(compiled: Sequence[Sequence[CompiledSegment]]) -> Slot:
    """Make buffers for one request.

    Args:
        compiled: each segment, for each member of its device.
    """
    instances: list[list[SegmentInstance]] = []
    for row in compiled:
        made = {id(x): x.instance() for x in {id(x): x for x in row}.values()}
        instances.append([made[id(x)] for x in row])
    # Asked once: a look at the type of each instance in each request takes longer than its cut.
    every = [made for row in instances for made in row]
    queues = [[isinstance(made, RunsAsynchronously) for made in row] for row in instances]
    random = tuple(made for made in every if isinstance(made, DrawsByRequest) and made.is_random)
    return Slot(instances, queues=queues if any(map(any, queues)) else [], random=random)


@dataclass(eq=False)
class RequestProgress:
    """Progress of a request."""

    slot: Slot
    number: int  # in its runner
    waiting: list[int]  # segments that each segment still waits for
    turns: list[int]  # next turn of each device; written by its worker alone
    spans: list[tuple[float, float]]
    left: int
    finished: SimpleQueue[RequestProgress] = field(
        default_factory=SimpleQueue
    )  # takes it, at its end
    start: float = field(default_factory=time.perf_counter)
    arrival: float = 0.0  # of the outputs at the host, if that is later than the last segment
    error: RuntimeFailure | None = None
    running: dict[int, None] = field(default_factory=dict)  # segments, as they began
    busy: int = 0  # segments that are being run
    lock: threading.Lock = field(default_factory=threading.Lock)
    draw: int = 0  # number by which its random operators draw, see `numbered`

    def begin(self) -> bool:
        """Note that a segment is about to run; return False if the request has failed."""
        with self.lock:
            if self.error is not None:
                return False
            self.busy += 1
            return True

    def end(self, dependents: Sequence[int]) -> tuple[bool, list[int]]:
        """Note that a segment has run.

        Args:
            dependents: segments that wait for it.

        Returns:
            True if no segment of the request is left or running, and the dependents that have
            become ready, none if the request has failed meanwhile.
        """
        ready: list[int] = []
        with self.lock:
            self.busy -= 1
            if self.error is not None:
                return self.busy == 0, ready
            self.left -= 1
            for dependent in dependents:
                self.waiting[dependent] -= 1
                if self.waiting[dependent] == 0:
                    ready.append(dependent)
            return self.left == 0, ready

    def fail(self, error: RuntimeFailure, *, running: bool) -> bool:
        """Give the request up; return True if none of its segments is running any more.

        Args:
            error: the first error of a request stays.
            running: whether a segment that had begun failed.
        """
        with self.lock:
            self.busy -= running
            is_first, self.error = self.error is None, self.error or error
            return self.busy == 0 and (is_first or running)

    @property
    def seconds(self) -> float:
        """Seconds from the start until the last segment has ended and outputs are at the host."""
        return max(self.arrival, max(end for _, end in self.spans))


class RequestTensors:
    """Runs segments of requests on the tensors that they hold.

    Args:
        segments: see `ConcurrentRunner`.
    """

    def __init__(self, model: LoadedModel, segments: Sequence[OpSegment], members: Members) -> None:
        self.model, self.segments, self.members = model, segments, members
        self.inputs = graph_inputs(model.graph)
        self.outputs = graph_outputs(model.graph)
        self.mover = model if isinstance(model, MovesTensors) else None
        self._moves = self.mover is not None and any(
            self.mover.has_own_memory(device) for device in members.devices
        )
        self.routes = routes_of(
            model.graph, segments, len(members.count), shared=self.mover is None
        )
        self._plain_outputs: list[HostArray] | None = None

    def settle(self, done: RequestProgress) -> None:
        """Wait for queued segments; their real spans replace those of queueing.

        A failure that shows only now becomes the request's error.
        """
        if self.mover is None or not done.slot.is_asynchronous:
            return
        waited: int | None = None
        try:
            for index, segment in enumerate(self.segments):
                instance = self._instance(done, index, segment)
                if isinstance(instance, RunsAsynchronously):
                    waited = index
                    begin, end = instance.settled_span()
                    done.spans[index] = (begin - done.start, end - done.start)
            waited = None
            for tensor in self.outputs:
                if (value := done.slot.tensors.get((tensor, self.routes.host))) is not None:
                    self.mover.arrived(value)
        except Exception as cause:  # libraries raise any type
            # Whatever was queued there behind the segment may have failed as well.
            what = (
                "the way of an output to the host"
                if waited is None
                else f"{self.describe(waited, done.number)}, or a later one there,"
            )
            reason = (str(cause) or type(cause).__name__).splitlines()[0]
            done.error = RuntimeFailure(f"{what} failed: {reason}")
            done.error.__cause__ = cause
        done.arrival = time.perf_counter() - done.start

    def run_segment(self, request: RequestProgress, index: int) -> float:
        """Run a segment and send its outputs on; tensors without further readers are dropped.

        Returns:
            ``time.perf_counter`` when it began to compute, with all its inputs there.
        """
        slot, segment, route = request.slot, self.segments[index], self.routes.segments[index]
        held = slot.tensors
        memory = route.memory
        # Only the list holds tensors that this segment reads last.
        entering = [
            held.pop((tensor, memory)) if last else held[tensor, memory]
            for tensor, last in zip(segment.inputs, route.takes, strict=True)
        ]
        instance = self._instance(request, index, segment)
        if slot.is_asynchronous and not slot.queues[index][self._member(request, segment)]:
            self._wait_for(entering)
        begin = time.perf_counter()
        values = instance.run(entering)
        for tensor, value, stays, memories in zip(
            segment.outputs, values, route.stays, route.goes_to, strict=True
        ):
            if stays:
                held[tensor, memory] = value
            for other in memories:
                held[tensor, other] = self._moved(request, value, segment.device, other)
            if slot.boundary is not None:
                slot.boundary[tensor] = value
        return begin

    def _wait_for(self, tensors: Sequence[NativeTensor]) -> None:
        """Wait until tensors are in the host's memory: an accelerator queues what makes them."""
        if self.mover is not None:
            for tensor in tensors:
                self.mover.arrived(tensor)

    def _instance(
        self, request: RequestProgress, index: int, segment: OpSegment
    ) -> SegmentInstance:
        return request.slot.instances[index][self._member(request, segment)]

    def _member(self, request: RequestProgress, segment: OpSegment) -> int:
        """Position of the member that serves the request, in those of the segment's device."""
        member = self.members.serving(segment.device, request.number)
        return member - self.members.first[segment.device]

    def send_inputs(self, request: RequestProgress) -> None:
        """Send the graph inputs of a request to the memories where they are read."""
        slot = request.slot
        for instance in slot.random:
            instance.begin(request.draw)
        slot.tensors.clear()
        for tensor, value, memories in zip(
            self.inputs, slot.inputs or (), self.routes.inputs, strict=True
        ):
            slot.tensors[tensor, self.routes.host] = value
            for memory in memories:
                if memory != self.routes.host:
                    moved = self._moved(request, value, None, memory)
                    slot.tensors[tensor, memory] = moved
            if slot.boundary is not None:
                slot.boundary[tensor] = value

    def _moved(
        self, request: RequestProgress, value: NativeTensor, source: int | None, memory: int
    ) -> NativeTensor:
        if not self._moves:
            return value
        assert self.mover is not None
        ends: list[Device | None] = [
            None
            if place is None or place == self.routes.host
            else self.members.devices[self.members.serving(place, request.number)]
            for place in (source, memory)
        ]
        return self.mover.move(value, *ends)

    def execution(self, done: RequestProgress) -> Execution:
        """Collect the outputs and times of a finished request."""
        to_host, tensors = self.model.to_host, done.slot.tensors
        boundary = {tensor: to_host(value) for tensor, value in (done.slot.boundary or {}).items()}
        outputs = tuple(
            self._constant(at)
            if port.tensor == NO_TENSOR
            else to_host(tensors[port.tensor, self.routes.host])
            for at, port in enumerate(self.model.signature.outputs)
        )
        return Execution(outputs, boundary, done.seconds, tuple(done.spans), done.start)

    def describe(self, index: int, request: int = 0) -> str:
        """Text of a segment for messages: number, device that runs it for a request, and ops."""
        segment, names = self.segments[index], self.model.graph.op_names
        shown = ", ".join(names[op] for op in segment.ops[:3])
        more = f", ... ({len(segment.ops)} ops)" if len(segment.ops) > 3 else ""
        device = self.members.devices[self.members.serving(segment.device, request)].name
        return f"segment {index} on '{device}' [{shown}{more}]"

    def _constant(self, at: int) -> HostArray:
        """Value of an output that depends on no input and that no op makes."""
        if self._plain_outputs is None:
            inputs = self.model.random_inputs(np.random.default_rng(0))
            self._plain_outputs = self.model.plain(self.members.devices[0])(inputs)
        return self._plain_outputs[at].copy()
