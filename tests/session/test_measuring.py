"""What limits on measuring count, with a real model and a clock that the test moves."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import onnx
import pytest
from support.branching_model import branching_model

from placewright.profiling.hardware import Deadline, Stopwatch
from placewright.report.time_left import KERNELS, Steps
from placewright.session import measuring
from placewright.session.devices import cluster_for
from placewright.session.measuring import Extent, measure_model
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
