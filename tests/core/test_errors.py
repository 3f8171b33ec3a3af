"""Errors come whole through processes and copies, whatever their constructors take."""

from __future__ import annotations

import copy
import pickle

import pytest

from placewright.errors import (
    FieldError,
    MissingExtraError,
    OutOfTime,
    PlacewrightError,
    UnknownNameError,
)


@pytest.mark.parametrize(
    "error",
    [
        FieldError("pins", "names no op"),
        UnknownNameError("placer", "hfet", ["heft", "random"]),
        MissingExtraError("torch", "torch", "placer 'hsdag'"),
        OutOfTime("the plan was measured"),
        PlacewrightError("plain"),
    ],
)
def test_an_error_is_the_same_elsewhere(error: PlacewrightError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert (str(other), vars(other)) == (str(error), vars(error))
