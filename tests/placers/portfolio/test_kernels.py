"""The seconds that compiling the members' kernels is expected to take."""

from __future__ import annotations

import math
from pathlib import Path

from placewright.core.execution_models import EVENT
from placewright.placers.portfolio.kernels import seconds_to_compile


def test_kernels_are_ahead_until_they_were_compiled(tmp_path: Path) -> None:
    """Nobody knows for how long; if another version's took 33 s, so will these."""
    new, old = tmp_path / "new", tmp_path / "old"
    new.mkdir()
    assert math.isnan(seconds_to_compile("latency", EVENT, new))
    old.mkdir()
    (old / "ready-latency-event").write_text("33.0")
    assert seconds_to_compile("latency", EVENT, new) == 33.0
    (new / "ready-latency-event").write_text("45.0")
    assert seconds_to_compile("latency", EVENT, new) == 0.0
