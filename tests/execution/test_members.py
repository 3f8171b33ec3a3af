"""Groups of devices that take turns: who runs what, failures, and members that nobody named."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from execution.adding import Adding, Compiling, expected, layered

from placewright.core.cluster import Device
from placewright.errors import ClusterError, RuntimeFailure, TimedOut
from placewright.execution.members import Members
from placewright.execution.requests import Execution
from placewright.execution.runner import ConcurrentRunner, time_limit
from placewright.execution.runtime import segments_of_ops

GROUP = Device("a+b+c", replicas=3, members=(Device("a"), Device("b"), Device("c")))
DEVICES = (Device("first"), GROUP)


class Witness(Adding):
    """Takes note of which thread ran which op on which input."""

    def __init__(self, graph: Any) -> None:
        super().__init__(graph)
        self.ran: list[tuple[int, str, float]] = []

    def compile(self, segments: Any, devices: Any) -> list[Any]:
        return [
            _Witnessed(self, one, devices[segment.device].name)
            for one, segment in zip(super().compile(segments, devices), segments, strict=True)
        ]


class _Witnessed:
    def __init__(self, model: Witness, inner: Any, device: str) -> None:
        self.model, self.inner, self.device = model, inner, device

    def instance(self) -> _Witnessed:
        return self

    def run(self, inputs: Any) -> list[Any]:
        assert threading.current_thread().name == f"placewright {self.device}"
        op, value = self.inner.segment.ops[0], float(inputs[0])
        self.model.ran.append((op, self.device, value))
        if op == 1 and value == 5.0:
            raise ValueError("no luck")
        return self.inner.run(inputs)


@pytest.mark.parametrize("in_flight", [1, 2, 3, 5])
def test_member_n_mod_r_serves_request_n(in_flight: int) -> None:
    graph = layered([(0, 1)], 2)
    model: Any = Witness(graph)
    parts = segments_of_ops(graph, [(0, [0]), (1, [1])])
    with ConcurrentRunner(model, parts, DEVICES, in_flight=in_flight) as runner:
        answers = runner.run_many([[np.float64(10 * x)] for x in range(12)])
    for x, answer in enumerate(answers):
        assert [float(v) for v in answer.outputs] == expected(graph, float(10 * x))
    served = {value: device for op, device, value in model.ran if op == 1}
    assert [served[value] for value in sorted(served)] == ["a", "b", "c"] * 4
    assert all(device == "first" for op, device, _ in model.ran if op == 0)


def test_a_failure_names_the_member_and_leaves_the_turns_as_they_are() -> None:
    graph = layered([], 2)
    model: Any = Witness(graph)
    parts = segments_of_ops(graph, [(0, [0]), (1, [1])])
    with ConcurrentRunner(model, parts, DEVICES, in_flight=3) as runner:
        answers = list(runner.outcomes([np.float64(x)] for x in range(9)))
    assert [x for x, one in enumerate(answers) if not isinstance(one, Execution)] == [5]
    with pytest.raises(RuntimeFailure, match=r"segment 1 on 'c' \[op 1\] failed: no luck"):
        raise answers[5]  # type: ignore[misc]
    served = {value: device for op, device, value in model.ran if op == 1}
    assert served == {float(x): "abc"[x % 3] for x in range(9)}


def test_members_that_share_what_is_compiled_share_its_buffers() -> None:
    graph = layered([], 1)
    model: Any = Adding(graph)
    made: list[Any] = []

    class Kept:
        def instance(self) -> Any:
            made.append(self)
            return self

    model.compile = lambda segments, devices: [kept for _ in segments]
    kept = Kept()
    with ConcurrentRunner(model, segments_of_ops(graph, [(1, [0])]), DEVICES, in_flight=4):
        assert len(made) == 4


def test_a_group_that_does_not_tell_its_members_is_refused() -> None:
    graph = layered([], 1)
    devices = (replace(GROUP, members=()),)
    with pytest.raises(ClusterError, match=r"'a\+b\+c' stands for 3 devices, but lists no"):
        ConcurrentRunner(Adding(graph), segments_of_ops(graph, [(0, [0])]), devices)  # type: ignore[arg-type]


def test_members_are_as_many_as_replicas_and_single() -> None:
    with pytest.raises(ClusterError, match="stands for 3 devices, but has 2 members"):
        replace(GROUP, members=GROUP.members[:2])
    with pytest.raises(ClusterError, match=r"has member 'a\+b\+c', which is a group itself"):
        Device("d", replicas=1, members=(GROUP,))
    assert [one.name for one in Members.of(DEVICES).devices] == ["first", "a", "b", "c"]


def test_the_first_run_of_each_member_may_compile() -> None:
    """Each member of a group makes its own code, at the request that it serves first."""

    graph, released = layered([(0, 1)], 2), threading.Event()
    waits: Iterator[float | None] = iter([0.6, 0.6, 0.6, None])
    hook = {0: lambda: None, 1: lambda: released.wait(next(waits))}
    model: Any = Compiling(graph, hook=lambda op: hook[op]())
    try:
        with time_limit(0.2):
            runner = ConcurrentRunner(model, segments_of_ops(graph, [(0, [0]), (1, [1])]), DEVICES)
        with runner:
            for _ in range(3):
                assert [float(v) for v in runner.run([np.float64(0)]).outputs] == expected(graph, 0)
            with pytest.raises(TimedOut, match=r"has not returned after 0\.2 s"):
                runner.run([np.float64(0)])
    finally:
        released.set()
