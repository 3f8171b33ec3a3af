"""What a process keeps is found: memory, open files and threads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placewright.benchmarks.endurance import Endurance, Look, run_endurance
from placewright.errors import InputError

STEADY = tuple(Look(float(at), at, at, 1000 + at % 2, 20 + at % 3, 8) for at in range(40))


def test_a_steady_process_holds() -> None:
    found = Endurance(STEADY)
    assert found.holds
    assert abs(found.growth) < 0.001
    assert (found.more_handles, found.more_threads) == (0, 0)


@pytest.mark.parametrize(
    ("field", "per_look"), [("resident_bytes", 2), ("handles", 1), ("threads", 1)]
)
def test_what_grows_is_found(field: str, per_look: int) -> None:
    looks = [
        replace(look, **{field: getattr(look, field) + per_look * at})
        for at, look in enumerate(STEADY)
    ]
    assert not Endurance(tuple(looks)).holds


def test_too_short_a_time() -> None:
    with pytest.raises(InputError, match="too short"):
        run_endurance("zoo:resnet50", 0.1)
