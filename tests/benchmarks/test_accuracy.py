"""How far a measured median can be trusted, and which pairs a rank correlation counts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from placewright.benchmarks.accuracy import AccuracyRow, _read, _row, summaries
from placewright.errors import FileFormatError


def row(predicted: float, measured: float, noise: float, rounds: int = 4) -> AccuracyRow:
    return AccuracyRow("m", "random", "by hand", predicted, measured, noise, "key", rounds)


def test_standard_error_of_a_median_by_hand() -> None:
    """Quartiles 2 x 1.349 apart are a deviation of 2; over four rounds, half of 1.2533 x 2."""
    assert row(1.0, 1.0, 1.349).standard_error == pytest.approx(1.2533)
    assert row(1.0, 1.0, 1.349, 16).standard_error == pytest.approx(1.2533 / 2)


def test_standard_error_is_what_repeating_the_measurement_varies() -> None:
    """Medians of 41 normal rounds, 3,000 times: their scatter against the mean estimate."""
    rng = np.random.default_rng(3)
    rows = [
        _row("m", "random", "o", 1.0, rng.normal(1.0, 0.1, 41).tolist(), 2.0, "key")
        for _ in range(3000)
    ]
    scatter = float(np.std([one.measured for one in rows]))
    assert rows[0].rounds == 41
    assert np.mean([one.standard_error for one in rows]) == pytest.approx(scatter, rel=0.05)


def test_a_median_of_ratios_times_the_reference() -> None:
    found = _row("m", "random", "o", 1.0, [1.0, 2.0, 3.0, 4.0, 5.0], 10.0, "key")
    assert (found.measured, found.noise, found.rounds) == (30.0, 10.0, 5)


def test_only_pairs_further_apart_than_their_noise_count() -> None:
    """Standard errors 1.2533 and 0.6267: pairs must be 1.96 x 1.4012 = 2.746 apart.

    The wrong pair is 2.7 apart and does not count; 2.8 apart, it is one of three.
    """
    rows = [row(10.0, 10.0, 1.349), row(9.0, 12.7, 0.6745), row(20.0, 20.0, 1.349)]
    assert summaries(rows)[-1].tau == 1.0
    rows[1] = row(9.0, 12.8, 0.6745)
    assert summaries(rows)[-1].tau == pytest.approx(1 / 3)
    assert math.isnan(summaries(rows[:1])[-1].tau)


def test_a_results_file_keeps_rounds_and_a_foreign_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "accuracy.json"
    entry = {"model": "m", "kind": "random", "origin": "o", "predicted": 1.0, "measured": 2.0}
    entry |= {"noise": 0.5, "key": "k", "rounds": 7}
    path.write_text(json.dumps({"format": "placewright.accuracy/1", "rows": [entry]}))
    (known,) = _read(path)
    assert (known.rounds, known.error) == (7, 0.5)
    path.write_text(json.dumps({"format": "other", "rows": []}))
    with pytest.raises(FileFormatError, match="no results file of this benchmark"):
        _read(path)
