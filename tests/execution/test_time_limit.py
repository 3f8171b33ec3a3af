"""A segment that never returns and a worker that dies end the run, and are named."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from execution.test_runner import DEVICES, Adding, layered

from placewright.errors import RuntimeFailure, TimedOut
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import segments_of_ops
from placewright.execution.time_limit import allowed_seconds, current_limit, time_limit


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
