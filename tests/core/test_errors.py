"""Errors come whole through processes and copies, whatever their constructors take."""

from __future__ import annotations

import copy
import pickle
import sys

import pytest

from placewright.errors import (
    FieldError,
    MissingExtraError,
    OutOfTime,
    PlacewrightError,
    UnknownNameError,
    optional_library,
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


def test_a_missing_library_is_named_by_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert optional_library("xml.dom", "torch", "this") is sys.modules["xml"]
    monkeypatch.setitem(sys.modules, "xml", None)
    with pytest.raises(MissingExtraError, match=r"^this needs the package 'xml'; pip"):
        optional_library("xml.dom", "torch", "this")
