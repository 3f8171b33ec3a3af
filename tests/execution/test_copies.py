"""One copy of the model per device: order, back pressure, failures, who leaves early."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from execution.adding import Adding, Unlucky, expected, layered

from placewright.core.cluster import Device
from placewright.errors import RuntimeFailure
from placewright.execution.placements import CopyPerDevice
from placewright.execution.requests import Execution, executions
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import segments_of_ops

GRAPH = layered([(0, 1)], 2)


def copies(model: Any, count: int, **options: Any) -> CopyPerDevice:
    whole = segments_of_ops(GRAPH, [(0, [0, 1])])
    return CopyPerDevice(
        [ConcurrentRunner(model, whole, [Device(f"d{at}")]) for at in range(count)], **options
    )


@pytest.mark.parametrize("count", [1, 2, 5])
def test_samples_come_back_in_order_from_any_number_of_copies(count: int) -> None:
    with copies(Adding(GRAPH), count) as way:
        answers = way.run_many([[np.float64(x)] for x in range(100)])
    found = [[float(v) for v in one.outputs] for one in answers]
    assert found == [expected(GRAPH, float(x)) for x in range(100)]


def test_inputs_are_taken_as_answers_are_fetched() -> None:
    taken: list[int] = []

    def source() -> Iterator[list[Any]]:
        for x in range(40):
            taken.append(x)
            yield [np.float64(x)]

    with copies(Adding(GRAPH), 2, in_flight=3) as way:
        for x, _ in enumerate(way.outcomes(source())):
            assert len(taken) <= x + 3
    assert taken == list(range(40))


def test_a_failure_is_that_of_its_sample_alone() -> None:
    model = Unlucky(GRAPH, {3.0, 4.0}, 1)
    model.op = 0  # whose input is the sample's own
    with copies(model, 2) as way:
        answers = list(way.outcomes([np.float64(x)] for x in range(9)))
        assert [x for x, one in enumerate(answers) if not isinstance(one, Execution)] == [3, 4]
        with pytest.raises(RuntimeFailure, match="no luck"):
            way.run_many([[np.float64(3)]])


def test_a_copy_that_is_closed_takes_no_samples_from_the_others() -> None:
    """Its refusals would be faster than any answer."""
    released = threading.Event()
    with copies(Adding(GRAPH, lambda op: released.wait(0.01)), 2) as way:
        way._runners[0].close()
        answers = way.run_many([[np.float64(x)] for x in range(20)])
        assert [float(one.outputs[0]) for one in answers] == [
            expected(GRAPH, float(x))[0] for x in range(20)
        ]
        way._runners[1].close()
        with pytest.raises(RuntimeFailure, match="closed"):
            way.run_many([[np.float64(0)]])


def test_who_leaves_early_closes_all_copies() -> None:
    way = copies(Adding(GRAPH), 2)
    answers = way.outcomes([np.float64(x)] for x in range(9))
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    with pytest.raises(RuntimeFailure, match="closed"):
        way.run_many([[np.float64(0)]])


def test_the_next_sample_goes_to_whichever_copy_is_free() -> None:
    """One copy waits until the other has served all other samples."""
    others_done, served = threading.Event(), []

    def hook(op: int) -> None:
        if op != 0:
            return
        served.append(threading.current_thread().name)
        if len(served) == 1:
            assert others_done.wait(60)
        if len(served) == 10:
            others_done.set()

    with copies(Adding(GRAPH, hook), 2, in_flight=10) as way:
        assert len(way.run_many([[np.float64(x)] for x in range(10)])) == 10
    assert served.count(served[0]) == 1


def test_the_wait_for_a_free_copy_belongs_to_the_time_of_a_sample() -> None:
    """It was left out, so that a latency was that of a copy and not from entry to end."""
    both_entered = threading.Event()

    def source() -> Iterator[list[Any]]:
        yield [np.float64(0)]
        yield [np.float64(1)]
        both_entered.set()  # asked for a third one, the second one is in the queue

    def hook(op: int) -> None:
        assert both_entered.wait(60)

    with copies(Adding(GRAPH, hook), 1, in_flight=3) as way:
        first, second = executions(way.outcomes(source()))
    assert second.start < first.start + first.seconds
    assert second.start + second.spans[0][0] >= first.start + first.spans[-1][1]
    assert second.seconds == second.spans[-1][1]


def test_copies_that_never_end_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are told to stop before the first is waited for, and one second is for all of them."""
    now, told = [0.0], []

    class Endless:
        def stop(self) -> None:
            told.append("stop")

        def close(self, timeout: float = 10.0) -> None:
            told.append(timeout)
            now[0] += timeout

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    CopyPerDevice([Endless(), Endless(), Endless()]).close(1.0)  # type: ignore[list-item]
    assert told == ["stop", "stop", "stop", 1.0, 0.0, 0.0]


def test_an_interrupt_ends_copies_that_are_stuck() -> None:
    """Ctrl-C while every copy is within a segment: who waits gets the interrupt, and no more."""
    stuck, running = threading.Event(), threading.Semaphore(0)

    def hook(op: int) -> None:
        running.release()
        stuck.wait()

    def source() -> Iterator[list[Any]]:
        yield [np.float64(0)]
        yield [np.float64(1)]
        for _ in range(2):
            assert running.acquire(timeout=60)
        raise KeyboardInterrupt

    way = copies(Adding(GRAPH, hook), 2)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(way.outcomes(source()))
        assert not stuck.is_set()
        with pytest.raises(RuntimeFailure, match="closed"):
            way.run_many([[np.float64(0)]])
    finally:
        stuck.set()


class Counted(Adding):
    """Its only output is the number of the request, by which random operators would draw."""

    def compile(self, segments: Any, devices: Any) -> list[Any]:
        return [_Numbered() for _ in segments]


class _Numbered:
    is_random = True

    def instance(self) -> _Numbered:
        return _Numbered()

    def begin(self, number: int) -> None:
        self.number = number

    def run(self, inputs: Any) -> list[Any]:
        return [np.float64(self.number)]


def test_copies_draw_by_the_number_of_the_sample() -> None:
    with copies(Counted(GRAPH), 3) as way:
        answers = way.run_many([[np.float64(0)]] * 20)
    assert [float(one.outputs[0]) for one in answers] == list(range(20))
