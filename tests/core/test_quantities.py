"""Numbers with units, from NumPy's numbers and to text."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.core.quantities import format_bytes, parse_bytes, parse_seconds
from placewright.errors import InputError


@pytest.mark.parametrize("given", [np.int64(12), np.uint8(12), np.float32(12), np.float64(12)])
def test_a_number_of_numpy_is_a_number(given: float) -> None:
    found = parse_bytes(given)
    assert (found, type(found)) == (12.0, float)


@pytest.mark.parametrize("given", [np.True_, None, [12], np.int64(-1), np.float32("nan")])
def test_other_values_are_refused(given: object) -> None:
    with pytest.raises(InputError, match="expected a number of bytes"):
        parse_bytes(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("mu", ["u", "\N{MICRO SIGN}", "\N{GREEK SMALL LETTER MU}"])
def test_microseconds_have_three_letters(mu: str) -> None:
    assert parse_seconds(f"12{mu}s") == pytest.approx(12e-6)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1023.4, "1023 B"),
        (1023.6, "1.00 KiB"),
        (2**30 - 1000, "1.00 GiB"),  # not 1024.00 MiB
        (1023.98 * 2**20, "1023.98 MiB"),
        (1.5 * 2**50, "1536.00 TiB"),
        (float("inf"), "no limit"),
    ],
)
def test_bytes_take_the_unit_of_their_rounded_number(size: float, text: str) -> None:
    assert format_bytes(size) == text
