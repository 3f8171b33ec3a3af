"""The value of a mean call beside the mean of the calls' own values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import placewright as pw
from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.core.source import Call, ModelSource, calls_option
from placewright.errors import FieldError, InputError
from placewright.profiling.hardware import Deadline, Stopwatch
from placewright.session import call_mix
from placewright.session.call_mix import checked_calls, unproven_of_calls
from placewright.session.measuring import Measured
from placewright.session.models import ModelOfRequest
from placewright.session.request import Request
from placewright.simulation.bounds.lower import Bound

FREE = (0.0, np.inf)  # latency and bandwidth of every link


def two_ops(left: float, right: float) -> Problem:
    """Two ops without a tensor between them, which take as long on both devices."""
    builder = GraphBuilder()
    for name in ("left", "right"):
        builder.add_op(name, "Op")
    return Problem.from_costs(builder.build(), [[left, left], [right, right]], FREE)


def plan_of_calls(parts: Sequence[Problem]) -> Plan:
    """A plan of the mean of two calls, each made once."""
    options = calls_option([Call(1, {"x": (1,)}), Call(1, {"x": (2,)})])
    mean = CostTable(frozen_floats(np.mean([part.costs.seconds for part in parts], axis=0)))
    source = ModelSource("model", "0" * 64, "none", options=options)
    problem = replace(parts[0], costs=mean, source=source)
    plan = pw.place(replace(problem, source=None), budget=pw.Budget(evaluations=20))
    return replace(plan, problem=problem)


@pytest.mark.parametrize(
    ("calls", "says"), [(((4.0, 0.0), (0.0, 4.0)), True), (((4.0, 4.0),) * 2, False)]
)
def test_a_plan_says_if_its_calls_take_longer_than_the_mean_call(
    calls: tuple[tuple[float, float], ...], says: bool
) -> None:
    """Calls of 4 and 0 seconds, and of 0 and 4: each takes 4 s, and the mean call 2 s."""
    parts = [two_ops(*call) for call in calls]
    plan = plan_of_calls(parts)
    with pytest.raises(InputError, match="mean costs of several calls; place the model itself"):
        pw.place(plan.problem, budget=pw.Budget(evaluations=20))
    assert plan.placement.device_of.tolist() in ([0, 1], [1, 0])
    model = ModelOfRequest(Request(plan.problem))
    checked = checked_calls(plan, parts, model, compares=False)
    clause = "the calls' own values: their mean is 4"
    assert any(clause in text for text in checked.left_out) == says


def test_calls_are_neither_compared_nor_bounded_for_long_after_the_total(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each was loaded and compared, and got five seconds for its bound."""
    parts = [two_ops(4.0, 0.0), two_ops(0.0, 4.0)]
    plan, limits, real = plan_of_calls(parts), list[float](), call_mix.lower_bound

    def lower_bound(problem: Problem, seconds: float) -> Bound:
        limits.append(seconds)
        return real(problem, seconds)

    monkeypatch.setattr(call_mix, "lower_bound", lower_bound)
    model = ModelOfRequest(Request(plan.problem))
    over = Deadline(0.0, Stopwatch(lambda: 1.0))
    checked = checked_calls(plan, parts, model, compares=True, deadline=over)
    clause = "; the total ended before outputs of 1 x x [1], 1 x x [2] were compared"
    assert call_mix.UNMEASURED + clause in checked.left_out
    ahead = Deadline(6.0, Stopwatch(lambda: 0.0))
    checked_calls(plan, parts, model, compares=False, deadline=ahead)
    checked_calls(plan, parts, model, compares=False)
    assert limits == [0.0, 0.0, 3.0, 3.0, 5.0, 5.0]


def test_calls_name_no_omission_that_a_second_measurement_has_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The longer call is measured again, with its overheads."""
    calls = (Call(1, {"x": (1,)}), Call(9, {"x": (2,)}))

    def model_of(call: Call, of_calls: tuple[Call, ...] = ()) -> Any:
        source = ModelSource("model", "0" * 64, "none", shapes=call.shapes)
        problem = replace(two_ops(1.0, 1.0), source=source)
        read = SimpleNamespace(graph=problem.graph, source=source, problem=problem)
        return SimpleNamespace(request=SimpleNamespace(calls=of_calls, state={}), read=read)

    def measure(model: Any, /, units: Grouping | None, *, calibrate: bool) -> Measured:
        rows = model.read.source.shapes["x"][0]
        return Measured(model.read.problem, (f"call of {rows}, calibrated: {calibrate}",))

    monkeypatch.setattr(call_mix, "_with_shapes", lambda _, call: model_of(call))
    found = call_mix.mixed(model_of(calls[0], calls), measure, calibrate=True)
    assert found.left_out == ("call of 1, calibrated: False", "call of 2, calibrated: True")


def test_calls_are_refused_for_a_runtime_that_could_not_run_their_plan(tmp_path: Path) -> None:
    """A plan was written that nothing runs."""
    (tmp_path / "m.onnx").touch()
    with pytest.raises(FieldError, match="'onnxruntime' loads one; argument `runtime` torch does"):
        pw.place(
            str(tmp_path / "m.onnx"), calls=["1:x=1,3", "9:x=2,3"], runtime="onnxruntime",
            devices="cpu:0",
        )  # fmt: skip


@pytest.mark.parametrize("limit", [np.inf, 8.0])
def test_a_plan_of_calls_that_is_cut_short_claims_no_bound(limit: float) -> None:
    """The bound is that of the mean call, and each call has to keep the limits."""
    problem = two_ops(2.0, 2.0)
    limited = tuple(replace(device, memory_bytes=limit) for device in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=limited))
    plan = pw.place(problem, budget=pw.Budget(evaluations=20))
    assert plan.lower_bound > 0
    assert unproven_of_calls(plan, []) is plan
    builder = GraphBuilder()
    for name in ("left", "right"):
        builder.add_op(name, "Op", weights=[builder.add_weight(16)])
    part = replace(problem, graph=builder.build())
    unproven = unproven_of_calls(plan, [problem, part])
    if limit < np.inf:
        assert unproven is None
    else:
        assert unproven is not None
        assert (unproven.lower_bound, unproven.status) == (0.0, "feasible")
