"""The runner in its callers' threads: outputs, turns of devices, errors, equal cores."""

from __future__ import annotations

import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from execution.adding import DEVICES, Adding, expected, layered, plans
from hypothesis import given, settings

from placewright.core.graph import ComputationGraph
from placewright.errors import InputError, RuntimeFailure, UnsuitableInputs
from placewright.execution.direct import DirectRunner, split_copy, whole_copies
from placewright.execution.inputs import cannot_compute
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import segments_of_ops, whole_segment


@settings(max_examples=60)
@given(plans())
def test_any_split_computes_what_the_graph_says(
    plan: tuple[ComputationGraph, list[tuple[int, list[int]]]],
) -> None:
    graph, parts = plan
    model: Any = Adding(graph)
    copy = split_copy(model, segments_of_ops(graph, parts), DEVICES)
    runner = DirectRunner(model, [copy], at_once=2)
    for x in range(3):
        outputs = runner.run([np.float64(x)]).outputs
        assert [float(value) for value in outputs] == expected(graph, float(x))
    assert set(model.threads.values()) == {threading.current_thread().name}


def test_a_device_runs_one_segment_of_many_callers_at_a_time() -> None:
    """Two devices therefore have two callers at work, and each caller gets its own answer."""
    graph = layered([(0, 1), (1, 2)], 3)
    lock, busy, most = threading.Lock(), [0, 0], [0, 0]
    device_of = [0, 1, 0]
    both = threading.Event()

    def hook(op: int) -> None:
        device = device_of[op]
        with lock:
            busy[device] += 1
            most[device] = max(most[device], busy[device])
            if busy == [1, 1]:
                both.set()
        time.sleep(0.001)
        with lock:
            busy[device] -= 1

    model: Any = Adding(graph, hook)
    parts = segments_of_ops(graph, [(0, [0]), (1, [1]), (0, [2])])
    runner = DirectRunner(model, [split_copy(model, parts, DEVICES)], at_once=3)

    def call(caller: int) -> list[list[float]]:
        inputs = [np.float64(100 * caller + x) for x in range(20)]
        return [[float(v) for v in runner.run([x]).outputs] for x in inputs]

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(call, range(6)))
    assert found == [[expected(graph, 100.0 * c + x) for x in range(20)] for c in range(6)]
    assert most == [1, 1]
    assert both.is_set()


@pytest.mark.parametrize("in_threads", [False, True])
def test_inputs_that_do_not_suit_are_an_error_of_inputs(in_threads: bool) -> None:
    def fail(op: int) -> None:
        raise cannot_compute("the library", "an index is out of bounds")

    graph = layered([(0, 1)], 2)
    model: Any = Adding(graph, fail)
    parts = segments_of_ops(graph, [(0, [0]), (1, [1])])
    runner: Any = (
        ConcurrentRunner(model, parts, DEVICES, in_flight=1)
        if in_threads
        else DirectRunner(model, [split_copy(model, parts, DEVICES)], at_once=1)
    )
    with runner, pytest.raises(UnsuitableInputs, match="an index is out of bounds"):
        runner.run([np.float64(0)])


@pytest.mark.parametrize("reason", ["CUDA out of memory", "Failed to allocate memory for buffer"])
def test_a_lack_of_memory_is_not_an_error_of_inputs(reason: str) -> None:
    error = cannot_compute("the library", reason)
    assert not isinstance(error, InputError)
    assert reason in str(error)


def test_an_error_names_the_segment_and_the_next_call_is_another_one() -> None:
    is_full = True

    def fail(op: int) -> None:
        if op == 1 and is_full:
            raise ValueError("no memory left")

    graph = layered([(0, 1)], 2)
    model: Any = Adding(graph, hook=fail)
    parts = segments_of_ops(graph, [(0, [0]), (1, [1])])
    runner = DirectRunner(model, [split_copy(model, parts, DEVICES)], at_once=1)
    with pytest.raises(RuntimeFailure, match=r"segment 1 on 'b' \[op 1\] failed: no memory left"):
        runner.run([np.float64(0)])
    is_full = False
    assert [float(v) for v in runner.run([np.float64(0)]).outputs] == expected(graph, 0.0)
    with pytest.raises(InputError, match="has 1 inputs, got values for 2"):
        runner.run([np.float64(0), np.float64(1)])
    runner.close()
    with pytest.raises(RuntimeFailure, match="closed; load the plan again"):
        runner.run([np.float64(0)])


def test_an_output_that_cannot_be_read_is_an_error_of_the_last_segment() -> None:
    """All segments have run by then, so that none of them is at work."""

    def fails(value: float) -> np.ndarray:
        raise MemoryError("no room for the output")

    graph = layered([(0, 1)], 2)
    model: Any = Adding(graph)
    model.to_host = fails
    model.reference = lambda device: model.compile([whole_segment(graph)], [device])[0]
    whole = DirectRunner(model, whole_copies(model, DEVICES), at_once=1)
    with pytest.raises(RuntimeFailure, match="the model on 'a' failed: no room"):
        whole.run([np.float64(0)])
    parts = segments_of_ops(graph, [(0, [0]), (1, [1])])
    split = DirectRunner(model, [split_copy(model, parts, DEVICES)], at_once=1)
    with pytest.raises(RuntimeFailure, match=r"segment 1 on 'b' \[op 1\] failed: no room"):
        split.run([np.float64(0)])


def test_timed_requests_repeat_the_last_inputs_and_tell_when_each_segment_ran() -> None:
    graph = layered([(0, 1)], 2)
    model: Any = Adding(graph, hook=lambda op: time.sleep(0.002))
    parts = segments_of_ops(graph, [(0, [0]), (1, [1])])
    with DirectRunner(model, [split_copy(model, parts, DEVICES)], at_once=1) as runner:
        with pytest.raises(RuntimeFailure, match="run the plan once before timing it"):
            runner.time(1)
        runner.run([np.float64(3)])
        seconds = runner.time(3)
        (first, second) = runner.last_timed.spans
    assert len(seconds) == 3
    assert min(seconds) >= 0.004
    assert 0.0 <= first[0] < first[1] <= second[0] < second[1] <= seconds[-1]
    with pytest.raises(RuntimeFailure, match="closed"):
        runner.time(1)


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_timed_request_takes_what_its_caller_waits(is_direct: bool) -> None:
    """Also for inputs that become the runtime's own, and outputs that become arrays."""
    graph = layered([(0, 1)], 2)
    model: Any = Adding(graph)
    parts = segments_of_ops(graph, [(0, [0]), (1, [1])])
    given, taken = model.from_host, model.to_host
    model.from_host = lambda value: (time.sleep(0.003), given(value))[1]
    model.to_host = lambda value: (time.sleep(0.002), taken(value))[1]
    split = DirectRunner(model, [split_copy(model, parts, DEVICES)], at_once=1)
    with split if is_direct else ConcurrentRunner(model, parts, DEVICES) as runner:
        with pytest.raises(RuntimeFailure, match="no request was timed"):
            assert runner.last_timed
        answer = runner.run([np.float64(3)])
        waited = runner.time(2)
        assert runner.last_timed.outputs == answer.outputs
        assert waited[-1] - runner.last_timed.seconds >= 0.005


def test_a_closed_runner_holds_no_inputs() -> None:
    model: Any = Adding(layered([(0, 1)], 2))
    parts = segments_of_ops(model.graph, [(0, [0]), (1, [1])])
    runner = DirectRunner(model, [split_copy(model, parts, DEVICES)], at_once=1)
    given = np.full(3, 2.0)
    held = weakref.ref(given)
    runner.run([given])
    del given
    assert held() is not None, "repeated by `time`"
    runner.close()
    assert held() is None
