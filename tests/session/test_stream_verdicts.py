"""What is recommended for streams, what a plan then keeps, and limits on latency."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.contender_names import COPIES, MODE, PLAN
from placewright.core.costs import CostTable
from placewright.core.deadline import NEVER
from placewright.core.execution_models import MaxLoad
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InfeasibleError, InputError
from placewright.execution.requests import Execution
from placewright.files.plan_file import read_plan, write_plan
from placewright.profiling.streams import StreamRound
from placewright.profiling.verdict import judge
from placewright.session import stream_measuring
from placewright.session.recommended import recommendation_lines, searched_plan
from placewright.session.request import Request
from placewright.session.search import plan_of
from placewright.session.steps import no_report
from placewright.session.stream_check import _kept, within_latency
from placewright.session.stream_measuring import _is_close
from placewright.session.stream_measuring import judged as with_verdict
from placewright.session.stream_result import StreamResult
from placewright.session.stream_ways import StreamWays
from placewright.session.streaming import kept_way
from placewright.simulation.model import Simulator


def two_stages(names: tuple[str, str] = ("a", "b")) -> Plan:
    """3 s then 5 s on two devices."""
    builder = GraphBuilder()
    inputs: list[int] = []
    for name in ("first", "second"):
        op = builder.add_op(name, "Op", inputs=inputs)
        inputs = [builder.add_tensor(op, 0.0)]
    table = np.array([[3.0, 9.0], [9.0, 5.0]])
    links = (Link(*names), Link(*reversed(names)))
    problem = Problem(
        builder.build(),
        Cluster(tuple(map(Device, names)), links),
        CostTable(frozen_floats(table)),
        Grouping.identity(2),
        objective="throughput",
        execution_model=MaxLoad(samples_in_flight=0),
    )
    found = Solution(Placement.of(np.array([0, 1])), 5.0, "feasible", 0.0)
    return plan_of(problem, found, PlacerRecord("auto", "1", 0, 1, 1.0), "openvino")


def result(plan: Plan, latencies: dict[str, float], periods: dict[str, float]) -> StreamResult:
    """Nine rounds of each contender, alike but for a thousandth."""
    rounds = {
        name: [
            StreamRound(period * (1 + at / 1000), np.full(20, latencies.get(name, 1.0)))
            for at in range(9)
        ]
        for name, period in periods.items()
    }
    played = Simulator(plan.problem).stream(plan.placement, samples=20)
    empty = judge({name: [1.0] for name in rounds}, [])
    return StreamResult(100, played.in_flight, 0, 0.0, 1e-4, played, rounds, empty)


PERIODS = {"a": 9.0, MODE: 6.0, COPIES: 6.5, "plan": 5.0}
WAYS: Any = StreamWays(Device("a"), (Device("a"), Device("b")), Device("cpu"), (), None, {}, {})


def judged(
    plan: Plan, latencies: dict[str, float], limit: float, periods: dict[str, float]
) -> StreamResult:
    found = replace(result(plan, latencies, periods), latency_limit=limit)
    return with_verdict(found, WAYS)


def test_the_plan_is_recommended_where_it_is_faster_than_all_others() -> None:
    plan = two_stages()
    found = judged(plan, {}, math.inf, PERIODS)
    assert found.verdict.recommendation == PLAN
    kept = _kept(plan, found)
    assert kept.measured is not None
    assert kept.measured.baselines.keys() == {"a", MODE, COPIES}
    assert kept_way(kept) == PLAN


@pytest.mark.parametrize("way", [COPIES, MODE])
def test_a_way_that_no_placement_expresses_is_kept_by_name(way: str, tmp_path: Any) -> None:
    plan = two_stages()
    periods = {"a": 9.0, MODE: 6.0, COPIES: 6.0, "plan": 7.0}
    periods[way] = 4.0
    found = judged(plan, {}, math.inf, periods)
    assert found.verdict.recommendation == way
    write_plan(tmp_path / "plan.json", replace(_kept(plan, found), in_flight=3))
    kept = read_plan(tmp_path / "plan.json")
    assert (kept_way(kept), kept.in_flight) == (way, 3)
    assert "argument `searched` what the search found" in recommendation_lines(kept)[0]
    assert kept_way(searched_plan(kept)) == PLAN
    assert kept.placement.device_of.tolist() == [0, 1]


def test_the_best_device_is_kept_as_a_placement() -> None:
    plan = two_stages()
    found = judged(plan, {}, math.inf, {**PERIODS, "a": 4.0})
    kept = _kept(plan, found)
    assert kept.placement.device_of.tolist() == [0, 0]
    assert kept.searched is not None
    assert searched_plan(kept).placement.device_of.tolist() == [0, 1]
    assert kept_way(kept) == PLAN


def test_what_breaks_the_latency_limit_is_not_recommended() -> None:
    plan = two_stages()
    periods = {"a": 9.0, MODE: 3.0, COPIES: 6.0, "plan": 5.0}
    slow = {MODE: 30.0}
    assert judged(plan, slow, math.inf, periods).verdict.recommendation == MODE
    limited = judged(plan, slow, 20.0, periods)
    assert limited.verdict.recommendation == PLAN
    assert any("'throughput mode' takes 30 s for 95 %" in line for line in limited.lines())
    without_plan = judged(plan, {MODE: 30.0, PLAN: 30.0}, 20.0, periods)
    assert without_plan.verdict.recommendation == COPIES
    none = judged(plan, {}, 0.5, periods)
    assert "no contender keeps the latency limit" in none.verdict.text


def test_fewer_samples_in_flight_keep_a_latency() -> None:
    """One sample takes 8 s; two in flight take 10 s each, three 15 s."""
    plan = two_stages()
    simulator = Simulator(plan.problem)
    assert within_latency(simulator, plan.placement, math.inf) is None
    assert within_latency(simulator, plan.placement, 10.5) == 2
    assert within_latency(simulator, plan.placement, 9.0) == 1
    with pytest.raises(InfeasibleError, match="a sample alone takes 8 s by the simulator"):
        within_latency(simulator, plan.placement, 7.0)


def test_limits_that_are_no_durations_are_refused() -> None:
    assert Request("m", latency_limit="200ms").latency_limit == 0.2  # type: ignore[arg-type]
    with pytest.raises(InputError, match="latency_limit: needs seconds > 0"):
        Request("m", latency_limit="0s")  # type: ignore[arg-type]


def test_rounds_that_scatter_never_recommend_what_is_slower_by_its_median() -> None:
    """One device was as fast as the plan in two rounds of nine, and took thrice as long in the
    others: more rounds are asked for, and the plan stays recommended."""
    plan = two_stages()
    found = judged(plan, {}, math.inf, PERIODS)
    assert not _is_close(found, WAYS)
    rows = [StreamRound(period, np.ones(20)) for period in [5.0, 5.0] + [15.0] * 7]
    scattered = with_verdict(replace(found, rounds={**found.rounds, "a": rows}), WAYS)
    assert scattered.verdict.recommendation == PLAN
    assert _is_close(scattered, WAYS)


def test_rounds_are_added_until_the_verdict_is_clear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A way scatters in the first rounds and not in those that follow."""
    answers = {"a": [5.0, 5.0] + [15.0] * 7, PLAN: [5.0] * 9}
    asked: list[int] = []

    def measured(ways: Any, samples: Any, *, rounds: int, **_: Any) -> Any:
        asked.append(rounds)
        return {name: [StreamRound(one, np.ones(20)) for one in answers[name]] for name in ways}

    monkeypatch.setattr(stream_measuring, "measure_streams", measured)
    servers: Any = {name: Silent() for name in answers}
    inputs = [[np.zeros(1)]] * 24
    more = stream_measuring._Measuring(servers, inputs, 9, no_report, NEVER)
    first = more.more({})
    answers["a"] = [15.0] * 9
    both = more.more(first)
    assert asked == [9, 9]
    assert [one.period for one in both["a"]] == [5.0, 5.0] + [15.0] * 16
    ways = replace(WAYS, copies=(), mode=None)
    undecided = with_verdict(replace(result(two_stages(), {}, {"a": 1.0}), rounds=first), ways)
    assert _is_close(undecided, ways)
    assert not _is_close(with_verdict(replace(undecided, rounds=both), ways), ways)


class Silent:
    """A server whose samples are done at once."""

    burst = 1

    def outcomes(self, samples: Any) -> Any:
        return iter([Execution((), {}, 1.0, ((0.0, 1.0),), 0.0) for _ in samples])
