"""Streams of requests: order, back pressure, requests in flight, requests that fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from execution.adding import DEVICES, Adding, Unlucky, expected, layered, plans
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.core.graph import ComputationGraph
from placewright.errors import RuntimeFailure
from placewright.execution.requests import Execution
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import segments_of_ops


def two_stages() -> ComputationGraph:
    return layered([(0, 1)], 2)


def test_answers_come_in_order_and_inputs_are_taken_as_answers_are_fetched() -> None:
    graph = two_stages()
    model: Any = Adding(graph)
    taken: list[int] = []

    def source() -> Iterator[list[Any]]:
        for x in range(50):
            taken.append(x)
            yield [np.float64(x)]

    parts = segments_of_ops(graph, [(0, [0]), (1, [1])])
    with ConcurrentRunner(model, parts, DEVICES, in_flight=3) as runner:
        for x, answer in enumerate(runner.stream(source())):
            assert [float(v) for v in answer.outputs] == expected(graph, float(x))
            assert len(taken) <= x + 3
    assert taken == list(range(50))


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_a_request_is_asked_for_after_the_answer_in_flight_before_it_was_fetched(
    in_flight: int,
) -> None:
    """Request k + F may be made of the answers to requests 0 .. k."""
    graph = two_stages()
    model: Any = Adding(graph)
    fetched: list[float] = []
    known: list[int] = []  # answers at hand when request number at was made

    def source() -> Iterator[list[Any]]:
        for _ in range(12):
            known.append(len(fetched))
            yield [np.float64(fetched[-1] if fetched else 0.0)]

    parts = segments_of_ops(graph, [(0, [0]), (1, [1])])
    with ConcurrentRunner(model, parts, DEVICES, in_flight=in_flight) as runner:
        for answer in runner.stream(source()):
            fetched.append(float(answer.outputs[0]))
    assert known == [max(0, at - in_flight + 1) for at in range(12)]
    right: list[float] = []
    for at in range(12):
        right += expected(graph, right[at - in_flight] if at >= in_flight else 0.0)
    assert fetched == right


def test_no_more_requests_are_under_way_than_were_allowed() -> None:
    graph = two_stages()
    lock, under_way, most = threading.Lock(), 0, 0

    def hook(op: int) -> None:
        nonlocal under_way, most
        with lock:
            under_way += op == 0
            most = max(most, under_way)
        if op == 1:
            time.sleep(0.001)
            with lock:
                under_way -= 1

    model: Any = Adding(graph, hook)
    parts = segments_of_ops(graph, [(0, [0]), (1, [1])])
    with ConcurrentRunner(model, parts, DEVICES, in_flight=2) as runner:
        assert len(runner.run_many([[np.float64(x)] for x in range(40)])) == 40
    assert most == 2


def test_ten_thousand_samples_pass_without_a_hang() -> None:
    graph = layered([(0, 1), (0, 2), (1, 3), (2, 3)], 4)
    model: Any = Adding(graph)
    parts = segments_of_ops(graph, [(0, [0]), (1, [1]), (2, [2]), (0, [3])])
    with ConcurrentRunner(model, parts, DEVICES, in_flight=4) as runner:
        answers = runner.stream([np.float64(x)] for x in range(10_000))
        found = [float(answer.outputs[0]) for answer in answers]
    step = expected(graph, 1.0)[0] - expected(graph, 0.0)[0]
    assert found == [expected(graph, 0.0)[0] + step * x for x in range(10_000)]


@settings(max_examples=60)
@given(plans(), st.integers(1, 4), st.data())
def test_a_request_that_fails_leaves_the_others_alone(
    plan: tuple[ComputationGraph, list[tuple[int, list[int]]]], in_flight: int, data: st.DataObject
) -> None:
    graph, parts = plan
    roots = [op for op in range(graph.n_ops) if not (graph.op_inputs.row(op) > 0).any()]
    op = data.draw(st.sampled_from(roots))
    bad = data.draw(st.sets(st.sampled_from([0.0, 1.0, 2.0, 5.0])))
    model: Any = Unlucky(graph, bad, op)
    segments = segments_of_ops(graph, parts)
    with ConcurrentRunner(model, segments, DEVICES, in_flight=in_flight) as runner:
        answers = list(runner.outcomes([np.float64(x)] for x in range(7)))
    for x, answer in enumerate(answers):
        # A segment may begin with another input than the sample's own; then it cannot tell.
        if isinstance(answer, Execution):
            assert [float(v) for v in answer.outputs] == expected(graph, float(x))
        else:
            assert "no luck" in str(answer)
            assert x in bad
    assert len(answers) == 7


def test_a_request_fails_while_its_other_branch_runs() -> None:
    """The slot is given to another sample only after the other branch has ended."""
    graph = layered([], 2)
    model: Any = Unlucky(graph, {1.0, 3.0}, 0)
    model.hook = lambda op: time.sleep(0.002) if op == 1 else None
    parts = segments_of_ops(graph, [(0, [0]), (1, [1])])
    with ConcurrentRunner(model, parts, DEVICES, in_flight=1) as runner:
        answers = list(runner.outcomes([np.float64(x)] for x in range(6)))
    failed = [x for x, one in enumerate(answers) if isinstance(one, RuntimeFailure)]
    assert failed == [1, 3]
    for x in (0, 2, 4, 5):
        assert [float(v) for v in answers[x].outputs] == expected(graph, float(x))  # type: ignore[union-attr]


def test_a_stream_that_must_not_fail_ends_with_the_first_failure() -> None:
    graph = two_stages()
    model: Any = Unlucky(graph, {2.0}, 0)
    parts = segments_of_ops(graph, [(0, [0]), (1, [1])])
    runner = ConcurrentRunner(model, parts, DEVICES, in_flight=2)
    answers = runner.stream([np.float64(x)] for x in range(9))
    assert len([next(answers), next(answers)]) == 2
    with pytest.raises(RuntimeFailure, match=r"segment 0 on 'a' \[op 0\] failed: no luck"):
        next(answers)
    with pytest.raises(RuntimeFailure, match="closed"):
        runner.run([np.float64(0)])


def test_who_leaves_a_stream_early_closes_the_runner() -> None:
    graph = two_stages()
    model: Any = Adding(graph)
    parts = segments_of_ops(graph, [(0, [0]), (1, [1])])
    runner = ConcurrentRunner(model, parts, DEVICES, in_flight=2)
    answers = runner.stream([np.float64(x)] for x in range(9))
    next(answers)
    answers.close()
    with pytest.raises(RuntimeFailure, match="closed"):
        runner.run([np.float64(0)])
