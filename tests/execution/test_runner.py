"""The runner: order, concurrency, requests in flight, errors; with a runtime of plain functions."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from execution.adding import (
    DEVICES,
    Adding,
    AddingSegment,
    Compiling,
    expected,
    layered,
    plans,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.core.cluster import Device
from placewright.core.graph import ComputationGraph
from placewright.errors import ClusterError, GraphError, InputError, RuntimeFailure, TimedOut
from placewright.execution.runner import (
    ConcurrentRunner,
    allowed_seconds,
    current_limit,
    time_limit,
)
from placewright.execution.runtime import OpSegment, segments_of_ops


@settings(max_examples=60)
@given(plans(), st.integers(1, 4))
def test_any_plan_computes_what_the_graph_says(
    plan: tuple[ComputationGraph, list[tuple[int, list[int]]]], in_flight: int
) -> None:
    graph, parts = plan
    model: Any = Adding(graph)
    segments = segments_of_ops(graph, parts)
    with ConcurrentRunner(model, segments, DEVICES, in_flight=in_flight) as runner:
        results = runner.run_many([[np.float64(x)] for x in range(6)])
    for x, result in enumerate(results):
        assert [float(v) for v in result.outputs] == expected(graph, float(x))
        assert all(end >= start >= 0 for start, end in result.spans)


def test_segments_tell_the_precision_of_state_that_they_widen() -> None:
    """Most have no such state, and no method for it."""

    class Widening(AddingSegment):
        def state_eps(self) -> dict[str, float]:
            return {"weight": 2.0**-7}

    class Coarse(Adding):
        def compile(self, segments: Any, devices: Any) -> list[Any]:
            return [Widening(self, segments[0]), *super().compile(segments[1:], devices)]

    graph = layered([(0, 1)], 2)
    model: Any = Coarse(graph)
    with ConcurrentRunner(model, segments_of_ops(graph, [(0, [0]), (1, [1])]), DEVICES) as runner:
        assert runner.state_eps() == {"weight": 2.0**-7}


def test_devices_work_at_the_same_time() -> None:
    """Two ops that wait for each other finish only if both run at once."""
    graph = layered([], 2)
    barrier = threading.Barrier(2, timeout=120)
    model: Any = Adding(graph, hook=lambda op: barrier.wait() and None)
    with ConcurrentRunner(model, segments_of_ops(graph, [(0, [0]), (1, [1])]), DEVICES) as runner:
        runner.run([np.float64(0)])
    assert model.threads[0] != model.threads[1]


def test_a_device_keeps_the_plan_order() -> None:
    """Op 2 is ready from the start, but its device has op 1 first, which needs op 0 elsewhere."""
    graph = layered([(0, 1)], 3)
    seen: list[int] = []
    model: Any = Adding(graph, hook=seen.append)
    parts = segments_of_ops(graph, [(0, [0]), (1, [1]), (1, [2])])
    with ConcurrentRunner(model, parts, DEVICES) as runner:
        runner.run([np.float64(0)])
        seen.clear()
        runner.time(3)
    assert [op for op in seen if op != 0] == [1, 2] * 3


def test_an_error_in_a_worker_names_the_segment() -> None:
    is_full = True

    def fail(op: int) -> None:
        if op == 1 and is_full:
            raise ValueError("no memory left")

    graph = layered([(0, 1)], 2)
    model: Any = Adding(graph, hook=fail)
    runner = ConcurrentRunner(model, segments_of_ops(graph, [(0, [0]), (1, [1])]), DEVICES)
    with pytest.raises(RuntimeFailure, match=r"segment 1 on 'b' \[op 1\] failed: no memory left"):
        runner.run([np.float64(0)])
    is_full = False  # the next request is another one, perhaps of another thread
    assert [float(v) for v in runner.run([np.float64(0)]).outputs] == expected(graph, 0.0)
    assert runner.is_open
    runner.close()
    assert not runner.is_open
    for use in (lambda: runner.run([np.float64(0)]), runner.reset_state):
        with pytest.raises(RuntimeFailure, match="closed; load the plan again"):
            use()


def test_an_input_that_cannot_be_sent_fails_its_request_only() -> None:
    """Such as a card whose memory is full for a while: the runner serves the next request."""

    class Card(Adding):
        is_full = True

        def has_own_memory(self, device: Device) -> bool:
            return True

        def move(self, tensor: Any, source: Device | None, destination: Device | None) -> Any:
            if self.is_full:
                raise MemoryError("out of memory")
            return tensor

        def arrived(self, tensor: Any) -> None:
            pass

    graph = layered([(0, 1)], 2)
    model: Any = Card(graph)
    with ConcurrentRunner(model, segments_of_ops(graph, [(0, [0]), (1, [1])]), DEVICES) as runner:
        with pytest.raises(RuntimeFailure, match="input could not be sent to its device: out of"):
            runner.run([np.float64(0)])
        failed, *_ = runner.outcomes([[np.float64(0)]])
        assert isinstance(failed, RuntimeFailure)
        model.is_full = False
        assert [float(v) for v in runner.run([np.float64(1)]).outputs] == expected(graph, 1.0)


def test_a_segment_begins_when_its_inputs_have_arrived() -> None:
    """An accelerator before it has only queued its work, which is no time of the segment."""

    arrived_at: list[float] = []

    class Queued(AddingSegment):
        def settled_span(self) -> tuple[float, float]:
            return 0.0, 0.0

    class Queueing(Adding):
        def compile(self, segments: Sequence[OpSegment], devices: Sequence[Device]) -> list[Any]:
            return [Queued(self, segments[0]), AddingSegment(self, segments[1])]

        def has_own_memory(self, device: Device) -> bool:
            return True

        def move(self, tensor: Any, source: Device | None, destination: Device | None) -> Any:
            return tensor

        def arrived(self, tensor: Any) -> None:
            time.sleep(0.001)
            arrived_at.append(time.perf_counter())

    graph = layered([(0, 1)], 2)
    model: Any = Queueing(graph)
    with ConcurrentRunner(model, segments_of_ops(graph, [(0, [0]), (1, [1])]), DEVICES) as runner:
        done = runner.run([np.float64(1)])
    begin, _ = done.spans[1]
    assert done.start + begin >= arrived_at[0]


def test_many_threads_call_one_runner() -> None:
    """As many requests are under way as may be in flight, and every caller gets its own answer."""
    graph = layered([(0, 1), (0, 2), (1, 3), (2, 3)], 4)
    lock, under_way, most = threading.Lock(), 0, 0

    def hook(op: int) -> None:
        nonlocal under_way, most
        with lock:
            under_way += (op == 0) - (op == 3)
            most = max(most, under_way)
        time.sleep(0.0002)

    model: Any = Adding(graph, hook)
    parts = segments_of_ops(graph, [(0, [0]), (1, [1]), (2, [2]), (0, [3])])
    with ConcurrentRunner(model, parts, DEVICES, in_flight=3) as runner:

        def call(caller: int) -> list[list[float]]:
            given = [[np.float64(100 * caller + x)] for x in range(50)]
            return [[float(v) for v in runner.run(one).outputs] for one in given]

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(call, range(8)))
    right = [[expected(graph, 100.0 * c + x) for x in range(50)] for c in range(8)]
    assert found == right
    assert most <= 3


def test_an_order_that_cannot_execute_is_refused() -> None:
    graph = layered([(0, 1)], 2)
    model: Any = Adding(graph)
    with pytest.raises(RuntimeFailure, match="segment 0 needs segment 1"):
        ConcurrentRunner(model, segments_of_ops(graph, [(0, [1]), (1, [0])]), DEVICES)


def test_wrong_number_of_inputs() -> None:
    graph = layered([], 1)
    model: Any = Adding(graph)
    with (
        ConcurrentRunner(model, segments_of_ops(graph, [(0, [0])]), DEVICES) as runner,
        pytest.raises(InputError, match="has 1 inputs, got values for 2"),
    ):
        runner.run([np.float64(0), np.float64(1)])


def test_segments_cover_every_op_once() -> None:
    graph = layered([(0, 1)], 2)
    with pytest.raises(GraphError, match="'op 1' is in no segment"):
        segments_of_ops(graph, [(0, [0])])
    with pytest.raises(GraphError, match="'op 0' is in two segments"):
        segments_of_ops(graph, [(0, [0, 1]), (1, [0])])


def test_all_boundary_tensors_on_request() -> None:
    graph = layered([(0, 1)], 2)
    model: Any = Adding(graph)
    parts = segments_of_ops(graph, [(0, [0]), (1, [1])])
    with ConcurrentRunner(model, parts, DEVICES) as runner:
        kept = runner.run([np.float64(5)], keep_tensors=True).tensors
    assert {tensor: float(value) for tensor, value in kept.items()} == {0: 5.0, 1: 6.0, 2: 8.0}


def test_a_worker_that_cannot_start_is_reported() -> None:
    class Failing(Adding):
        def worker_setup(self, device: Device) -> Callable[[], None]:
            def setup() -> None:
                raise OSError("no such core")

            return setup

    graph = layered([], 1)
    model: Any = Failing(graph)
    runner = ConcurrentRunner(model, segments_of_ops(graph, [(0, [0])]), DEVICES)
    with pytest.raises(RuntimeFailure, match="the worker of 'a' cannot start: no such core"):
        runner.run([np.float64(0)])


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals cannot be sent here")
@pytest.mark.parametrize("many", [True, False])
def test_an_interrupt_ends_the_workers(many: bool) -> None:
    """Ctrl-C comes while the caller waits for op 1, whose result must not be taken for a later
    one."""
    armed, others = threading.Event(), threading.enumerate()

    def interrupt(op: int) -> None:
        if armed.is_set() and op == 1:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    graph = layered([(0, 1)], 2)
    model: Any = Adding(graph, hook=interrupt)
    runner = ConcurrentRunner(model, segments_of_ops(graph, [(0, [0]), (1, [1])]), DEVICES)
    runner.run([np.float64(0)])
    armed.set()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            runner.run([np.float64(0)]) if many else runner.time(1)
    finally:
        signal.signal(signal.SIGINT, before)
    mine = [t for t in threading.enumerate() if t not in others]
    assert not [t for t in mine if t.name.startswith("placewright")]
    with pytest.raises(RuntimeFailure, match=r"closed|run the plan once"):
        runner.time(1)


def test_a_minute_or_twenty_times_as_predicted() -> None:
    assert allowed_seconds(0.001) == 60.0
    assert allowed_seconds(30.0) == 600.0
    assert current_limit() == float("inf")
    with time_limit(3.0):
        assert current_limit() == 3.0
    assert current_limit() == float("inf")


def test_a_segment_that_never_returns_is_named() -> None:
    graph, released = layered([(0, 1)], 2), threading.Event()

    def hang(op: int) -> None:
        if op == 1:
            released.wait()

    model: Any = Adding(graph, hook=hang)
    try:
        with time_limit(0.2):
            runner = ConcurrentRunner(model, segments_of_ops(graph, [(0, [0]), (1, [1])]), DEVICES)
        with runner, pytest.raises(TimedOut, match=r"segment 1 on 'b' \[op 1\] has not returned"):
            runner.run([np.float64(0)])
    finally:
        released.set()


def test_the_limit_of_a_request_leaves_out_those_before_it() -> None:
    graph, idle = layered([], 1), threading.Event()
    model: Any = Adding(graph, hook=lambda op: idle.wait(0.5))
    with time_limit(1.4):
        runner = ConcurrentRunner(model, segments_of_ops(graph, [(0, [0])]), DEVICES, in_flight=4)
    with runner:
        answers: list[float] = []

        def call() -> None:
            answers.append(float(runner.run([np.float64(0)]).outputs[0]))

        callers = [threading.Thread(target=call) for _ in range(4)]  # the last one takes 2 s
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert answers == [1.0] * 4


def test_the_first_run_of_a_segment_may_compile() -> None:
    """The limit is longer until a request has ended, and as it was from then on."""

    graph, released = layered([(0, 1)], 2), threading.Event()
    waits: Iterator[float | None] = iter([0.6, 0.0, None])
    hook = {0: lambda: released.wait(next(waits)), 1: lambda: None}
    model: Any = Compiling(graph, hook=lambda op: hook[op]())
    try:
        with time_limit(0.2):
            runner = ConcurrentRunner(model, segments_of_ops(graph, [(0, [0]), (1, [1])]), DEVICES)
        with runner:
            for _ in range(2):
                assert [float(v) for v in runner.run([np.float64(0)]).outputs] == expected(graph, 0)
            with pytest.raises(TimedOut, match=r"has not returned after 0\.2 s"):
                runner.run([np.float64(0)])
    finally:
        released.set()


def test_a_worker_that_ends_ends_the_run() -> None:
    """What kills a worker outside of its segments is never seen by those who wait for it."""

    class Dying(ConcurrentRunner):
        def _is_ready(self, request: Any, device: int) -> bool:
            raise SystemExit  # ends the thread without a word

    graph = layered([], 1)
    model: Any = Adding(graph)
    with (
        Dying(model, segments_of_ops(graph, [(2, [0])]), DEVICES) as runner,
        pytest.raises(RuntimeFailure, match="the worker 'placewright c' has ended"),
    ):
        runner.run([np.float64(0)])


def test_modes_of_a_processor_never_compute_at_once() -> None:
    """Of any requests: three are in flight, and the other device computes beside both modes."""
    graph = layered([(0, 2), (1, 3), (2, 4), (3, 5), (1, 4)], 8)
    modes = (Device("a"), Device("b"), Device("a in bf16", processors=("a",)))
    on = [0, 2, 2, 0, 1, 2, 1, 0]
    lock, busy, beside = threading.Lock(), [0, 0], 0

    def hook(op: int) -> None:
        nonlocal beside
        at = int(on[op] == 1)
        with lock:
            busy[at] += 1
            assert busy[at] == 1
            beside += busy == [1, 1]
        time.sleep(0.0005)
        with lock:
            busy[at] -= 1

    model: Any = Adding(graph, hook)
    parts = segments_of_ops(graph, [(on[op], [op]) for op in range(8)])
    with ConcurrentRunner(model, parts, modes, in_flight=3) as runner:
        results = runner.run_many([[np.float64(x)] for x in range(12)])
    for x, result in enumerate(results):
        assert [float(v) for v in result.outputs] == expected(graph, float(x))
    assert {model.threads[op] for op in range(8) if on[op] != 1} == {"placewright a"}
    assert beside > 0


def test_devices_that_share_some_of_their_processors_are_refused() -> None:
    graph = layered([(0, 1)], 2)
    pair = (Device("a"), Device("both", processors=("a", "b")))
    model: Any = Adding(graph)
    with pytest.raises(ClusterError, match="'a' and 'both' share processor 'a', but not all"):
        ConcurrentRunner(model, segments_of_ops(graph, [(0, [0]), (1, [1])]), pair)
