"""Foreign models: each ends as a row, whatever its library does; a rerun repeats nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from model_makers import write_onnx
from tflite_maker import write_tflite

from benchmarks.foreign import runs
from benchmarks.foreign.architectures import ARCHITECTURES
from benchmarks.foreign.report import foreign_table
from benchmarks.foreign.runs import FORMAT, ForeignRow, foreign_models, run_foreign
from placewright.errors import InputError, UnknownNameError
from placewright.files.results import read_rows


def test_what_is_run() -> None:
    """The nine light networks, and sixty architectures that the zoo lacks in two formats."""
    models = foreign_models()
    assert len([name for name, _ in models if name.startswith("light/")]) == 9
    assert len(set(ARCHITECTURES)) == len(ARCHITECTURES) >= 60
    assert not {"bert", "gpt2"} & set(ARCHITECTURES)
    assert len([one for one in models if one[0].startswith("transformers:")]) >= 120
    assert len(set(models)) == len(models)


def test_a_model_ends_as_one_row_for_each_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_onnx(tmp_path / "m.onnx")
    (tmp_path / "damaged.onnx").write_bytes(b"no model")
    monkeypatch.setattr(runs, "_onnx_folder", lambda: tmp_path)
    rows = list(runs.model_rows("m.onnx", "onnx", tmp_path))
    assert {row.runtime for row in rows} == {"openvino", "onnxruntime"}
    assert [(row.outcome, row.reason) for row in rows] == [("equal", "")] * 2
    refused = list(runs.model_rows("damaged.onnx", "onnx", tmp_path))
    assert {row.outcome for row in refused} == {"refused"}
    assert all("damaged.onnx" in row.reason for row in refused)


def test_a_crash_and_a_hang_are_rows_and_kept(tmp_path: Path) -> None:
    results = tmp_path / "foreign.json"
    missing = [("light/there_is_none.onnx", "onnx")]
    rows = run_foreign(missing, seconds=0.0, results_path=results)
    assert [row.outcome for row in rows] == ["failed"]
    assert "it took more than 0 s" in rows[0].reason
    again = run_foreign(missing, seconds=600.0, results_path=results)
    assert again == rows == read_rows(results, FORMAT, ForeignRow)


def test_the_table_has_every_row_once() -> None:
    rows = [
        ForeignRow("a", "onnx", "openvino", "equal", 3, 2, 2, 1e-7),
        ForeignRow("a", "onnx", "onnxruntime", "refused", reason="a | b"),
        ForeignRow("b", "pt2", "", "not made", reason="no exporter"),
    ]
    text = foreign_table(rows)
    assert "| onnx | openvino | 1 | 0 | 0 | 0 |" in text
    assert "| a | onnx | onnxruntime | refused | a / b |" in text
    assert "| b | pt2 | - | not made | no exporter |" in text
    assert "| a | onnx | openvino | 3 | 2 | 2 | 1e-07 |" in text


def test_models_of_a_folder(tmp_path: Path) -> None:
    """Files by their suffixes, a SavedModel as one model; what is no model is left out."""
    (tmp_path / "deep").mkdir()
    write_onnx(tmp_path / "deep" / "m.onnx")
    write_tflite(tmp_path / "small.tflite", np.ones((3, 4), dtype=np.float32))
    saved = tmp_path / "net_saved"
    saved.mkdir()
    for name in ("saved_model.pb", "fingerprint.pb"):
        (saved / name).write_bytes(b"no model")
    (tmp_path / "notes.txt").write_text("no model")
    models = foreign_models([], tmp_path)
    assert models == [
        ("folder:deep/m.onnx", "onnx"),
        ("folder:net_saved", "saved_model"),
        ("folder:small.tflite", "tflite"),
    ]
    found = {
        name: [
            (row.runtime, row.outcome) for row in runs.model_rows(name, kind, tmp_path, tmp_path)
        ]
        for name, kind in models
    }
    assert found["folder:deep/m.onnx"] == [("openvino", "equal"), ("onnxruntime", "equal")]
    assert found["folder:small.tflite"] == [("openvino", "equal")]
    assert found["folder:net_saved"] == [("openvino", "refused")]


def test_a_folder_without_models_and_an_unknown_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no model of \.onnx, \.pb, "):
        foreign_models([], tmp_path)
    with pytest.raises(UnknownNameError, match="unknown kind 'tflite'"):
        foreign_models(["tflite"])


def test_a_model_that_cannot_be_made_tells_the_first_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(*_: object) -> Path:
        try:
            raise KeyError("attention")
        except KeyError as error:
            raise RuntimeError("many lines\nof advice") from error

    monkeypatch.setattr(runs, "export", export)
    (row,) = runs.model_rows("transformers:bart", "onnx", tmp_path)
    assert (row.outcome, row.reason) == ("not made", "KeyError: 'attention'")
