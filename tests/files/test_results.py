"""Results files: rows by what they are a result of, whatever is not finite, files of others."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from placewright.errors import FileFormatError
from placewright.files import results
from placewright.files.results import ResultsFile, read_rows, write_rows


@dataclass(frozen=True)
class Found:
    key: str
    value: float


def opened(path: Path) -> ResultsFile[Found]:
    return ResultsFile(path, "test/1", Found, lambda row: row.key)


def test_a_later_row_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    first = opened(path)
    first.add([Found("a", 1.0), Found("b", 2.0)])
    opened(path).add([Found("a", 3.0)])
    assert list(opened(path).rows.values()) == [Found("a", 3.0), Found("b", 2.0)]
    assert path.read_text().count("\n") == 4, "one line for each row, two around them"


def test_rows_that_another_process_adds_stay(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    one, other = opened(path), opened(path)
    one.add([Found("a", 1.0)])
    other.add([Found("b", 2.0)])
    one.add([Found("c", 3.0)])
    assert list(opened(path).rows) == list(one.rows) == ["a", "b", "c"]
    assert list(other.rows) == ["a", "b"]


def test_a_file_that_nobody_else_writes_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    write_rows(path, "test/1", [Found("a", 1.0)])
    file = opened(path)
    monkeypatch.setattr(results, "read_rows", lambda *_: pytest.fail("read again"))
    file.add([Found("b", 2.0)])
    file.add([Found("c", 3.0)])
    assert list(file.rows) == ["a", "b", "c"]


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_rows(path, "test/1", [Found("a", math.inf)])
    assert json.loads(path.read_text())["rows"] == [{"key": "a", "value": None}]
    assert math.isnan(read_rows(path, "test/1", Found)[0].value)
    assert read_rows(path, "test/1", Found, missing=None)[0].value is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"format": "other/1", "rows": []}', "has format 'other/1', expected 'test/1'"),
        ('{"format": "test/1"}', "rows"),
        ('{"format": "test/1", "rows": [{"key": "a"}]}', "value"),
        ('{"format": "test/1", "rows": [3]}', "results file"),
        ('{"format": "test/1", "rows": [{"key": ["a"], "value": 1}]}', "unhashable"),
    ],
)
def test_a_file_of_another_kind_is_refused_and_kept(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=why):
        opened(path)
    assert path.read_text() == text


def test_every_shipped_results_file_of_rows_is_read() -> None:
    """Files of earlier versions have one field a line; both are the same JSON."""
    folder = Path(__file__).parents[2] / "docs" / "results"
    formats = {
        "kernel.json": "placewright.kernel-rates/1",
        "learned.json": "placewright.learned/1",
        "memory-training.json": "placewright.memory/1",
        "tarnawski.json": "placewright.tarnawski/1",
        "accuracy.json": "placewright.accuracy/1",
    }
    for name, file_format in formats.items():
        assert read_rows(folder / name, file_format, dict), name
