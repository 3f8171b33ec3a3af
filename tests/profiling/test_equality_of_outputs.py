"""When two outputs are equal: numbers by their size, NaN and infinity by their place."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.execution.slices import relative_error

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("found", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, NAN], [1.0, NAN], 0.0),
        ([1.0 + 2e-7, NAN, 2.0], [1.0, NAN, 2.0], 1e-7),
        ([1.0 + 2e-7, INF, -INF, 2.0], [1.0, INF, -INF, 2.0], 1e-7),
        ([NAN, NAN], [NAN, NAN], 0.0),
        ([1.0, NAN], [NAN, 1.0], INF),
        ([1.0, NAN], [1.0, 2.0], INF),
        ([1.0, 2.0], [1.0, NAN], INF),
        ([1.0, INF], [1.0, -INF], INF),
        ([1.0, INF], [1.0, NAN], INF),
        ([1.0], [1.0, 1.0], INF),
        ([0.0], [0.0], 0.0),
    ],
)
def test_relative_error(found: list[float], expected: list[float], error: float) -> None:
    assert relative_error(np.array(found), np.array(expected)) == pytest.approx(error, rel=1e-3)


def test_complex_numbers_and_integers() -> None:
    assert relative_error(np.array([1 + 1j]), np.array([1 + 1.1j])) < 0.1
    assert relative_error(np.array([1, 2]), np.array([1, 2])) == 0.0
    assert relative_error(np.array([1, 2]), np.array([1, 3])) == INF
