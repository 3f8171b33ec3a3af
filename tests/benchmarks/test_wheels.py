"""Models of installed packages: found or skipped with a reason, placed, measured, counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.branching_model import branching_model

from benchmarks.foreign import verdicts
from benchmarks.foreign.verdict_report import (
    VerdictFigures,
    verdict_figures,
    verdict_table,
)
from benchmarks.foreign.verdicts import Protocol, WheelRow, run_verdicts, wheel_rows
from benchmarks.foreign.wheels import WheelModel, listed_models, located
from placewright.core.placement import Placement
from placewright.core.plan import Searched
from placewright.errors import FileFormatError
from placewright.session.session import Session

SMALL = WheelModel("tiny-models", "1.0", "MIT", "tiny_models/m.onnx")


def install(folder: Path, *files: str) -> None:
    """What ``pip install --target`` leaves of a package with one model."""
    info = folder / "tiny_models-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-models\nVersion: 1.0\n")
    (folder / "tiny_models").mkdir()
    for name in files:
        onnx.save(branching_model(), str(folder / "tiny_models" / name))


def test_the_list() -> None:
    """About 34 real models and the nine light networks, each with a version and a licence."""
    models = listed_models()
    light = [one for one in models if one.package == "onnx"]
    assert len(light) == 9
    assert len(models) - len(light) >= 34
    assert len({one.name for one in models}) == len(models)
    assert all(one.version and one.licence for one in models)
    assert {"rapidocr-onnxruntime", "silero-vad", "magika", "basic-pitch", "nudenet", "ddddocr",
            "mediapipe", "pymicro-wakeword"} <= {one.package for one in models}  # fmt: skip


def test_the_light_networks_are_found_where_onnx_is_installed() -> None:
    for model in listed_models():
        if model.package == "onnx":
            found = located(model)
            assert found.path is not None, found.reason
            assert found.path.is_file()


def test_a_model_is_found_or_a_reason_is_given(tmp_path: Path) -> None:
    there = located(SMALL, [tmp_path])
    assert there.path is None
    assert there.reason == ("package 'tiny-models' is not installed: pip install tiny-models==1.0")
    install(tmp_path)
    assert located(SMALL, [tmp_path]).reason == (
        "tiny-models 1.0 has no file 'tiny_models/m.onnx'; version 1.0 has it"
    )
    onnx.save(branching_model(), str(tmp_path / SMALL.file))
    assert located(SMALL, [tmp_path]).path == tmp_path / SMALL.file


@pytest.mark.parametrize("text", ["- {package: a}", "a: 1", "- 3", "[{models: [{}]}]"])
def test_a_list_that_is_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(text)
    with pytest.raises(FileFormatError, match="no list of packages with their models"):
        listed_models(path)


@pytest.mark.slow
def test_a_row_has_all_its_steps(tmp_path: Path) -> None:
    install(tmp_path, "m.onnx")
    protocol = Protocol("cpu:0,cpu:1", budget=0.2, total=20.0, rounds=9, measuring_seconds=1.0)
    states = list(
        wheel_rows(WheelRow("m", "1.0", "openvino"), tmp_path / SMALL.file, SMALL, protocol)
    )
    assert len(states) == 4
    row = states[-1]
    assert (row.outcome, row.reason) == ("measured", "")
    assert row.equal is True
    assert row.single in ("cpu:0", "cpu:1")
    assert row.quick_place_seconds > 0
    assert row.full_recommendation
    assert (row.quick_ratio > 0) == row.quick_splits


def test_outputs_are_those_of_the_split_that_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that holds one device would always be equal; the search found a split."""
    install(tmp_path, "m.onnx")
    session = Session(
        str(tmp_path / SMALL.file), devices="cpu:0,cpu:1", placer="single", evaluations=2,
        quick=True, calibrate=False, check=False,
    )  # fmt: skip
    plan = session.place()
    n_units = plan.problem.n_units
    one, split = (Placement.of(np.arange(n_units) % number) for number in (1, 2))
    seen: list[Placement] = []
    compare = verdicts.compare_outputs

    def noted(problem: Any, placement: Placement, model: Any) -> Any:
        seen.append(placement)
        return compare(problem, placement, model)

    monkeypatch.setattr(verdicts, "compare_outputs", noted)
    work = verdicts._Work(tmp_path / SMALL.file, SMALL, "openvino", Protocol())
    work.loaded = session.loaded
    work.plans[verdicts.QUICK] = replace(plan, placement=one, searched=Searched(split, 1.0))
    assert verdicts._compared(WheelRow("m", "1.0", "openvino"), work).equal
    work.plans[verdicts.QUICK] = replace(plan, placement=one, searched=None)
    assert verdicts._compared(WheelRow("m", "1.0", "openvino"), work).equal
    assert [len(np.unique(one.device_of)) for one in seen] == [2, 1]


def test_a_step_that_is_refused_is_told(tmp_path: Path) -> None:
    install(tmp_path)
    (tmp_path / SMALL.file).write_bytes(b"no model")
    row = WheelRow("m", "1.0", "openvino")
    (found,) = wheel_rows(row, tmp_path / SMALL.file, SMALL, Protocol("cpu:0"))
    assert found.outcome == "refused"
    assert found.reason.startswith("placed quickly: ")
    assert str(tmp_path) not in found.reason


def test_each_model_has_a_runtime_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "m.onnx")
    monkeypatch.setattr(verdicts, "in_a_process", lambda task, given, seconds: ([given[0]], ""))
    models = [SMALL, replace(SMALL, file="tiny_models/../tiny_models/m.onnx", runtime="other")]

    def runtimes(*named: str) -> list[str]:
        return [one.runtime for one in run_verdicts(models, named, Protocol(), folders=[tmp_path])]

    assert runtimes() == ["openvino", "other"]
    assert runtimes("torch") == ["torch", "torch"]


def test_rows_are_kept_and_skipped_ones_are_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def process(task: Any, arguments: Any, seconds: float) -> Any:
        calls.append(arguments)
        return [replace(arguments[0], outcome="measured")], "" if len(calls) == 1 else "too long"

    monkeypatch.setattr(verdicts, "in_a_process", process)
    packages, results = tmp_path / "packages", tmp_path / "rows.json"

    def run() -> WheelRow:
        (row,) = run_verdicts(
            [SMALL], ["openvino"], Protocol(), folders=[packages], results_path=results
        )
        return row

    assert run().outcome == "skipped"
    assert calls == []
    install(packages, "m.onnx")
    assert run().outcome == "measured"
    assert run().outcome == "measured"
    assert len(calls) == 1
    results.unlink()
    assert (run().outcome, run().reason) == ("failed", "too long")


def row(name: str, quick: float, full: float, **other: Any) -> WheelRow:
    """Ratios of split plans with an interval of 0.02 around each; 0 is a plan of one device."""
    found: dict[str, Any] = {"outcome": "measured", "single_seconds": 0.01}
    for plan, ratio in (("quick", quick), ("full", full)):
        found |= {f"{plan}_devices": 2 if ratio else 1}
        if ratio:
            found |= {f"{plan}_ratio": ratio, f"{plan}_low": ratio - 0.01}
            found |= {f"{plan}_high": ratio + 0.01}
    advice = "plan" if full else "cpu:0"
    return WheelRow(name, "1", "r", **{**found, "full_recommendation": advice, **other})


def test_figures() -> None:
    """Of the five quick splits b and d are over 1.03. Checked splits that gain 10 %: a (1 / 0.7),
    e, i and k (1 / 0.8) and f (1 / 0.9 = 1.11), also where all cores were recommended; of f, i and
    k the quick plan says one device. The intervals of c (0.995 to 1.015) and d (1.04 to 1.06): only
    d's lies wholly above 1; b was not recommended."""
    rows = [
        row("a", 0.7, 0.7),
        row("b", 1.2, 1.2, full_recommendation="cpu:0"),
        row("c", 1.005, 1.005),
        row("d", 1.05, 1.05, equal=False),
        row("e", 0.9, 0.8),
        row("f", 0.0, 0.9),
        row("i", 0.0, 0.8, full_recommendation="even split"),
        row("k", 0.0, 0.8, full_recommendation="all cores"),
        row("g", 0.0, 0.0),
        WheelRow("h", "", "r", "skipped", "package 'h' is not installed"),
    ]
    found = verdict_figures(rows)
    assert found == VerdictFigures(
        quick_splits=5,
        quick_slower=("b under r", "d under r"),
        gains=5,
        gains_found=2,
        full_splits=6,
        full_slower=("d under r",),
        unequal=("d under r",),
    )
    text = verdict_table(rows)
    assert "also says split for 2 (40%)." in text
    assert "| b | r | 0 | 10 | split | 1.20 (1.19 to 1.21) | - | cpu:0 |" in text
    assert "| h | r | skipped | package 'h' is not installed |" in text
    assert np.isnan(rows[-1].quick_ratio)
