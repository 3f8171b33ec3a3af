"""Real models of installed packages: cut over two cores, run, exported, and run by others alone.

The detector and the recogniser of PP-OCR on images of the size that they are made for, and a
quantised model. Each is skipped with a reason where its package is not installed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.foreign.wheels import WheelModel, listed_models, located
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.solution import Solution
from placewright.session.export import export
from placewright.session.search import plan_of
from placewright.session.session import Session

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores"),
]
NAMES = ("PP-OCRv6_det_small", "PP-OCRv6_rec_small", "common_old")
MODELS = [one for name in NAMES for one in listed_models() if name in one.file]


def path_of(model: WheelModel) -> Path:
    found = located(model)
    if found.path is None:
        pytest.skip(f"{model.name}: {found.reason}")
    return found.path


def cut_plan(session: Session, runtime: str) -> Plan:
    """Four runs of units in topological order, on the two cores in turn."""
    problem = session.problem
    place = np.empty(problem.n_units, dtype=np.int64)
    place[problem.unit_graph.topological_order] = np.arange(problem.n_units)
    device_of = place * 4 // problem.n_units % 2
    found = Solution(Placement.of(device_of), 0.0, "feasible")
    return plan_of(problem, found, PlacerRecord("by hand", "1", 0, 0, 0.0), runtime)


def picture(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Dark strokes on a light page, with the values that such models are given."""
    rng, (_, channels, height, width) = np.random.default_rng(0), shape
    page = np.full((height, width), 0.9, np.float32)
    for _ in range(40):
        y, x = rng.integers(0, height), rng.integers(0, width)
        page[y : y + 2 + height // 40, x : x + width // 12] = 0.1
    return np.repeat((page[None] - 0.5) / 0.5, channels, axis=0)[None].astype(np.float32)


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: Path(model.file).stem)
def test_a_real_model_gives_its_own_outputs_in_pieces(
    model: WheelModel, runtime: str, tmp_path: Path
) -> None:
    path, shapes = path_of(model), dict(model.shapes)
    request = {"runtime": runtime, "devices": "cpu:0,cpu:1", "quick": True, "calibrate": False}
    session = Session(str(path), shapes=shapes, **request)
    plan = cut_plan(session, runtime)
    ((name, shape),) = shapes.items()
    image = picture(shape)
    found = session.measure(plan, runs=1, inputs={name: image})
    assert found.equal, found
    if runtime != "onnxruntime":
        return
    export(plan, "onnx-segments", tmp_path / "parts")
    values, listed = run_parts(tmp_path / "parts", {name: image})
    assert len(listed["segments"]) > 2
    for output, expected in whole(path, {name: image}).items():
        scale = float(np.abs(expected).max())
        np.testing.assert_allclose(values[output], expected, rtol=0, atol=2e-4 * scale)


def run_parts(folder: Path, values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """All tensors between segments, run by ONNX Runtime one file after the other."""
    import onnxruntime as ort

    listed: dict[str, Any] = json.loads((folder / "segments.json").read_text())
    for one in listed["segments"]:
        part = ort.InferenceSession(folder / one["file"], providers=["CPUExecutionProvider"])
        outputs = part.run(one["outputs"], {key: values[key] for key in one["inputs"]})
        values = {**values, **dict(zip(one["outputs"], outputs, strict=True))}
    return values, listed


def whole(path: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    import onnxruntime as ort

    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))
