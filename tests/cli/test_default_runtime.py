"""The runtime of a request that names none, if some are not installed; files that none reads."""

from __future__ import annotations

import logging
import sys
import zipfile
from pathlib import Path

import pytest
from cli.runner import InProcess, the_line
from model_makers import write_onnx

import placewright as pw
from placewright.core.problem import Objective
from placewright.errors import FieldError, FileFormatError, InputError, MissingExtraError
from placewright.frameworks.runtimes import default_runtime_name, require_file, require_objective
from placewright.frameworks.torch.pt2.file import load_program


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize(
    ("absent", "model", "chosen"),
    [
        ((), "m.onnx", "openvino"),
        ((), "", "openvino"),
        (("openvino",), "", "onnxruntime"),
        (("openvino",), "m.onnx", "onnxruntime"),
        (("openvino", "onnx"), "", "torch"),
        (("openvino", "onnxruntime"), "zoo:rnnlm/tiny", "torch"),
        (("openvino", "onnxruntime"), "m.PT2", "torch"),
        # Nothing that is installed reads it: the error then names what does.
        (("openvino", "onnxruntime"), "m.onnx", "openvino"),
        (("openvino",), "m.xml", "openvino"),
        (("openvino", "onnxruntime", "torch"), "", "openvino"),
    ],
)
def test_the_first_installed_runtime_that_reads_the_model(
    absent: tuple[str, ...], model: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, *absent)
    assert default_runtime_name("latency", model) == chosen
    assert default_runtime_name("training", model) == "torch"


@pytest.mark.parametrize("objective", ["energy", "price"])
def test_energy_and_price_are_of_runtimes_that_have_times(objective: Objective) -> None:
    for runtime in ("openvino", "onnxruntime", "torch"):
        require_objective(runtime, objective)
    with pytest.raises(FieldError, match="'openvino' cannot train; leave it out, or take torch"):
        require_objective("openvino", "training")


def test_a_missing_file_is_like_others_by_its_own_name(tmp_path: Path) -> None:
    """A long common folder makes no name alike."""
    for name in ("notes.txt", "data.csv", "birt.onnx"):
        (tmp_path / name).touch()
    with pytest.raises(InputError) as caught:
        require_file(str(tmp_path / "bert.onnx"))
    assert str(caught.value).endswith(f"did you mean {tmp_path / 'birt.onnx'}?")


def test_a_saved_model_is_of_the_runtime_that_reads_its_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the runtime that is missing says what to install."""
    without(monkeypatch, "openvino")
    assert default_runtime_name("latency", str(tmp_path)) == "openvino"


def test_devices_without_the_first_runtime(
    tmp_path: Path, cli: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "openvino")
    shown = cli("devices", "--devices", "cpu", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("Devices of onnxruntime")
    assert "With --runtime torch: cpu" in shown.stdout


def test_a_model_is_read_by_what_is_installed_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_onnx(tmp_path / "m.onnx")
    caplog.set_level(logging.INFO, "placewright.session")
    pw.read(str(tmp_path / "m.onnx"))
    pw.read(str(tmp_path / "m.onnx"), runtime="onnxruntime")
    assert caplog.messages == []
    without(monkeypatch, "openvino")
    source = pw.read(str(tmp_path / "m.onnx")).source
    assert source is not None
    assert source.format == "onnx"
    assert caplog.messages == [
        "runtime onnxruntime, since openvino is not installed; argument `runtime` names another"
    ]
    without(monkeypatch, "onnxruntime")
    with pytest.raises(MissingExtraError, match=r"pip install 'placewright\[openvino\]'"):
        pw.profile(str(tmp_path / "m.onnx"))


@pytest.mark.parametrize("name", ["m.jit", "m.pt", "m.PTH"])
def test_files_of_modules_are_refused_with_the_way_to_export(
    name: str, tmp_path: Path, cli: InProcess
) -> None:
    (tmp_path / name).write_bytes(b"PK")
    line = the_line(cli("graph", name, cwd=tmp_path), 2)
    assert f"'{name}' has no known model format" in line
    assert "torch.export.save(torch.export.export(module, inputs), 'model.pt2')" in line


def test_a_script_that_is_called_pt2_is_refused_with_the_way_to_export(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        archive.writestr("m/constants.pkl", b"")
    with pytest.raises(FileFormatError, match=r"no exported program; .*torch\.export\.save"):
        load_program(tmp_path / "m.pt2")


def test_an_unknown_suffix_is_refused_with_those_that_are_known(
    tmp_path: Path, cli: InProcess
) -> None:
    (tmp_path / "m.bin").write_bytes(b"x")
    line = the_line(cli("place", "m.bin", cwd=tmp_path), 2)
    assert "known are .xml, .onnx, .pb, .tflite, .pt2, .gguf, .json and a SavedModel folder" in line
