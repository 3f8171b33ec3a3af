"""The seconds that compiling the members' kernels is expected to take."""

from __future__ import annotations

import math
import re
from pathlib import Path

from placewright.core.execution_models import EVENT
from placewright.placers.portfolio import kernels
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
    assert seconds_to_compile("training", EVENT, new) == 0.0, "it has the same kernels"


def test_the_folders_of_versions_are_side_by_side() -> None:
    """Numba has a folder for each module below that of the version, which its name begins with.

    That of the placers has another name after a change of their kernels or of the simulation.
    """
    home = kernels._mark("latency", EVENT).parent
    assert re.fullmatch(r"placers-[0-9a-f]{16}", home.name)
    assert home.parent.name == "kernels"
