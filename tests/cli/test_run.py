"""What `run` measures a plan against."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli.runner import InProcess
from support.branching_model import branching_model

import placewright as pw
from placewright.core.placement import Placement
from placewright.core.plan import Measurement
from placewright.errors import InputError, RuntimeFailure
from placewright.profiling.hardware import measure_interleaved
from placewright.report.verdict import verdict_lines
from placewright.session import checking, contenders, running
from placewright.session.plans import with_placement


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_best_single_device_keeps_pins(tmp_path: Path, cli: InProcess) -> None:
    """Of the devices that the problem allows alone; where it allows none, that is said."""
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    cores = ("--devices", "cpu:0,cpu:1", "--evaluations", 20, "--quick", "--no-check")
    first, last = "a", "gate"

    def run(*pins: str) -> dict[str, Any]:
        words = [word for pin in pins for word in ("--pin", pin)]
        placed = cli("place", "m.onnx", *cores, *words, cwd=tmp_path)
        assert placed.returncode == 0, placed.stderr
        done = cli("run", "plan.json", "--runs", 1, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    bound = run(f"{first}=cpu:1")
    assert bound["best_single_device"] == "cpu:1"
    assert bound["best_single_device_is_legal"] is True
    assert bound["best_single_device_predicted"] > 0
    unbound = run(f"{first}=cpu:1", f"{last}=cpu:0")
    assert unbound["best_single_device_is_legal"] is False
    assert unbound["best_single_device_predicted"] is None
    text = cli("run", "plan.json", "--runs", 1, cwd=tmp_path).stdout
    assert "(breaks a limit or a pin)" in text
    assert re.search(r"^measured \S+ \w+ \(1 run\), predicted ", text, re.M)
    assert (unbound["runs"], unbound["measured_iqr"]) == (1, 0.0)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_machine_that_has_changed_its_speed_is_told(
    tmp_path: Path, cli: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every round takes a hundred times what it takes: far beyond what a busy machine makes."""
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))

    def slow(*runners: Any, **options: Any) -> dict[str, list[float]]:
        rounds = measure_interleaved(*runners, **options)
        return {name: [100 * seconds for seconds in found] for name, found in rounds.items()}

    monkeypatch.setattr(checking, "measure_interleaved", slow)
    monkeypatch.setattr(running, "measure_interleaved", slow)
    placed = cli("place", "m.onnx", "--devices", "cpu:0,cpu:1", "--evaluations", 20, cwd=tmp_path)
    assert placed.returncode == 0, placed.stderr
    done = cli("run", "plan.json", cwd=tmp_path)
    spread = r"^measured .* \(15 runs, quartiles [\d.]+% apart\), predicted "
    assert re.search(spread, done.stdout, re.M), done.stdout
    for text in (placed.stdout, done.stdout):
        assert " times as long as when " in text
        assert "times have changed: 'cpu:" in text
        assert "of what a perfect split could gain" not in text


def test_inputs_of_a_file(tmp_path: Path, cli: InProcess) -> None:
    """Values are the file's; whatever is not the model's is refused in one line."""
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    cores = ("--devices", "cpu:0,cpu:1", "--evaluations", 20, "--quick", "--no-check")
    assert cli("place", "m.onnx", *cores, cwd=tmp_path).returncode == 0
    ports = pw.read_plan(tmp_path / "plan.json").problem.source
    assert ports is not None
    assert ports.signature is not None
    names = {port.name: port.shape for port in ports.signature.inputs}
    right = {name: np.full(shape, 3.0, dtype=np.float32) for name, shape in names.items()}
    first = next(iter(right))
    np.savez(tmp_path / "right.npz", **right)
    done = cli("run", "plan.json", "--inputs", "right.npz", "--runs", 1, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["equal"] is True
    wide = {**right, first: right[first].astype(np.float64)}
    short = {**right, first: right[first][..., :-1]}
    objects = {**right, first: np.array([{}], dtype=object)}
    wrong: list[tuple[dict[str, Any], str]] = [
        (wide, f"input '{first}' is float64"),
        (short, f"input '{first}' is float32"),
        ({**right, "other": right[first]}, "unknown model input 'other'"),
        ({}, f"input '{first}'"),
        (objects, "holds no inputs: Object arrays cannot be loaded"),
    ]
    for arrays, message in wrong:
        np.savez(tmp_path / "wrong.npz", **arrays)
        _refused(cli, tmp_path, message)
    (tmp_path / "wrong.npz").write_bytes(b"PK no archive")
    _refused(cli, tmp_path, "file 'wrong.npz' holds no inputs")
    _refused(cli, tmp_path, "--runs must be >= 1, got 0", "--runs", 0)
    _refused(cli, tmp_path, "--inputs applies to single runs", "--samples", 3)


def _refused(cli: InProcess, folder: Path, message: str, *options: Any) -> None:
    words = ("run", "plan.json", "--inputs", "wrong.npz" if not options else "right.npz", *options)
    done = cli(*words, cwd=folder)
    assert done.returncode == 2, (message, done.stdout, done.stderr)
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_given_inputs_are_what_is_compared_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    session = pw.Session(
        str(tmp_path / "m.onnx"), devices="cpu:0,cpu:1", evaluations=20, quick=True
    )
    plan = session.place()
    given = [
        np.full_like(one, 2.5) for one in session.loaded.random_inputs(np.random.default_rng())
    ]
    compared, measured = [], []
    compare, measure = running.compare_outputs, running.measure_interleaved

    def noted_compare(*words: Any, **options: Any) -> Any:
        compared.append(options["inputs"])
        return compare(*words, **options)

    def noted_measure(runners: Any, inputs: Any, **options: Any) -> Any:
        measured.append(inputs)
        return measure(runners, inputs, **options)

    monkeypatch.setattr(running, "compare_outputs", noted_compare)
    monkeypatch.setattr(running, "measure_interleaved", noted_measure)
    assert session.measure(plan, runs=1, inputs=given).equal
    traced: list[Any] = []
    call_runner = running.call_runner

    @contextmanager
    def noted_runner(*words: Any) -> Iterator[Any]:
        with call_runner(*words) as runner:
            run = runner.run
            monkeypatch.setattr(runner, "run", lambda values: traced.append(values) or run(values))
            yield runner

    monkeypatch.setattr(running, "call_runner", noted_runner)
    assert session.trace(plan, inputs=given)
    with pytest.raises(InputError):
        session.trace(plan, inputs=given[:-1])
    assert all((compared, measured, traced))
    for seen in (*compared, *measured, *traced):
        for value, right in zip(seen, given, strict=True):
            np.testing.assert_array_equal(value, right)


def test_no_time_is_announced_before_a_round_was_measured(
    tmp_path: Path,
) -> None:
    """How long a runtime loads and compiles is unknown; measured rounds have a pace."""
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    reports: list[tuple[float, str]] = []
    model = str(tmp_path / "m.onnx")
    options = {"devices": "cpu:0,cpu:1", "evaluations": 20, "quick": True}
    session = pw.Session(model, lambda *report: reports.append(report), **options)
    plan = session.place()
    reports.clear()
    session.measure(plan, runs=2)
    assert reports[0] == (0.0, "comparing outputs")
    measuring = reports[1:]
    assert [fraction for fraction, _ in measuring] == [0.0, 0.5, 1.0]
    for _, text in measuring:
        assert text.startswith("measuring, about ")
        assert text.endswith(" s left")


@pytest.fixture(scope="module")
def split_plan(tmp_path_factory: pytest.TempPathFactory) -> pw.Plan:
    """A plan of two cores, which is not measured."""
    return _split_plan(tmp_path_factory.mktemp("split"))


_EARLIER = {"cpu:0": 0.005, "all cores": 0.001, "searched": 0.02}
_OLD = Measurement(0.01, 0.0, 9, _EARLIER)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize(
    ("own", "other", "rounds", "advised"),
    [
        (1.0, 2.0, 9, "plan"),
        (2.0, 1.0, 9, "device"),
        (2.0, 1.0, 5, "plan"),  # too few rounds to know
    ],
)
@pytest.mark.parametrize("recommended", ["plan", "even split", "all cores"])
def test_a_run_is_judged_by_what_it_measured_and_not_by_an_earlier_measurement(
    split_plan: pw.Plan,
    monkeypatch: pytest.MonkeyPatch,
    own: float,
    other: float,
    rounds: int,
    advised: str,
    recommended: str,
) -> None:
    """The earlier seconds are those of a machine that was much faster."""
    plan = replace(split_plan, measured=replace(_OLD, recommendation=recommended))
    _fixed(monkeypatch, own, other, rounds)
    result = pw.Session(plan).measure(plan, runs=rounds)
    found = result.measurement
    assert found is not None
    assert dict(found.baselines) == {result.device: other}
    assert found.recommendation == (result.device if advised == "device" else "plan")
    sentence = verdict_lines(replace(plan, measured=found))[0]
    if own < other:
        assert sentence.startswith("Split over 2 devices: ")
        assert f"2.00 times as fast as '{result.device}' alone (2 s measured)" in sentence
    else:
        assert sentence.startswith("Do not split: ")
    assert "evenly" not in sentence


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_device_that_breaks_a_pin_is_not_recommended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = _split_plan(tmp_path, pins={"a": "cpu:0", "gate": "cpu:1"})
    _fixed(monkeypatch, 2.0, 1.0)
    result = pw.Session(plan).measure(plan, runs=9)
    assert not result.device_is_legal
    assert result.measurement is not None
    assert result.measurement.recommendation == "plan"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_plan_runs_where_every_device_is_too_small_for_the_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is compared and measured; the device that refuses the whole model has no time."""
    plan = _split_plan(tmp_path, pins={"a": "cpu:0", "gate": "cpu:1"})

    def refused(*_: Any) -> Any:
        raise RuntimeFailure("out of memory")

    _fixed(monkeypatch, 2.0, 1.0)
    monkeypatch.setattr(contenders, "whole_call_runner", refused)
    result = pw.Session(plan).measure(plan, runs=9)
    assert result.equal
    assert (result.plan_seconds, result.device_seconds, result.ratio) == (2.0, None, None)
    told = "(breaks a limit or a pin): cannot run the whole model: out of memory"
    assert f"'{result.device}' {told}" in str(result)
    assert result.data()["best_single_device_measured"] is None


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_time_recommends_nothing_where_the_objective_is_an_energy(
    split_plan: pw.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the run's lines nor on the page, where joules stand beside joules."""
    plan = split_plan
    cluster = plan.problem.cluster
    devices = tuple(replace(one, busy_watts=9.0, idle_watts=1.0) for one in cluster.devices)
    problem = replace(
        plan.problem, cluster=replace(cluster, devices=devices), objective="energy", limits={}
    )
    plan = replace(with_placement(replace(plan, problem=problem), plan.placement), searched=None)
    _fixed(monkeypatch, 2.0, 1.0)
    result = pw.Session(plan).measure(plan, runs=9)
    assert result.verdict == ""
    found = result.measurement
    assert found is not None
    assert found.recommendation == "plan"
    sentence = verdict_lines(replace(plan, measured=found))[0]
    assert "J predicted, its time 2 s measured over 2 devices is no gain on" in sentence
    assert re.search(r" alone \(\S+ \w?J\)", sentence), sentence


def _fixed(monkeypatch: pytest.MonkeyPatch, own: float, other: float, rounds: int = 9) -> None:
    """Let every round of a run's plan take `own` seconds, and of the device beside it `other`."""

    def fixed(runners: Any, *_: Any, **options: Any) -> dict[str, list[float]]:
        return {name: [own if name == "plan" else other] * rounds for name in runners}

    monkeypatch.setattr(running, "measure_interleaved", fixed)


def _split_plan(folder: Path, **options: Any) -> pw.Plan:
    """The last op on another core than all others."""
    onnx.save(branching_model(), str(folder / "m.onnx"))
    options = {"devices": "cpu:0,cpu:1", "evaluations": 20, "quick": True, **options}
    plan = pw.place(str(folder / "m.onnx"), **options)
    device_of = np.zeros(plan.problem.n_units, dtype=np.int64)
    device_of[plan.problem.unit_graph.op_names.index("gate")] = 1
    return replace(with_placement(plan, Placement.of(device_of)), searched=None)
