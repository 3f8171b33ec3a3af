"""How far a measured median can be trusted, and which pairs a rank correlation counts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy import FORMAT, read_accuracy
from benchmarks.accuracy_report import AccuracyRow, summaries
from placewright.errors import FileFormatError
from placewright.files.results import write_rows


def row(predicted: float, measured: float, noise: float, rounds: int = 4) -> AccuracyRow:
    return AccuracyRow("m", "random", "by hand", predicted, measured, noise, "key", rounds)


def fresh() -> AccuracyRow:
    return AccuracyRow("m", "random", "o", 1.0, math.nan, 0.0, "key", 0, (), 0)


def test_standard_error_of_a_median_by_hand() -> None:
    """Quartiles 2 x 1.349 apart are a deviation of 2; over four rounds, half of 1.2533 x 2."""
    assert row(1.0, 1.0, 1.349).standard_error == pytest.approx(1.2533)
    assert row(1.0, 1.0, 1.349, 16).standard_error == pytest.approx(1.2533 / 2)


def test_standard_error_is_what_repeating_the_measurement_varies() -> None:
    """Medians of 41 normal rounds, 3,000 times: their scatter against the mean estimate."""
    rng = np.random.default_rng(3)
    rows = [fresh().visited(rng.normal(1.0, 0.1, 41).tolist(), 2.0) for _ in range(3000)]
    scatter = float(np.std([one.measured for one in rows]))
    assert rows[0].rounds == 41
    assert np.mean([one.standard_error for one in rows]) == pytest.approx(scatter, rel=0.05)


def test_a_median_of_ratios_times_the_reference() -> None:
    found = fresh().visited([1.0, 2.0, 3.0, 4.0, 5.0], 10.0)
    assert (found.measured, found.noise, found.rounds) == (30.0, 10.0, 5)


def test_of_three_visits_the_one_in_the_middle_counts() -> None:
    """One visit of a machine that is disturbed for a while moves nothing but the doubt."""
    quiet = fresh().visited([1.0, 1.0, 1.0], 10.0).visited([1.1, 1.1, 1.1], 10.0)
    disturbed = quiet.visited([2.0, 2.0, 2.0], 10.0)
    assert quiet.measured == pytest.approx(10.5)
    assert disturbed.measured == pytest.approx(11.0)
    assert (disturbed.n_visits, disturbed.rounds, disturbed.noise) == (3, 9, 0.0)
    # Visits of 10, 11 and 20 seconds: their deviation is 5.508, of which 1.2533 / sqrt(3).
    assert disturbed.standard_error == pytest.approx(1.2533 * 5.50757 / 3**0.5, rel=1e-5)


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
    (known,) = read_accuracy(path)
    assert (known.rounds, known.error, known.n_visits) == (7, 0.5, 3)
    begun = fresh().visited([1.0, 2.0, 3.0], 1.0)
    write_rows(path, FORMAT, [begun])
    assert read_accuracy(path) == [begun]
    path.write_text(json.dumps({"format": "other", "rows": []}))
    with pytest.raises(FileFormatError, match="no results file of this benchmark"):
        read_accuracy(path)
