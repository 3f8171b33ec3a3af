"""Streams of different samples in every runtime: each sample's outputs are its own, in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.runner import InProcess
from own_order.models import CASES, INPUTS, OUTPUTS, SHAPE, WRITERS, by_hand
from own_order.plans import own_order, split_plan

import placewright as pw
from benchmarks.accuracy import run_accuracy_benchmark
from benchmarks.accuracy_report import VISITS
from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.core.plan import Measurement
from placewright.core.replicas import grouped
from placewright.core.solution import Solution
from placewright.errors import InputError, UnknownNameError
from placewright.session.models import loaded_model
from placewright.session.plans import plan_of

ONE_OF_EACH = [(file, runtime) for runtime, file in {r: f for f, r in CASES}.items()]


def samples(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(7)
    return [
        {name: rng.standard_normal(SHAPE).astype(np.float32) for name in INPUTS}
        for _ in range(count)
    ]


@pytest.mark.parametrize(("file", "runtime"), ONE_OF_EACH)
def test_two_hundred_different_samples_in_order(file: str, runtime: str, tmp_path: Path) -> None:
    path = tmp_path / file
    WRITERS[file](path)
    plan = split_plan(path, runtime)
    given = samples(200)
    inputs, outputs = own_order(path, runtime)

    def source() -> Iterator[Any]:
        for number, one in enumerate(given):  # by name and by position in turn
            yield one if number % 2 else [one[name] for name in inputs]

    count = 0
    for number, found in enumerate(pw.stream(plan, source(), in_flight=3)):
        right = by_hand(**given[number])
        rows = found.values() if isinstance(found, dict) else found
        for name, value in zip(outputs, rows, strict=True):
            np.testing.assert_allclose(value, right[name], rtol=1e-4, atol=1e-4)
        count += 1
    assert count == 200


@pytest.mark.parametrize("way", ["plan", "one copy per device", "throughput mode"])
@pytest.mark.parametrize(("file", "runtime"), ONE_OF_EACH)
def test_state_that_is_fed_back_is_that_of_the_output_before(
    file: str, runtime: str, way: str, tmp_path: Path
) -> None:
    """With one sample in flight, whatever way was recommended, as a recurrent model needs it."""
    path = tmp_path / file
    WRITERS[file](path)
    plan = split_plan(path, runtime)
    plan = replace(plan, measured=Measurement(1.0, 0.0, 1, {way: 0.5}, way))
    state, right = np.ones(SHAPE, np.float32), np.ones(SHAPE, np.float32)

    def source() -> Iterator[Any]:
        for one in samples(20):
            yield {**one, "a": state}

    found = pw.stream(plan, source(), in_flight=1)
    for one, outputs in zip(samples(20), found, strict=True):
        assert isinstance(outputs, dict)
        hand = by_hand(**{**one, "a": right})
        right = np.tanh(hand["shallow"])
        state = np.tanh(outputs[own_order(path, runtime)[1][OUTPUTS.index("shallow")]])
        np.testing.assert_allclose(state, right, rtol=1e-3, atol=1e-4)


def test_wrong_inputs_name_the_sample(tmp_path: Path) -> None:
    file, runtime = ONE_OF_EACH[0]
    path = tmp_path / file
    WRITERS[file](path)
    good = samples(3)
    bad = {**good[2], INPUTS[0]: np.zeros((1, 1), np.float32)}
    answers = pw.stream(split_plan(path, runtime), [*good[:2], bad], in_flight=1)
    next(answers)
    with pytest.raises(InputError, match=rf"sample 2: input '{INPUTS[0]}' is float32 \[1, 1\]"):
        list(answers)
    unknown = {**good[2], "x y": good[2][INPUTS[0]]}
    with pytest.raises(UnknownNameError, match="sample 1: unknown model input 'x y'"):
        list(pw.stream(split_plan(path, runtime), [good[0], unknown]))


def test_outputs_before_a_wrong_sample_come_first(tmp_path: Path) -> None:
    file, runtime = ONE_OF_EACH[0]
    path = tmp_path / file
    WRITERS[file](path)
    good = samples(3)
    bad = {**good[2], INPUTS[0]: np.zeros((1, 1), np.float32)}
    found = []
    with pytest.raises(InputError, match="sample 2: "):
        found.extend(pw.stream(split_plan(path, runtime), [*good[:2], bad, good[2]], in_flight=4))
    assert len(found) == 2


def test_a_number_in_flight_below_one_is_refused(tmp_path: Path) -> None:
    file, runtime = ONE_OF_EACH[0]
    path = tmp_path / file
    WRITERS[file](path)
    with pytest.raises(InputError, match="in-flight must be >= 1, got 0"):
        pw.stream(split_plan(path, runtime), [], in_flight=0)


def test_run_streams_a_plan_beside_simpler_ways(tmp_path: Path, cli: InProcess) -> None:
    file, runtime = "m.onnx", "onnxruntime"
    path = tmp_path / file
    WRITERS[file](path)
    pw.write_plan(tmp_path / "plan.json", split_plan(path, runtime))
    done = cli("run", "plan.json", "--samples", 60, "--in-flight", 2, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["equal"]
    assert (found["samples"], found["in_flight"]) == (60, 2)
    assert {"plan", "one copy per device"} < set(found["contenders"])
    assert found["recommendation"] in found["contenders"]
    assert all(one["samples_per_second"] > 0 for one in found["contenders"].values())
    text = cli("run", "plan.json", "--samples", 60, cwd=tmp_path).stdout
    assert "outputs of all 60 samples equal to the unsplit model's" in text


def test_simulate_plays_a_stream(tmp_path: Path, cli: InProcess) -> None:
    path = tmp_path / "m.onnx"
    WRITERS["m.onnx"](path)
    plan = split_plan(path, "onnxruntime")
    pw.write_plan(tmp_path / "plan.json", plan)
    done = cli("simulate", "plan.json", "--samples", 50, "--in-flight", 2, "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    stream = pw.Simulator(plan.problem).stream(plan.placement, samples=50, in_flight=2)
    assert found["period"] == stream.steady.period
    assert found["fill"] == stream.fill
    assert found["memory"] == dict(
        zip(plan.problem.cluster.device_names, stream.memory_peaks.tolist(), strict=True)
    )
    refused = cli("simulate", "plan.json", "--in-flight", 2, cwd=tmp_path)
    assert refused.returncode == 2
    assert "give --samples too" in refused.stderr


@pytest.mark.parametrize(("file", "runtime"), ONE_OF_EACH)
def test_groups_take_turns_in_a_replicated_plan(file: str, runtime: str, tmp_path: Path) -> None:
    """Both cores as one group: the plan is read back from its file and runs all samples."""
    path = tmp_path / file
    WRITERS[file](path)
    split = split_plan(path, runtime)
    alone = replace(split.problem, objective="throughput", execution_model=MaxLoad())
    problem = grouped(alone, [[0, 1]])
    found = Solution(Placement.on_one_device(problem.n_units, 0), 1.0, "feasible", 0.0)
    pw.write_plan(tmp_path / "plan.json", plan_of(problem, found, split.placer, runtime))
    plan = pw.read_plan(tmp_path / "plan.json")
    members = plan.problem.cluster.devices[0].members
    assert [one.name for one in members] == list(alone.cluster.device_names)
    given = samples(21)
    _, outputs = own_order(path, runtime)
    answers = list(pw.stream(plan, given, in_flight=3))
    for one, found_outputs in zip(given, answers, strict=True):
        right = by_hand(**one)
        assert isinstance(found_outputs, dict)
        for name, value in zip(outputs, found_outputs.values(), strict=True):
            np.testing.assert_allclose(value, right[name], rtol=1e-4, atol=1e-4)


def test_accuracy_of_streams_is_measured_and_resumes(tmp_path: Path) -> None:
    """Placements and the replicated plan; a second call finds all visits in the file."""
    file, runtime = "m.onnx", "onnxruntime"
    path = tmp_path / file
    WRITERS[file](path)
    split = split_plan(path, runtime)
    problem = replace(split.problem, objective="throughput", execution_model=MaxLoad())
    model = loaded_model(problem, runtime)
    results = tmp_path / "accuracy.json"
    rows = run_accuracy_benchmark("m", problem, model, 2, results_path=results)
    assert {row.kind for row in rows} >= {"random", "replicated"}
    assert all(row.n_visits == VISITS and row.measured > 0 for row in rows)
    lone = Placement.on_one_device(problem.n_units, 0)
    base = pw.Simulator(problem).stream(lone, samples=60).steady.period
    (replicated,) = [row for row in rows if row.kind == "replicated"]
    assert replicated.predicted == pytest.approx(base / 2)
    seen: list[str] = []
    again = run_accuracy_benchmark(
        "m", problem, model, 2, results_path=results, on_row=lambda row: seen.append(row.key)
    )
    assert (again, seen) == (rows, [])
