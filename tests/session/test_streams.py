"""Streams: what is recommended, what a plan then holds, limits on latency, better candidates."""

from __future__ import annotations

import itertools
import json
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cli.runner import InProcess

import placewright as pw
from placewright.core.arrays import frozen_floats
from placewright.core.cluster import Device
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad, Placeto
from placewright.core.placement import Placement
from placewright.core.plan import COPIES, MODE, PLAN, PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.replicas import grouped
from placewright.core.solution import Solution
from placewright.core.source import ModelSource, Port, Signature
from placewright.errors import InfeasibleError, InputError, OutOfTime
from placewright.execution.requests import Execution
from placewright.execution.runner import current_limit
from placewright.files.plan_file import read_plan, write_plan
from placewright.profiling.hardware import NEVER, Deadline, Stopwatch
from placewright.profiling.stream_calibration import StreamRound
from placewright.report.plan_text import plan_lines
from placewright.report.time_left import no_report
from placewright.report.verdict import verdict_lines
from placewright.session import checking, streams
from placewright.session.checking import (
    Check,
    StreamRounds,
    check_on_hardware,
    recommended_stream,
    repeated,
)
from placewright.session.contenders import stream_contenders
from placewright.session.plans import (
    plan_of,
    recommendation_lines,
    searched_plan,
    simulated,
    with_placement,
)
from placewright.session.request import Request
from placewright.session.running import why_no_run
from placewright.session.session import Session
from placewright.session.streams import (
    best_measured,
    candidates,
    contender_to_run,
    improved,
    played_period,
    played_schedule,
    within_latency,
)
from placewright.simulation.model import Simulator
from placewright.testing.problems import random_problem
from tests.session.stream_plans import result, two_stages

PERIODS = {"a": 9.0, MODE: 6.0, COPIES: 6.5, "plan": 5.0}


def test_the_plan_is_recommended_where_it_is_faster_than_all_others() -> None:
    plan = two_stages()
    found = result(plan, {}, PERIODS)
    assert found.verdict.recommendation == PLAN
    kept = recommended_stream(plan, found)[0]
    assert kept.measured is not None
    assert kept.measured.baselines.keys() == {"a", MODE, COPIES}
    assert contender_to_run(kept) == PLAN


@pytest.mark.parametrize("way", [COPIES, MODE])
def test_a_way_that_no_placement_expresses_is_kept_by_name(way: str, tmp_path: Any) -> None:
    plan = two_stages()
    periods = {"a": 9.0, MODE: 6.0, COPIES: 6.0, "plan": 7.0}
    periods[way] = 4.0
    found = result(plan, {}, periods)
    assert found.verdict.recommendation == way
    write_plan(tmp_path / "plan.json", replace(recommended_stream(plan, found)[0], in_flight=3))
    kept = read_plan(tmp_path / "plan.json")
    assert (contender_to_run(kept), kept.in_flight) == (way, 3)
    assert "argument `searched` what the search found" in recommendation_lines(kept)[0]
    assert contender_to_run(searched_plan(kept)) == PLAN
    assert kept.placement.device_of.tolist() == [0, 1]


def test_a_member_of_a_group_that_is_recommended_runs_the_streams() -> None:
    """No placement expresses it: the group that the measurement refused was run."""
    two = two_stages()
    equal = replace(two.problem, costs=CostTable(frozen_floats(np.full((2, 2), 4.0))))
    problem = grouped(equal, [[0, 1]])
    alone = Solution(Placement.on_one_device(2, 0), 4.0, "feasible", 0.0)
    plan = plan_of(problem, alone, two.placer, two.runtime)
    never: Any = None
    ways = stream_contenders(plan, never).without(COPIES, "left out by the test")
    assert ways.names == ("a", PLAN)
    found = result(plan, {}, {"a": 4.0, PLAN: 5.0}, contenders=ways)
    kept = recommended_stream(plan, found)[0]
    assert kept.placement is plan.placement
    assert contender_to_run(kept) == "a"
    assert "argument `searched` what the search found" in recommendation_lines(kept)[0]
    assert contender_to_run(searched_plan(kept)) == PLAN


def test_the_best_device_is_kept_as_a_placement() -> None:
    plan = two_stages()
    found = result(plan, {}, {**PERIODS, "a": 4.0})
    kept = recommended_stream(plan, found)[0]
    assert kept.placement.device_of.tolist() == [0, 0]
    assert kept.searched is not None
    assert searched_plan(kept).placement.device_of.tolist() == [0, 1]
    assert contender_to_run(kept) == PLAN


@pytest.mark.parametrize("number", [None, 3])
def test_the_split_keeps_its_own_number_in_flight_where_a_device_is_held(
    number: int | None, tmp_path: Any
) -> None:
    """It was run with the one sample of the device, as one call at a time."""
    plan = replace(two_stages(), in_flight=number)
    kept = recommended_stream(plan, result(plan, {}, {**PERIODS, "a": 4.0}))[0]
    write_plan(tmp_path / "plan.json", kept)
    read = read_plan(tmp_path / "plan.json")
    for held in (kept, read):
        assert held.in_flight == 1
        assert held.searched is not None
        assert held.searched.in_flight == number
        assert searched_plan(held).in_flight == number


def test_a_plan_with_another_placement_keeps_its_limit_and_what_was_left_out() -> None:
    plan = replace(two_stages(), in_flight=2, left_out=("x was skipped",))
    alone = with_placement(plan, Placement.on_one_device(2, 0))
    moved = simulated(plan, {"first": "b"}).plan
    for one in (alone, searched_plan(alone), moved):
        assert (one.in_flight, one.left_out) == (2, ("x was skipped",))


def test_a_simulated_stream_keeps_the_number_in_flight_of_the_plan(
    tmp_path: Any, cli: InProcess
) -> None:
    plan = replace(two_stages(), in_flight=1)
    for changes in ({}, {"first": "b"}):
        answer = simulated(plan, changes)
        assert answer.stream(20).in_flight == 1
        assert answer.stream(20, 2).in_flight == 2
    write_plan(tmp_path / "plan.json", plan)
    words = ("simulate", "plan.json", "--samples", 20, "--json")
    assert json.loads(cli(*words, cwd=tmp_path).stdout)["in_flight"] == 1
    more = cli(*words, "--in-flight", 2, cwd=tmp_path)
    assert json.loads(more.stdout)["in_flight"] == 2


def test_what_breaks_the_latency_limit_is_not_recommended() -> None:
    plan = two_stages()
    periods = {"a": 9.0, MODE: 3.0, COPIES: 6.0, "plan": 5.0}
    slow = {MODE: 30.0}
    assert result(plan, slow, periods).verdict.recommendation == MODE
    limited = result(plan, slow, periods, 20.0)
    assert limited.verdict.recommendation == PLAN
    assert any("'throughput mode' takes 30 s for 95 %" in line for line in limited.lines())
    assert str(limited) == "\n".join(limited.lines())
    without_plan = result(plan, {MODE: 30.0, PLAN: 30.0}, periods, 20.0)
    assert without_plan.verdict.recommendation == COPIES
    none = result(plan, {}, periods, 0.5)
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


def test_the_latency_of_many_samples_in_flight_is_that_of_as_many() -> None:
    """A group of 70 behind a device of 1 s: 71 samples in flight pay. At first F enter together,
    and sample k < F takes 71 + k s; of 3 F + 2 samples all others take 71 s. 95 % of them are done
    within 127.75 s with 68 in flight, and within 128.6 s with 69. More than 60 were played as 60.
    """
    base = two_stages().problem
    cluster = replace(base.cluster, devices=(Device("a"), Device("b", replicas=70)))
    costs = CostTable(frozen_floats(np.array([[1.0, 90.0], [90.0, 70.0]])))
    problem = replace(base, cluster=cluster, costs=costs)
    simulator, placement = Simulator(problem), Placement.of(np.array([0, 1]))
    assert simulator.stream(placement, samples=60).in_flight == 71
    assert within_latency(simulator, placement, 128.0) == 68


def placed(problem: Problem, limit: float) -> Plan:
    request = Request(problem, objective="throughput", latency_limit=limit, evaluations=50)
    return Session(request).place()


def test_a_plan_that_is_not_measured_keeps_its_latency_limit() -> None:
    """The limit was ignored unless streams of the plan were measured."""
    problem = two_stages().problem
    plan = placed(problem, 10.5)
    assert (plan.measured, plan.in_flight) == (None, 2)
    assert "at most 2 samples in flight" in plan_lines(plan, "m")
    with pytest.raises(InfeasibleError, match="a sample alone takes 8 s by the simulator"):
        placed(problem, 7.0)


def test_a_split_whose_gain_needs_more_samples_than_the_limit_allows_is_not_held() -> None:
    """Two stages of 60 and 40 ms with a hop of 1 ms: one sample at a time gains nothing."""
    base = two_stages().problem
    links = tuple(replace(link, latency_seconds=1e-3) for link in base.cluster.links)
    problem = replace(
        base,
        cluster=replace(base.cluster, links=links),
        costs=CostTable(frozen_floats(np.array([[0.06, 0.06], [0.04, 0.04]]))),
    )
    plan = placed(problem, 0.105)
    assert len(set(plan.placement.device_of.tolist())) == 1
    assert plan.searched is not None
    assert (plan.searched.in_flight, searched_plan(plan).in_flight) == (1, 1)
    assert verdict_lines(plan)[0].startswith("Do not split: ")
    assert len(set(placed(problem, 10.0).placement.device_of.tolist())) == 2


def test_a_split_without_a_sure_gain_is_held_if_only_it_keeps_the_latency_limit() -> None:
    """A sample takes 108 ms over both devices and 112 ms on either one."""
    base = two_stages().problem
    problem = replace(
        base,
        cluster=replace(base.cluster, prediction_error=1.0),
        costs=CostTable(frozen_floats(np.array([[0.060, 0.064], [0.052, 0.048]]))),
    )
    plan = placed(problem, 0.110)
    assert plan.placement.device_of.tolist() == [0, 1]
    assert (plan.searched, plan.in_flight) == (None, 1)
    assert len(set(placed(problem, 0.115).placement.device_of.tolist())) == 1
    found = Solution(plan.placement, plan.value, "feasible", 0.0)
    split = plan_of(problem, found, plan.placer, plan.runtime)
    for limit, held in ((0.110, 2), (0.115, 1)):
        kept = streams.unchecked(split, Request(problem, latency_limit=limit))
        assert len(set(kept.placement.device_of.tolist())) == held


def test_a_quick_plan_keeps_its_latency_limit() -> None:
    """The probe measures contenders, not the number of samples in flight."""
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    limit = 60.0  # of seconds, that no machine exceeds: without a limit there is no number
    plan = pw.place(
        model, example_inputs=torch.ones(8, 64), objective="throughput", devices="cpu:0,cpu:1",
        placer="round-robin", calibrate=False, quick=True, latency_limit=limit,
    )  # fmt: skip
    assert plan.in_flight is not None
    assert plan.in_flight == within_latency(Simulator(plan.problem), plan.placement, limit)


def test_a_latency_limit_without_a_stream_is_refused_before_the_search() -> None:
    problem = two_stages().problem
    split = replace(problem, execution_model=MaxLoad(0, split_phases=True))
    with pytest.raises(InputError, match="split phases has no stream"):
        placed(split, 10.5)
    with pytest.raises(InputError, match="its costs are in ms, not in seconds"):
        placed(replace(problem, time_unit="ms"), 10.5)


def test_only_a_measured_throughput_plan_is_advised_to_stream() -> None:
    """A plan by data sheets was, and then refused."""
    source = ModelSource("m.onnx", "0", "onnx")
    problem = replace(two_stages().problem, source=source)
    costs = problem.costs
    measured = replace(problem, costs=replace(costs, source="measured"))
    assert "`samples` 200 runs a stream" in why_no_run(measured)
    sheets = replace(problem, costs=replace(costs, source="roofline"))
    assert why_no_run(sheets).startswith("its costs are 'roofline'")
    other = replace(measured.under(Placeto()), objective="latency")
    assert "place it under execution model 'event'" in why_no_run(other)


def test_limits_that_are_no_durations_are_refused() -> None:
    assert Request("m", latency_limit="200ms").latency_limit == 0.2  # type: ignore[arg-type]
    with pytest.raises(InputError, match="latency_limit: needs seconds > 0"):
        Request("m", latency_limit="0s")  # type: ignore[arg-type]


def test_rounds_that_scatter_never_recommend_what_is_slower_by_its_median() -> None:
    """One device was as fast as the plan in two rounds of nine, and took thrice as long in the
    others: more rounds are asked for, and the plan stays recommended."""
    plan = two_stages()
    found = result(plan, {}, PERIODS)
    assert not found.is_close
    rows = [StreamRound(period, np.ones(20)) for period in [5.0, 5.0] + [15.0] * 7]
    scattered = replace(found, rounds={**found.rounds, "a": rows})
    assert scattered.verdict.recommendation == PLAN
    assert scattered.is_close


def test_rounds_are_added_until_the_verdict_is_clear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A way scatters in the first rounds and not in those that follow."""
    answers = {"a": [5.0, 5.0] + [15.0] * 7, PLAN: [5.0] * 9}
    asked: list[int] = []

    def measured(ways: Any, samples: Any, *, rounds: int, **_: Any) -> Any:
        asked.append(rounds)
        return {name: [StreamRound(one, np.ones(20)) for one in answers[name]] for name in ways}

    monkeypatch.setattr(checking, "measure_streams", measured)
    servers: Any = {name: Silent() for name in answers}
    inputs = [[np.zeros(1)]] * 24
    more = checking.StreamRounds(servers, inputs, 9, no_report, NEVER)
    first = more.more({})
    answers["a"] = [15.0] * 9
    both = more.more(first)
    assert asked == [9, 9]
    assert [one.period for one in both["a"]] == [5.0, 5.0] + [15.0] * 16
    undecided = replace(result(two_stages(), {}, {"a": 1.0, PLAN: 1.0}), rounds=first)
    assert undecided.is_close
    assert not replace(undecided, rounds=both).is_close


class Slow:
    """A server each of whose samples takes 0.1 s of a clock that it moves itself."""

    burst = 1

    def __init__(self, now: list[float]) -> None:
        self.now = now
        self.streams: list[int] = []  # number of samples of each

    def outcomes(self, samples: Any) -> Any:
        self.streams.append(len(samples))
        answers = []
        for _ in samples:
            answers.append(Execution((), {}, 0.1, ((0.0, 0.1),), self.now[0]))
            self.now[0] += 0.1
        return iter(answers)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock for everything, which only `Slow` moves."""
    moved = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: moved[0])
    return moved


def stream_rounds(servers: dict[str, Slow], seconds: float, now: list[float]) -> StreamRounds:
    deadline = Deadline.after(seconds, Stopwatch(lambda: now[0]))
    some: Any = servers
    return StreamRounds(some, [[np.zeros(1)]] * 200, 9, no_report, deadline)


def test_streams_are_as_short_as_the_total_needs(now: list[float]) -> None:
    """They were as long as a minute allows, however little of the total was left."""
    slow = Slow(now)
    found = stream_rounds({"a": slow}, 10.0, now).more({})
    assert slow.streams == [3] + [10] * 9
    assert [len(one.latencies) for one in found["a"]] == [10] * 9
    assert now[0] <= 110.0


def test_the_total_ends_streams_between_rounds(now: list[float]) -> None:
    """The least samples of nine rounds took longer than all that was left."""
    servers = {"a": Slow(now), "b": Slow(now)}
    rounds = stream_rounds(servers, 7.7, now)  # 0.6 s to begin; then seven rounds of 1 s
    found = rounds.more({})
    assert {name: len(row) for name, row in found.items()} == {"a": 7, "b": 7}
    before = now[0]
    assert rounds.more(found) == found
    assert now[0] == before


def test_too_few_rounds_are_no_verdict(now: list[float]) -> None:
    rounds = stream_rounds({"a": Slow(now), "b": Slow(now)}, 6.0, now)
    with pytest.raises(OutOfTime, match="6 rounds of streams were measured"):
        rounds.more({})
    assert now[0] <= 107.0


class SlowRunner(Slow):
    """The same, as a runner of a candidate; it is its own model, too."""

    def __enter__(self) -> SlowRunner:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run_many(self, samples: Any) -> Any:
        return list(self.outcomes(samples))

    def random_inputs(self, rng: np.random.Generator) -> list[Any]:
        return [np.zeros(1)]


@pytest.mark.parametrize(("total", "measured"), [(1000.0, 7), (40.0, 5), (8.0, 1)])
def test_measuring_candidates_leaves_half_of_the_total(
    total: float, measured: int, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No look at the clock ended their rounds, of two candidates with 20 samples each."""
    plan = two_stages()
    splits = [Placement.of(np.array(one)) for one in ([1, 0], [0, 1])]
    runner: Any = SlowRunner(now)
    monkeypatch.setattr(streams, "candidates", lambda *_, **more: splits)
    monkeypatch.setattr(streams, "stream_runner", lambda *_, **more: runner)
    deadline = Deadline.after(total, Stopwatch(lambda: now[0]))
    found = best_measured(plan, runner, np.random.default_rng(0), deadline=deadline)
    assert found.placement.device_of.tolist() == [1, 0]
    assert sum(length == 20 for length in runner.streams) // 2 == measured
    assert now[0] <= 100.0 + max(total / 2 + 2.0, 8.0)


class Silent:
    """A server whose samples are done at once."""

    burst = 1

    def outcomes(self, samples: Any) -> Any:
        return iter([Execution((), {}, 1.0, ((0.0, 1.0),), 0.0) for _ in samples])


def problem_of(seed: int) -> Problem:
    made = random_problem(
        np.random.default_rng(seed), n_ops=16, objective="throughput", constrained=False
    )
    devices = tuple(
        replace(one, memory_bytes=np.inf, dispatch_seconds=1.0) for one in made.cluster.devices
    )
    cluster = replace(made.cluster, devices=devices)
    return replace(made, cluster=cluster, execution_model=MaxLoad(samples_in_flight=0))


@pytest.mark.parametrize("seed", range(2))
def test_candidates_are_legal_distinct_and_sorted_by_their_played_period(seed: int) -> None:
    problem = problem_of(seed)
    start = Placement.of(np.random.default_rng(seed).integers(0, 2, problem.n_units))
    found = Solution(start, Simulator(problem).value(start), "feasible", 0.0)
    plan = plan_of(problem, found, PlacerRecord("auto", "1", 0, 1, 1.0), "openvino")
    listed = candidates(plan, np.random.default_rng(0))
    periods = [played_period(problem, one) for one in listed]
    assert periods == sorted(periods)
    assert len({one.device_of.tobytes() for one in listed}) == len(listed)
    assert start.device_of.tobytes() in {one.device_of.tobytes() for one in listed}
    assert all(np.isfinite(Simulator(problem).value(one)) for one in listed)


@pytest.mark.parametrize("seed", range(5))
def test_moving_units_never_lengthens_the_played_stream(seed: int) -> None:
    problem = problem_of(seed)
    start = Placement.of(np.random.default_rng(seed).integers(0, 2, problem.n_units))
    period, placement = improved(problem, start, np.random.default_rng(0))
    assert period <= played_period(problem, start)
    assert period == played_period(problem, placement)


def test_the_seed_decides_what_improving_finds_and_no_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine on which an hour passes between any two looks at the clock, too."""
    problem = problem_of(1)
    start = Placement.of(np.random.default_rng(1).integers(0, 2, problem.n_units))
    found = Solution(start, Simulator(problem).value(start), "feasible", 0.0)
    plan = plan_of(problem, found, PlacerRecord("auto", "1", 0, 1, 1.0), "openvino")
    usual = candidates(plan, np.random.default_rng(1), is_counted=True)
    hours = itertools.count(0.0, 3600.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(hours))
    monkeypatch.setattr(time, "perf_counter", lambda: next(hours))
    slow = candidates(plan, np.random.default_rng(1), is_counted=True)
    assert [one.device_of.tolist() for one in slow] == [one.device_of.tolist() for one in usual]


def test_a_candidate_that_breaks_the_latency_limit_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The shorter period of another placement is worth nothing if its samples take too long."""
    plan = two_stages()
    alone = Placement.on_one_device(plan.problem.n_units, 0)
    simulator = Simulator(plan.problem)
    latency = {
        placement: float(simulator.stream(placement, samples=10, in_flight=1).latencies.max())
        for placement in (plan.placement, alone)
    }
    slow = max(latency, key=lambda placement: latency[placement])
    fast = min(latency, key=lambda placement: latency[placement])
    limit = sum(latency.values()) / 2
    monkeypatch.setattr(streams, "candidates", lambda *_, **__: [slow, fast])
    model: Any = None  # one split only is not measured
    generator = np.random.default_rng(0)
    unlimited = best_measured(replace(plan, placement=fast), model, generator)
    assert unlimited.placement.device_of.tolist() == slow.device_of.tolist()
    found = best_measured(replace(plan, placement=fast), model, generator, latency_limit=limit)
    assert found.placement.device_of.tolist() == fast.device_of.tolist()


def test_a_check_that_the_total_ends_hands_the_best_candidate_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its runs are limited, too: a device that hangs would be waited for without an end."""
    found = two_stages()
    costs = replace(found.problem.costs, source="measured")
    problem = replace(found.problem, source=ModelSource("m.onnx", "0", "onnx"), costs=costs)
    plan = replace(found, problem=problem)
    better = replace(plan, placement=Placement.of(np.array([1, 0])))
    limits: list[float] = []

    def improved_plan(*_: Any, **__: Any) -> Plan:
        limits.append(current_limit())
        return better

    def ended(*_: Any, **__: Any) -> None:
        limits.append(current_limit())
        raise OutOfTime("all had run")

    monkeypatch.setattr(checking, "best_measured", improved_plan)
    monkeypatch.setattr(checking, "execute_stream", ended)
    monkeypatch.setattr(checking, "check_devices", lambda *_: None)
    model: Any = None  # nothing runs
    with pytest.raises(OutOfTime) as caught:
        check_on_hardware(plan, model, check=Check(improves=True))
    assert caught.value.plan.placement is better.placement
    assert [math.isfinite(limit) for limit in limits] == [True, True]


class RandomModel:
    """Its only output is another one in each run."""

    signature = Signature((), (Port("noise", (8,), "f32", 0),))

    def tolerance(self, devices: Any) -> float:
        return 1e-4

    def plain(self, device: Any) -> Any:
        draws = itertools.count(1.0)
        return lambda inputs: [np.full(8, next(draws))]


class Zeros:
    """A server of that model."""

    def outcomes(self, samples: Any) -> Any:
        return (Execution((np.zeros(8),), {}, 1.0, ((0.0, 1.0),), 0.0) for _ in samples)


def test_random_outputs_of_a_stream_are_named_and_not_called_equal() -> None:
    plan = two_stages()
    some: Any = (RandomModel(), Zeros())
    compare = checking._Comparing(some[0], plan)
    assert compare.worst(some[1], [[np.zeros(1)]] * 2) == (2, 0, 0.0)
    assert compare.random == ("noise",)
    found = replace(result(plan, {}, PERIODS), random=compare.random)
    first, second, *_ = found.lines()
    assert first.startswith("other outputs of all 100 samples equal to the unsplit model's: ")
    assert second.startswith("the output of 'noise' could not be compared: ")
    assert found.data()["random_ops"] == ["noise"]
    verdict = recommended_stream(plan, found)[1].verdict
    assert verdict.splitlines()[:2] == [first, second]


def test_every_sample_comes_once_however_short_the_time() -> None:
    samples: Any = ["a", "b", "c"]
    assert list(itertools.islice(repeated(samples, 0.5, itertools.count().__next__), 9)) == samples


def test_a_last_segment_without_seconds_begins_before_its_sample_ends() -> None:
    plan = two_stages()
    seconds = plan.problem.costs.seconds.copy()
    seconds[-1] = 0.0
    links = tuple(replace(link, latency_seconds=0.0) for link in plan.problem.cluster.links)
    free = replace(
        plan.problem,
        costs=CostTable(frozen_floats(seconds)),
        cluster=replace(plan.problem.cluster, links=links),
    )
    played = played_schedule(Simulator(free).stream(plan.placement, samples=4, in_flight=2))
    under_way: set[int] = set()
    for sample, index in played:
        under_way = under_way - {sample} if index < 0 else under_way | {sample}
        assert len(under_way) <= 2
    for sample in range(4):
        own = [index for at, index in played if at == sample]
        assert own[-1] == -1
        assert sorted(own[:-1]) == list(range(len(own) - 1))


def test_a_limit_on_latency_is_refused_where_costs_are_no_seconds() -> None:
    """It would be taken as so many milliseconds, and a placement of 8 ms break a limit of 5 s."""
    problem = replace(two_stages().problem, time_unit="ms")
    with pytest.raises(InputError, match="of latency is in seconds, and these costs are in ms"):
        pw.place(problem, limits={"latency": 5.0})
