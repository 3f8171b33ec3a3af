"""Inputs of calls: numbers without a type of their own become the input's, if it can hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from placewright.core.source import Port, Signature
from placewright.errors import InputError
from placewright.execution.inputs import checked_inputs


@dataclass
class OneInput:
    """A model with an input of two numbers."""

    dtype: str
    numpy_dtype: type[np.generic]

    @property
    def signature(self) -> Signature:
        return Signature((Port("x", (2,), self.dtype, 0),), ())

    def input_dtypes(self) -> list[np.dtype[Any]]:
        return [np.dtype(self.numpy_dtype)]


HALF, SINGLE = OneInput("f16", np.float16), OneInput("f32", np.float32)


@pytest.mark.parametrize(
    ("model", "numbers"),
    [(SINGLE, [1.0, 1e39]), (SINGLE, [-1e39, np.inf]), (HALF, [1.0, 7e4]), (HALF, [1, 70000])],
)
def test_plain_numbers_beyond_the_type_are_refused(model: Any, numbers: list[float]) -> None:
    """They would become infinite."""
    text = r"'x' is (float|int)64 \[2\], expected float(16|32) \[2\]"
    with pytest.raises(InputError, match=text):
        checked_inputs(model, [numbers])


@pytest.mark.parametrize("model", [HALF, SINGLE])
def test_plain_numbers_that_are_infinite_or_nan_stay_so(model: Any) -> None:
    (found,) = checked_inputs(model, [[-np.inf, np.nan]])
    assert found.dtype == model.input_dtypes()[0]
    np.testing.assert_array_equal(found, [-np.inf, np.nan])
