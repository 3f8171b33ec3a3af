"""Pictures of results: what is in them, and that they repeat to the byte."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.accuracy_report import AccuracyRow
from benchmarks.kernel import KernelRow
from benchmarks.pictures import draw_accuracy, draw_kernel_rates, draw_results
from placewright.errors import MissingExtraError

RATES = [
    KernelRow(1000, 4, 1969, 1e-4, 1e7, 5e-3, 50.0, 10**8),
    KernelRow(10000, 4, 19720, 1e-3, 1e7, math.nan, math.nan, 10**8),
    KernelRow(1000, 8, 999, 2e-4, 5e6, 5e-3, 25.0, 10**8),
]
ERRORS = [
    AccuracyRow("zoo:a", "random", "wandering", 0.040, 0.041, 0.001, "1"),
    AccuracyRow("zoo:a", "heuristic", "heft", 0.030, 0.033, 0.002, "2"),
    AccuracyRow("zoo:b", "near-best", "local-search", 0.020, 0.021, 0.001, "3"),
]


def texts(path: Path) -> set[str]:
    """All text of an SVG file."""
    return {(text or "").strip() for text in ElementTree.parse(path).getroot().itertext()}


def test_rates(tmp_path: Path) -> None:
    """A line for each family, named in the legend; axes with their units."""
    path = tmp_path / "rates.svg"
    draw_kernel_rates(RATES, path)
    assert {"4 devices, 2 inputs per op", "8 devices, 1 input per op"} <= texts(path)
    assert {"ops", "million ops per second and core"} <= texts(path)
    before = path.read_bytes()
    draw_kernel_rates(RATES, path)
    assert path.read_bytes() == before


def test_accuracy(tmp_path: Path) -> None:
    """One picture per model."""
    path = tmp_path / "accuracy.svg"
    draw_accuracy(ERRORS, path)
    assert {"zoo:a", "zoo:b", "measured, ms", "predicted, ms", "heuristic"} <= texts(path)


@pytest.mark.slow
def test_pictures_of_result_pages_are_drawn_from_the_rows(tmp_path: Path) -> None:
    """`python -m benchmarks.result_pages` draws them again."""
    folder = Path(__file__).parents[2] / "docs" / "results"
    draw_results(folder, tmp_path)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == sorted(path.name for path in folder.glob("*.svg"))
    for name in drawn:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra; nothing is written."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match="plot"):
        draw_kernel_rates(RATES, tmp_path / "rates.svg")
    assert not list(tmp_path.iterdir())
