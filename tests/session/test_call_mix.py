"""The value of a mean call beside the mean of the calls' own values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import placewright as pw
from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.costs import CostTable
from placewright.core.problem import Problem
from placewright.core.source import Call, ModelSource, calls_option
from placewright.errors import InputError
from placewright.session.call_mix import checked_calls, unproven_of_calls
from placewright.session.models import ModelOfRequest
from placewright.session.request import Request

FREE = (0.0, np.inf)  # latency and bandwidth of every link


def two_ops(left: float, right: float) -> Problem:
    """Two ops without a tensor between them, which take as long on both devices."""
    builder = GraphBuilder()
    for name in ("left", "right"):
        builder.add_op(name, "Op")
    return Problem.from_costs(builder.build(), [[left, left], [right, right]], FREE)


@pytest.mark.parametrize(
    ("calls", "says"), [(((4.0, 0.0), (0.0, 4.0)), True), (((4.0, 4.0),) * 2, False)]
)
def test_a_plan_says_if_its_calls_take_longer_than_the_mean_call(
    calls: tuple[tuple[float, float], ...], says: bool
) -> None:
    """Calls of 4 and 0 seconds, and of 0 and 4: each takes 4 s, and the mean call 2 s."""
    parts = [two_ops(*call) for call in calls]
    options = calls_option([Call(1, {"x": (1,)}), Call(1, {"x": (2,)})])
    mean = CostTable(frozen_floats(np.mean([part.costs.seconds for part in parts], axis=0)))
    source = ModelSource("model", "0" * 64, "none", options=options)
    problem = replace(parts[0], costs=mean, source=source)
    budget = pw.Budget(evaluations=20)
    plan = replace(pw.place(replace(problem, source=None), budget=budget), problem=problem)
    with pytest.raises(InputError, match="mean costs of several calls; place the model itself"):
        pw.place(problem, budget=budget)
    assert plan.placement.device_of.tolist() in ([0, 1], [1, 0])
    model = ModelOfRequest(Request(problem))
    checked = checked_calls(plan, parts, model, compares=False)
    clause = "the calls' own values: their mean is 4"
    assert any(clause in text for text in checked.left_out) == says


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
