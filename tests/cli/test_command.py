"""Commands made from the fields of a request."""

from __future__ import annotations

import pytest

from placewright.cli.command import command
from placewright.errors import InputError
from placewright.session.request import Request


def test_defaults_hold_for_options_and_for_other_fields() -> None:
    taken: list[Request] = []

    @command("runtime", "seed", model=None, runtime="torch", remeasure=True)
    def measure(request: Request) -> None:
        taken.append(request)

    measure(runtime="torch", seed=3)
    assert (taken[0].runtime, taken[0].seed, taken[0].remeasure) == ("torch", 3, True)


def test_a_default_of_no_field_is_refused() -> None:
    @command("seed", model=None, again=True)
    def measure(request: Request) -> None:
        del request

    with pytest.raises(InputError, match="takes no 'again'"):
        measure(seed=0)
