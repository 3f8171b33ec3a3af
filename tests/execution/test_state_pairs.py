"""Pairs of outputs and inputs that are state, by exact names and by names with one ``*``."""

from __future__ import annotations

import pytest

from placewright.core.source import Port
from placewright.errors import FieldError, InputError, UnknownNameError
from placewright.execution.state_pairs import asked_of, option_of, state_pairs


def ports(*names: str, shape: tuple[int, ...] = (2, 3)) -> list[Port]:
    return [Port(name, shape, "f32", at) for at, name in enumerate(names)]


INPUTS = ports("x", "key_0", "key_1", "past[0]")
OUTPUTS = ports("y", "new_key_1", "new_key_0", "present[0]")


@pytest.mark.parametrize(
    ("asked", "pairs"),
    [
        ({"new_key_0": "key_0"}, ((2, 1),)),
        ({"new_key_*": "key_*"}, ((2, 1), (1, 2))),
        ({"present[0]": "past[0]"}, ((3, 3),)),  # a name goes before a pattern
        ({"present[*]": "past[*]"}, ((3, 3),)),  # brackets are letters like others
    ],
)
def test_names_are_paired(asked: dict[str, str], pairs: tuple[tuple[int, int], ...]) -> None:
    assert state_pairs(asked, INPUTS, OUTPUTS) == pairs


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"new_value_*": "key_*"}, UnknownNameError, "unknown model output 'new_value_"),
        ({"new_key_*": "value_*"}, UnknownNameError, "unknown model input 'value_"),
        ({"new_key_*": "key_0"}, FieldError, "one \\* on both sides"),
        ({"new_key_0": "key_0", "new_key_1": "key_0"}, FieldError, "pairs '.*' twice"),
    ],
)
def test_other_names_are_refused(
    asked: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        state_pairs(asked, INPUTS, OUTPUTS)


def test_a_second_name_of_an_output_need_not_fit() -> None:
    outputs = [Port("new_1", (2, 3), "f32", 0, other_names=("new_a",))]
    assert state_pairs({"new_*": "key_*"}, INPUTS, outputs) == ((0, 2),)
    with pytest.raises(UnknownNameError, match="unknown model input 'past_"):
        state_pairs({"new_*": "past_*"}, INPUTS, outputs)


def test_a_value_of_another_shape_is_refused() -> None:
    with pytest.raises(FieldError, match="must fit the next"):
        state_pairs({"y": "x"}, ports("x"), ports("y", shape=(2, 4)))


def test_state_in_a_file_of_strangers_is_pairs_or_refused() -> None:
    assert asked_of(option_of({"a": "b"})) == {"a": "b"}
    for text in ("{", "[1]", "3", '{"a": 1}', "[" * 100_000):
        with pytest.raises(InputError, match="names no inputs; place it again"):
            asked_of({"state": text})
