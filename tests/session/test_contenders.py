"""Devices whose names are those of our own contenders: each keeps its own seconds and placement."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import onnx
import pytest
from support.branching_model import branching_model

import placewright as pw
from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.plan import ALL_CORES, COPIES, MODE, PLAN, contender_of, device_of
from placewright.core.plan import CORES as COPY_PER_CORE
from placewright.core.problem import Objective, Problem
from placewright.core.solution import Budget
from placewright.execution.direct import DirectRunner
from placewright.frameworks.openvino.reader import read_openvino
from placewright.frameworks.registry import make_runtime
from placewright.report.verdict import alternatives_of, verdict_of
from placewright.session import checking, contenders, running
from placewright.session.checking import check_on_hardware, recommended_stream
from placewright.session.contenders import (
    fastest_modes,
    request_contenders,
    stream_contenders,
    whole_model_streams,
    whole_processor,
    why_default_is_not_comparable,
)
from placewright.session.devices import discover
from placewright.session.models import loaded_model
from placewright.session.running import execute
from placewright.session.search import find_plan
from placewright.simulation.model import Simulator
from tests.session.stream_plans import result, two_stages

OURS = ("plan", "searched", "even split", "all cores", "lower bound", "device:plan")
CORES = [one for one in make_runtime("openvino").discover() if one.name.startswith("cpu:")]
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


def named_problem(folder: Path, name: str, objective: Objective = "latency") -> Problem:
    """The branching model on a core of that name, and on one called `other`; 10 ms an op."""
    onnx.save(branching_model(), str(folder / "m.onnx"))
    graph, source = read_openvino(folder / "m.onnx")
    runtime, names = make_runtime("openvino"), (name, "other")
    devices = tuple(
        runtime.completed(Device(own, options={**core.options, "device": "CPU"}))
        for own, core in zip(names, CORES, strict=False)
    )
    links = tuple(Link(a, b, 1e-4) for a in (*names, "host") for b in (*names, "host") if a != b)
    return Problem(
        graph,
        Cluster(devices, links),
        CostTable(frozen_floats(np.full((graph.n_ops, 2), 0.01)), "measured"),
        Grouping.identity(graph.n_ops),
        source=source,
        objective=objective,
    )


def given_seconds(seconds: Mapping[str, float]) -> Any:
    """What stands in for a measurement: nine rounds of these seconds, a second for all others."""

    def measured(runners: Mapping[str, Any], *_: Any, **__: Any) -> dict[str, list[float]]:
        return {name: [seconds.get(name, 1.0)] * 9 for name in runners}

    return measured


@needs_two_cores
@pytest.mark.parametrize(
    ("objective", "name"),
    [  # the names of all that are measured; names alone are tested below
        ("latency", "plan"), ("latency", "even split"), ("latency", "all cores"),
        ("latency", "device:plan"), ("training", "plan"),
    ],
)  # fmt: skip
def test_a_device_with_a_name_of_ours_is_measured_beside_the_plan(
    name: str, objective: Objective, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = named_problem(tmp_path, name, objective)
    plan = find_plan(
        problem, placer="round-robin", budget=Budget(evaluations=50), runtime="openvino"
    )
    model = loaded_model(problem, "openvino")
    mine = contender_of(name)
    monkeypatch.setattr(checking, "measure_interleaved", given_seconds({mine: 0.2, PLAN: 0.5}))
    found, table = check_on_hardware(plan, model)
    labels = [row[0] for row in table.rows]
    assert {mine, "other", "searched (round-robin)", "lower bound"} <= set(labels)
    assert len(labels) == len(set(labels))
    assert set(found.placement.device_of.tolist()) == {0}
    path = tmp_path / "plan.json"
    pw.write_plan(path, found)
    document = json.loads(path.read_text())
    assert document["measured"]["recommendation"] == mine
    assert document["measured"]["baselines"]["searched"] == 0.5
    again = pw.read_plan(path)
    simulator = Simulator(problem)
    verdict = verdict_of(again, alternatives_of(again, simulator))
    assert verdict.sentence.startswith(f"Do not split: '{name}' runs everything")
    monkeypatch.setattr(checking, "measure_interleaved", given_seconds({PLAN: 0.5}))
    split, _ = check_on_hardware(plan, model)
    assert split.measured is not None
    assert (split.measured.recommendation, split.measured.median) == (PLAN, 0.5)
    assert split.measured.baselines[mine] == 1.0
    rows = {row.name: row.measured for row in alternatives_of(split, simulator)}
    assert (rows[PLAN], rows[mine], rows["other"]) == (0.5, 1.0, 1.0)


@needs_two_cores
def test_the_unsplit_model_is_called_in_the_thread_of_the_caller(tmp_path: Path) -> None:
    """As a loaded plan calls it: to wake a thread takes as long as a small model."""
    problem = named_problem(tmp_path, "first")
    plan = find_plan(
        problem, placer="round-robin", budget=Budget(evaluations=50), runtime="openvino"
    )
    model = loaded_model(problem, "openvino")
    found = request_contenders(plan, model)
    names = {contender_of("first"), contender_of("other")}
    unsplit = [each for each in found.members if each.name in {*names, ALL_CORES}]
    assert names <= {each.name for each in unsplit}
    for each in unsplit:
        with ExitStack() as stack:
            assert isinstance(each.open(stack, None), DirectRunner), each.name


@needs_two_cores
def test_a_run_measures_a_device_called_plan_beside_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = named_problem(tmp_path, "plan")
    plan = find_plan(
        problem, placer="round-robin", budget=Budget(evaluations=50), runtime="openvino"
    )
    mine = contender_of("plan")
    monkeypatch.setattr(running, "measure_interleaved", given_seconds({mine: 0.2, PLAN: 0.5}))
    found = execute(plan, loaded_model(problem, plan.runtime), runs=9)
    assert (found.device, found.device_seconds, found.plan_seconds) == ("plan", 0.2, 0.5)
    assert found.measurement is not None
    assert found.measurement.recommendation == mine


@pytest.mark.parametrize("name", [*OURS, "throughput mode", "one copy per device"])
def test_a_stream_on_a_device_with_a_name_of_ours_is_no_way_of_ours(name: str) -> None:
    plan = two_stages((name, "b"))
    ways = stream_contenders(plan, None)  # type: ignore[arg-type]
    mine = contender_of(name)
    assert ways.names[0] == mine
    assert ways[mine].is_single
    assert len(set(ways.names)) == len(ways.names)
    assert ways.predicted[mine] == 12.0
    for other in set(ways.names) - {mine, PLAN}:
        ways = ways.without(other, "left out by the test")
    found = result(plan, {}, {mine: 4.0, PLAN: 5.0}, contenders=ways)
    assert (found.verdict.recommendation, found.period(PLAN)) == (mine, pytest.approx(5.0, rel=0.1))
    kept = recommended_stream(plan, found)[0]
    assert kept.placement.device_of.tolist() == [0, 0]
    assert kept.searched is not None


def test_a_plan_is_run_with_as_many_samples_in_flight_as_are_asked_for() -> None:
    """More than 60 were 60, also for the limits on memory."""
    never: Any = None
    plan = two_stages()
    played = stream_contenders(plan, never, in_flight=100).played
    assert played is not None
    assert (played.in_flight, len(played.finish)) == (100, 302)


def test_names_of_devices_and_of_ours_never_meet() -> None:
    devices = [*OURS, "cpu:0", "device:device:plan", "device:"]
    names = [contender_of(one) for one in devices]
    assert len(set(names)) == len(devices)
    assert not set(names) & {"plan", "searched", "even split", "all cores", "lower bound"}
    assert [device_of(one, devices) for one in names] == list(range(len(devices)))
    assert device_of(PLAN, devices) is None


@pytest.mark.parametrize(
    ("size", "shares_weights", "fits"),
    [(100.0, False, False), (150.0, False, True), (100.0, True, True)],
)
def test_copies_that_exceed_a_pool_together_are_left_out(
    size: float, shares_weights: bool, fits: bool
) -> None:
    """Weights of 70 bytes: each device alone fits into the pool, and both need 140 bytes."""
    builder = GraphBuilder()
    inputs: list[int] = []
    for name in ("first", "second"):
        op = builder.add_op(name, "Op", inputs=inputs, weights=[builder.add_weight(35.0)])
        inputs = [builder.add_tensor(op, 0.0)]
    plan = two_stages()
    cluster = Cluster(
        (Device("a", pool="ram"), Device("b", pool="ram")),
        plan.problem.cluster.links,
        pools={"ram": size},
        shares_weights=shares_weights,
    )
    problem = replace(plan.problem, graph=builder.build(), cluster=cluster)
    found = whole_model_streams(replace(plan, problem=problem), None)  # type: ignore[arg-type]
    assert "a" in found.devices
    assert (COPIES in found.devices) == (COPIES in found.predicted) == fits
    assert ("one sample on each device" in found.left_out.get(COPIES, "")) is not fits


class FourCores:
    """A runtime that finds a processor of four cores."""

    def discover(self) -> tuple[Device, ...]:
        return tuple(Device(f"cpu:{core}") for core in range(4))


class WithMode:
    """A model whose library has a throughput mode."""

    def throughput_device(self, device: Device, n_threads: int) -> Device:
        return device

    def throughput_mode(self, device: Device, in_flight: int | None = None) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("way", [COPY_PER_CORE, MODE])
@pytest.mark.parametrize(("spare", "fits"), [(0.0, True), (-1.0, False)])
def test_ways_without_room_for_a_sample_on_each_core_are_left_out(
    way: str, spare: float, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of 70 bytes lie in memory once, and the tensors of a sample four times."""
    builder = GraphBuilder()
    inputs: list[int] = []
    for name in ("first", "second"):
        op = builder.add_op(name, "Op", inputs=inputs, weights=[builder.add_weight(35.0)])
        inputs = [builder.add_tensor(op, 10.0)]
    plan = two_stages(("cpu", "b"))
    problem = replace(plan.problem, graph=builder.build())
    peaks = Simulator(problem).sample_peaks(Placement.on_one_device(2, 0))
    assert peaks is not None
    one = float(peaks[0])
    assert one > 70.0
    limited = Device("cpu", memory_bytes=70.0 + 4 * (one - 70.0) + spare)
    cluster = replace(problem.cluster, devices=(limited, Device("b")))
    monkeypatch.setattr(contenders, "runtime_named", lambda name: FourCores())
    model: Any = WithMode() if way == MODE else None
    found = whole_model_streams(replace(plan, problem=replace(problem, cluster=cluster)), model)
    assert (way in found.devices) is fits
    assert ("with 4 samples at a time" in found.left_out.get(way, "")) is not fits


def test_a_way_whose_price_is_not_known_is_left_out_under_a_limit_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was measured, and recommended if it was the fastest."""
    plan = two_stages(("cpu", "b"))
    devices = tuple(replace(one, price_per_hour=1.0) for one in plan.problem.cluster.devices)
    cluster = replace(plan.problem.cluster, devices=devices)
    problem = replace(plan.problem, cluster=cluster, limits={"price": 1e6})
    monkeypatch.setattr(contenders, "runtime_named", lambda name: FourCores())
    never: Any = None
    found = whole_model_streams(replace(plan, problem=problem), never)
    reason = "its price is not known, and there is a limit on it"
    assert {way: found.left_out.get(way) for way in (COPIES, COPY_PER_CORE)} == {
        COPIES: reason,
        COPY_PER_CORE: reason,
    }
    assert "cpu" in found.devices
    assert why_default_is_not_comparable(problem, Simulator(problem)) == reason
    free = problem.timed
    assert why_default_is_not_comparable(free, Simulator(free)) is None


def test_copies_run_in_the_fastest_mode_of_each_processor() -> None:
    """If no mode of a processor may run the model, there is no copy per device."""
    one, other = Device("cpu:0"), Device("cpu:1")
    half = Device("half", processors=("cpu:1",))
    seconds = {"cpu:0": 2.0, "cpu:1": 2.0, "half": 1.0}
    members = (one, other, half)
    assert fastest_modes(members, members, seconds) == (one, half)
    assert fastest_modes(members, (one, other), seconds) == (one, other)
    assert fastest_modes(members, (other, half), seconds) == ()
    assert fastest_modes((other, half), (other, half), seconds) == ()


@needs_two_cores
@pytest.mark.parametrize("options", [{}, {"compile": "inductor"}])
def test_all_cores_compile_if_the_devices_of_the_plan_do(options: Mapping[str, str]) -> None:
    """Else a split of compiled segments is compared with operators called one by one."""
    cluster = discover("cpu:0,cpu:1", runtime="torch")
    devices = tuple(replace(d, options={**d.options, **options}) for d in cluster.devices)
    chain = networkx.DiGraph([("a", "b", {"bytes": 8})])
    problem = Problem.from_costs(chain, [[1.0, 2.0], [2.0, 1.0]], (0.0, 1e9))
    problem = replace(problem, cluster=replace(cluster, devices=devices))
    plan = find_plan(problem, placer="heft", budget=Budget(evaluations=9), runtime="torch")
    whole = whole_processor(plan)
    assert whole is not None
    assert whole.options.get("compile") == options.get("compile")
