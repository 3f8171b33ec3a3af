"""What limits on measuring count, with a real model and a clock that the test moves."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from support.branching_model import branching_model

import placewright as pw
from placewright.core.problem import Problem
from placewright.profiling.calibration import Calibration, with_default_costs
from placewright.profiling.evidence import Evidence
from placewright.profiling.hardware import Deadline, Stopwatch
from placewright.report.time_left import KERNELS, Steps
from placewright.session import devices, measuring
from placewright.session.devices import MachineCosts, cluster_for
from placewright.session.measuring import Extent, Measured, measure_model
from placewright.session.models import load_model, runnable_source, runtime_named

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
LONG = 1000.0


def test_compiling_kernels_spends_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first use compiles for 1,000 s; 500 s of profiling and 800 s in all still suffice."""
    moved, steps_told, real = [0.0], list[str](), measuring.calibration

    def compile_once(*_: object) -> None:
        moved[0] = LONG

    def calibration(*args: Any, **options: Any) -> Any:
        compile_once()  # whatever is not compiled yet
        return real(*args, **options)

    monkeypatch.setattr(measuring, "make_ready", compile_once, raising=False)
    monkeypatch.setattr(measuring, "calibration", calibration)
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    model, runtime = load_model(str(tmp_path / "m.onnx")), runtime_named("openvino")
    cluster = cluster_for("cpu:0,cpu:1", None, "openvino")
    assert model.source is not None
    watch = Stopwatch(lambda: time.monotonic() + moved[0])
    deadline = Deadline.after(0.8 * LONG, watch)
    extent = Extent(deadline, remeasure=True, limit=Deadline(clock=watch).within(0.5 * LONG))
    found = measure_model(
        model,
        runtime.load(runnable_source(model.source, model.graph), model.graph),
        cluster,
        runtime,
        extent=extent,
        steps=Steps(lambda _, what: steps_told.append(what)),
    )
    assert found.left_out == ()
    fitted = found.problem.cluster.devices
    assert fitted != found.problem.cluster.without_overheads.devices
    assert any(step.startswith(KERNELS) for step in steps_told)  # and the time left
    assert not deadline.is_over


@pytest.mark.parametrize(
    ("machine", "others"),
    [
        (None, "cuts and dispatch cost a pessimistic default"),
        (Evidence(), "cuts and dispatch cost what they do in this machine's small model"),
    ],
)
def test_a_calibration_without_room_is_told_and_not_kept(
    machine: Evidence | None, others: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Placements that do not fit into an accelerator were not missed by anybody."""
    calls: list[int] = []

    class Costs:
        """What splitting costs on this machine, without a run."""

        known = None

        def __init__(self, *_: object) -> None:
            pass

        def start(self, *_: object) -> float:
            return 0.0

        def measured(self, *_: object) -> Evidence | None:
            return machine

        def probe(self) -> tuple[float, float, float]:
            return (0.0, 0.0, 0.0)

        def close(self) -> None:
            pass

    def calibration(problem: Any, *_: Any, **__: Any) -> Calibration:
        calls.append(1)
        return Calibration(with_default_costs(problem), 0, is_complete=True)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # no other test has kept a fit there
    monkeypatch.setattr(measuring, "make_ready", lambda *_: None)
    monkeypatch.setattr(measuring, "MachineCosts", Costs)
    monkeypatch.setattr(measuring, "calibration", calibration)
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    model, runtime = load_model(str(tmp_path / "m.onnx")), runtime_named("openvino")
    cluster = cluster_for("cpu:0,cpu:1", None, "openvino")
    assert model.source is not None
    loaded = runtime.load(runnable_source(model.source, model.graph), model.graph)
    for number in (1, 2):
        found = measure_model(model, loaded, cluster, runtime)
        assert found.left_out == (
            "calibration: 0 placements measured, not 8, for others break a limit on memory; "
            + others,
        )
        assert len(calls) == number


def branching(folder: Path) -> Callable[[Extent], Measured]:
    """A function that measures a model on two cores."""
    onnx.save(branching_model(), str(folder / "m.onnx"))
    model, runtime = load_model(str(folder / "m.onnx")), runtime_named("openvino")
    cluster = cluster_for("cpu:0,cpu:1", None, "openvino")
    assert model.source is not None
    loaded = runtime.load(runnable_source(model.source, model.graph), model.graph)
    return lambda extent: measure_model(model, loaded, cluster, runtime, extent=extent)


def test_every_quick_call_says_that_its_costs_are_of_few_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one measures nothing, and seemed to have left nothing out."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = branching(tmp_path)
    for _ in range(2):
        (clause,) = measured(Extent(is_quick=True, calibrate=False)).left_out
        assert clause.startswith("rounds: each device ran the model 2 or 3 times")
    over = Deadline(0.0, Stopwatch(lambda: 1.0))
    (clause,) = measured(Extent(over, calibrate=False)).left_out
    assert clause == "rounds: devices ran the model fewer times than usual"
    assert measured(Extent(calibrate=False)).left_out == ()
    assert measured(Extent(is_quick=True, calibrate=False)).left_out == ()


def test_the_small_model_does_not_run_after_the_total(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its units were measured without any limit, to say how long its placements would take."""

    def refused(*_: object) -> float:
        raise AssertionError("the total is over")

    def calibration(problem: Problem, *_: Any, **__: Any) -> Calibration:
        return Calibration(with_default_costs(problem), 0, is_complete=False)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(devices, "known_machine_costs", lambda *_: None)
    monkeypatch.setattr(MachineCosts, "start", refused)
    monkeypatch.setattr(MachineCosts, "measured", refused)
    monkeypatch.setattr(measuring, "make_ready", lambda *_: None)
    monkeypatch.setattr(measuring, "calibration", calibration)
    measured = branching(tmp_path)
    measured(Extent(calibrate=False))
    over = Deadline(0.0, Stopwatch(lambda: 1.0))
    assert measured(Extent(over)).left_out == (
        "calibration: 0 placements measured, not 8; cuts and dispatch cost a pessimistic default",
    )


def test_threads_of_measured_values_end_with_the_search(tmp_path: Path) -> None:
    """An idle one would be taken for a thread that is stuck in a library."""
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    before = set(threading.enumerate())
    session = pw.Session(
        str(tmp_path / "m.onnx"), devices="cpu:0,cpu:1", evaluator="measured", evaluations=2,
        placer="random", check=False, quick=True, calibrate=False,
    )  # fmt: skip
    session.place()
    session.compare(["random"])
    assert not [thread.name for thread in threading.enumerate() if thread not in before]
