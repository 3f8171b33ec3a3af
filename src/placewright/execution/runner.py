"""The concurrent runner: one worker thread per device, any number of requests in flight.

Devices that compute on the same processors (*modes*) have one worker together. So they never
compute at once, whichever requests are under way.

If a device stands for a group of r equal devices, each member has a worker and segments of its own;
member n mod r runs request number n.

Each worker executes its device's segments in plan order as their inputs arrive; the oldest request
goes first. Workers overlap, since runtimes release Python's lock while they compute. Devices with
one memory pass tensors by reference. Else a tensor leaves for every device that reads it as soon as
its segment has run, and each device drops it after its last reader there.

A device may die while it computes, and whatever waits for it would wait for ever. `time_limit`
therefore limits how long runners that are made inside it wait for the next request to end.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from queue import Empty, LifoQueue, SimpleQueue

from placewright.core.cluster import Device
from placewright.core.processors import first_on_processors, require_whole_processors
from placewright.errors import InputError, RuntimeFailure, TimedOut, failure_from
from placewright.execution.members import Members
from placewright.execution.requests import (
    CLOSED,
    Execution,
    Outcome,
    RequestProgress,
    RequestTensors,
    Slot,
    TimesRequests,
    in_order,
    new_slot,
    request_numbers,
)
from placewright.execution.routes import dependencies, turns_of
from placewright.execution.runtime import (
    ChangesCallers,
    ChangesState,
    CompiledSegment,
    CompilesAtFirstRun,
    HostArray,
    LoadedModel,
    NativeTensor,
    OpSegment,
    WidensState,
    graph_inputs,
)

_CHECK_SECONDS = 1.0  # between checks of the workers, while no request ends
_LEAST_SECONDS = 60.0
_TIMES_PREDICTED = 20.0
_SECONDS: ContextVar[float] = ContextVar("seconds", default=math.inf)


class ConcurrentRunner(TimesRequests):
    """Executes segments on all devices at once. A context manager; `close` ends its threads.

    If no request ends for as long as the `time_limit` in which the runner was made, the caller gets
    `TimedOut`, which names the segments that still run, and the runner closes.

    Args:
        segments: in an order in which they can execute; each device follows its own part of it.
        devices: ``segments[i].device`` indexes it; groups list their members.
        in_flight: requests that may be under way at the same time, >= 1.
        compiled: the segments, if the caller has compiled them already.

    Raises:
        RuntimeFailure: the runtime refuses a segment.
        ClusterError: a group does not list its members, or two devices share only some of their
            processors.
    """

    def __init__(
        self,
        model: LoadedModel,
        segments: Sequence[OpSegment],
        devices: Sequence[Device],
        *,
        in_flight: int = 1,
        compiled: Sequence[CompiledSegment] | None = None,
    ) -> None:
        if in_flight < 1:
            raise ValueError(f"in_flight must be >= 1, got {in_flight}")
        self.model, self.segments, self.devices = model, tuple(segments), tuple(devices)
        self._members = Members.of(self.devices)
        self._inputs = graph_inputs(model.graph)
        self._dependents, self._needs = dependencies(model.graph, self.segments)
        require_whole_processors(self.devices, "a runner")
        self._worker_of = first_on_processors(self.devices)
        self._turns = turns_of(self.segments, self._worker_of)
        if compiled is None:
            self._compiled = self._members.compiled(model, self.segments)
        else:
            self._compiled = [
                [made] * self._members.count[segment.device]
                for made, segment in zip(compiled, self.segments, strict=True)
            ]
        self._tensors = RequestTensors(model, self.segments, self._members)
        self._slots = [new_slot(self._compiled) for _ in range(in_flight)]
        self._free: LifoQueue[Slot] = LifoQueue()  # for single requests, the first slot on top
        for slot in reversed(self._slots):
            self._free.put(slot)
        self._queues: list[SimpleQueue[RequestProgress | None]] = [
            SimpleQueue() for _ in self._members.devices
        ]
        self._numbers, self._draws = itertools.count(), request_numbers()
        self._limit, self._is_stuck = current_limit(), False
        self._last_end = 0.0  # of any request, on the clock of `time.monotonic`
        self._first_run_seconds = max(
            segment.first_run_seconds if isinstance(segment, CompilesAtFirstRun) else 0.0
            for segment in itertools.chain([None], *self._compiled)
        )  # that are allowed until each member has ended a request
        self._first_runs_left = set(range(max(self._members.count, default=1)))
        self._changes_callers = model if isinstance(model, ChangesCallers) else None
        self._under_way: dict[int, RequestProgress] = {}
        self._workers = [
            self._worker(device, member)
            for device, row in enumerate(self._turns)
            if row
            for member in self._members.of_device(device)
        ]

    def __enter__(self) -> ConcurrentRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def burst(self) -> int:
        """Number of requests after which the pattern of their ends repeats: `in_flight`.

        Requests that share devices may end close together, so measure rates over whole groups.
        """
        return len(self._slots)

    def close(self, timeout: float = 10.0) -> None:
        """End the workers after their present segments; wait `timeout` seconds for all together."""
        self.stop()
        deadline = time.monotonic() + (0.0 if self._is_stuck else timeout)
        for worker in self._workers:
            worker.join(timeout=max(0.0, deadline - time.monotonic()))
        self._workers = []
        self.forget_last()

    def _give_up(self, error: BaseException) -> None:
        """Close the runner after an error, which the caller raises again.

        Requests under way must not outlive their caller. Workers get 10 s to end, but only 1 s if
        the error is an interrupt from the keyboard.
        """
        self.close(1.0 if isinstance(error, KeyboardInterrupt) else 10.0)

    def _require_open(self) -> None:
        if not self._workers:
            raise RuntimeFailure(CLOSED)

    def stop(self) -> None:
        """Let each worker end after its present segment, without waiting for it."""
        for queue in self._queues:
            queue.put(None)

    def run(self, inputs: Sequence[HostArray], *, keep_tensors: bool = False) -> Execution:
        """Execute one request.

        Several threads may call at the same time; calls beyond the requests in flight wait. A
        stream of requests must not share the runner.

        Args:
            inputs: values of all inputs, in the model's own order.
            keep_tensors: also return every tensor that left a segment.

        Raises:
            RuntimeFailure: a segment failed, and the message names it; or the runner is closed.
        """
        self._last = inputs
        values, slot = self._values(inputs), self._free.get()
        slot.inputs, slot.boundary = values, {} if keep_tensors else None
        try:
            self._require_open()  # also after having waited for others
            launched = self._launch(slot, SimpleQueue(), next(self._draws))
            done = self._next_finished(launched.finished)
            answer = self._tensors.execution(done) if done.error is None else done.error
        except BaseException as error:
            self._give_up(error)
            raise
        finally:
            self._free.put(slot)
        if isinstance(answer, RuntimeFailure):
            raise answer
        return answer

    def run_many(self, requests: Sequence[Sequence[HostArray]]) -> list[Execution]:
        """Execute requests, as many at a time as may be in flight; return executions in order."""
        return list(self.stream(requests))

    def stream(self, requests: Iterable[Sequence[HostArray]]) -> Iterator[Execution]:
        """Execute requests as `outcomes` does; the first failure closes the runner.

        Raises:
            RuntimeFailure: a segment failed; the message names it.
        """
        for outcome in self.outcomes(requests):
            if isinstance(outcome, RuntimeFailure):
                self.close()
                raise outcome
            yield outcome

    def outcomes(
        self, requests: Iterable[Sequence[HostArray]], draws: Iterator[int] | None = None
    ) -> Iterator[Outcome]:
        """Execute requests as they come; yield their executions or failures in order.

        With F in flight, request k + F is taken from `requests` only when the caller has fetched
        the answer to request k and asks for the next one. So a request may depend on that answer.
        Leaving the loop early closes the runner.

        Args:
            requests: values of all inputs of each, in the model's own order.
            draws: a number per request, from which its random operators draw; None takes the
                runner's own numbers.

        Raises:
            RuntimeFailure: the runner is closed.
        """
        self._require_open()
        draws = draws or self._draws
        free = deque(self._slots)
        finished: SimpleQueue[RequestProgress] = SimpleQueue()
        place_of: dict[int, int] = {}  # request number -> place in `requests`

        def start(place: int, inputs: Sequence[HostArray]) -> None:
            slot = free.popleft()
            slot.inputs, slot.boundary = self._values(inputs), None
            place_of[self._launch(slot, finished, next(draws)).number] = place

        def wait() -> tuple[int, Outcome]:
            done = self._next_finished(finished)
            outcome = self._tensors.execution(done) if done.error is None else done.error
            free.append(done.slot)
            return place_of.pop(done.number), outcome

        n_slots = len(self._slots)
        try:
            yield from in_order(iter(requests), start, wait, in_flight=n_slots, window=n_slots)
        except BaseException as error:
            self._give_up(error)
            raise

    def state_values(self) -> dict[str, HostArray]:
        """Name -> present value of all state that the segments change, parameters included.

        Empty if they change none, or if their framework does not return state.
        """
        values: dict[str, HostArray] = {}
        for segment in itertools.chain(*self._compiled):
            if isinstance(segment, ChangesState):
                values.update(segment.state_values())
        return values

    def state_eps(self) -> dict[str, float]:
        """Name -> distance from 1 to the next number, for state of types unknown to NumPy."""
        found: dict[str, float] = {}
        for segment in itertools.chain(*self._compiled):
            if isinstance(segment, WidensState):
                found.update(segment.state_eps())
        return found

    @property
    def is_open(self) -> bool:
        """True until the runner is closed; an interrupt or a request that never ends closes it."""
        return bool(self._workers)

    def reset_state(self) -> None:
        """Give all state its initial value; no request may be under way.

        Raises:
            RuntimeFailure: the runner is closed.
        """
        self._require_open()
        for slot in self._slots:
            slot.reset_state()

    def _next_finished(self, finished: SimpleQueue[RequestProgress]) -> RequestProgress:
        """Wait for the request that next arrives in `finished`, whatever its number.

        It is done, or has failed and nothing of it runs.

        Raises:
            TimedOut: no request ended for as long as the limit; the message names the running
                segments.
            RuntimeFailure: a worker has ended, so that no request ever will.
        """
        begin, done = time.monotonic(), None
        while done is None:
            # A request may wait for those before it, so that the limit starts again with each end.
            since = max(begin, self._last_end)
            left = self._limit + self._first_run_seconds - (time.monotonic() - since)
            try:
                done = finished.get(timeout=min(_CHECK_SECONDS, max(left, 0.0)))
            except Empty:
                self._require_progress(finished, is_over=left <= 0.0)
        self._last_end = time.monotonic()
        self._under_way.pop(done.number, None)
        if self._changes_callers is not None and not self._under_way:
            self._changes_callers.restore_caller()
        if done.error is None:
            self._first_runs_left.discard(done.number % max(self._members.count, default=1))
            if not self._first_runs_left:
                self._first_run_seconds = 0.0
            self._tensors.settle(done)
        return done

    def _require_progress(self, finished: SimpleQueue[RequestProgress], *, is_over: bool) -> None:
        """Raise if no request is going to end: a worker is gone, or the limit is over."""
        if not finished.empty():
            return
        self._require_open()
        if gone := [worker.name for worker in self._workers if not worker.is_alive()]:
            self._is_stuck = True
            raise RuntimeFailure(f"the worker '{gone[0]}' has ended, and its segments with it")
        if not is_over:
            return
        self._is_stuck = True
        running = [
            self._tensors.describe(index, request.number)
            for request in list(self._under_way.values())
            for index in list(request.running)
        ]
        what = " and ".join(running[:2]) or "a transfer between devices"
        limit = self._limit + self._first_run_seconds
        raise TimedOut(f"{what} has not returned after {limit:.3g} s; is the device alive?")

    def _values(self, inputs: Sequence[HostArray]) -> list[NativeTensor]:
        """Values of all graph inputs as the runtime's own tensors, in order of tensor numbers.

        Args:
            inputs: in the model's own order.

        Raises:
            InputError: there are more or fewer than the model has.
        """
        if (count := len(inputs)) != (n := len(self._inputs)):
            raise InputError(f"the model has {n} inputs, got values for {count}")
        return [self.model.from_host(value) for value in self.model.signature.ascending(inputs)]

    def _launch(
        self, slot: Slot, finished: SimpleQueue[RequestProgress], draw: int
    ) -> RequestProgress:
        n_segments = len(self.segments)
        needs, turns = list(self._needs), [0] * len(self.devices)
        request = RequestProgress(
            slot,
            next(self._numbers),
            needs,
            turns,
            [(0.0, 0.0)] * n_segments,
            n_segments,
            finished,
            draw=draw,
        )
        self._under_way[request.number] = request
        try:
            self._tensors.send_inputs(request)
        except Exception as cause:  # such as a card without free memory; libraries raise any type
            error = RuntimeFailure(f"an input could not be sent to its device: {cause}")
            error.__cause__ = cause
            request.fail(error, running=False)
            finished.put(request)
            return request
        for device, turns in enumerate(self._turns):
            if turns and self._needs[turns[0]] == 0:
                self._queues[self._members.serving(device, request.number)].put(request)
        return request

    def _worker(self, device: int, member: int) -> threading.Thread:
        served = self._members.devices[member]
        setup = self.model.worker_setup(served)
        thread = threading.Thread(
            target=self._work,
            args=(device, member, setup),
            name=f"placewright {served.name}",
            daemon=True,
        )
        thread.start()
        return thread

    def _work(self, device: int, member: int, setup: Callable[[], None]) -> None:
        """Loop of a worker: run segments of the requests in its queue until the queue holds None.

        Args:
            setup: called once in the worker's thread, before its first segment.
        """
        failure: RuntimeFailure | None = None
        try:
            setup()
        except BaseException as error:  # fails the first request, which else would wait for ever
            name = self._members.devices[member].name
            failure = RuntimeFailure(f"the worker of '{name}' cannot start: {error}")
        queue, turns = self._queues[member], self._turns[device]
        active: dict[int, RequestProgress] = {}
        while True:
            active = {n: x for n, x in active.items() if x.error is None}
            runnable = next((n for n in sorted(active) if self._is_ready(active[n], device)), None)
            if runnable is None or not queue.empty():
                request = queue.get()
                if request is None:
                    return
                if failure is not None:
                    if request.fail(failure, running=False):
                        request.finished.put(request)
                elif request.turns[device] < len(turns):  # else it has run all of its segments here
                    active[request.number] = request
                continue
            request = active[runnable]
            index = turns[request.turns[device]]
            request.turns[device] += 1
            if request.begin():
                self._execute(request, index)
            if request.turns[device] == len(turns):
                del active[runnable]

    def _is_ready(self, request: RequestProgress, device: int) -> bool:
        return request.waiting[self._turns[device][request.turns[device]]] == 0

    def _execute(self, request: RequestProgress, index: int) -> None:
        """Run segment `index`; queue the request at other devices that can go on now."""
        segment = self.segments[index]
        request.running[index] = None
        try:
            begin = self._tensors.run_segment(request, index)
        except BaseException as cause:  # a worker must never end silently
            name = self._tensors.describe(index, request.number)
            error = failure_from(cause, f"{name} failed: {cause}")
            del request.running[index]
            if request.fail(error, running=True):
                request.finished.put(request)
            return
        del request.running[index]
        request.spans[index] = (begin - request.start, time.perf_counter() - request.start)
        is_done, ready = request.end(self._dependents[index])
        worker_of = self._worker_of
        arrived = dict.fromkeys(worker_of[self.segments[dependent].device] for dependent in ready)
        arrived.pop(worker_of[segment.device], None)  # this worker checks by itself
        for device in arrived:
            self._queues[self._members.serving(device, request.number)].put(request)
        if is_done:
            request.finished.put(request)


def allowed_seconds(predicted: float) -> float:
    """The default `time_limit` in seconds: 20 times the predicted time, at least a minute.

    Args:
        predicted: seconds of a request: the sum of all op times or the plan's value, if larger.
    """
    return max(_LEAST_SECONDS, _TIMES_PREDICTED * predicted)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limit how long runners that are made inside wait for a request to end.

    Args:
        seconds: > 0, counted from the start of the wait or the last end of a request, whichever is
            later. Until each replica has ended a request, a fixed allowance is added: the largest
            `first_run_seconds` of the runner's segments.
    """
    before = _SECONDS.set(seconds)
    try:
        yield
    finally:
        _SECONDS.reset(before)


def current_limit() -> float:
    """Seconds of the innermost `time_limit` around the caller; inf without one."""
    return _SECONDS.get()
