"""Signals at random moments lose nothing: twenty for each command; `scripts/kill_sweep.py` more."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from kill_sweep import COMMANDS, Sweep, trial

TRIALS = 20


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_signals_at_random_moments(name: str, tmp_path: Path) -> None:
    sweep = Sweep.prepared(tmp_path, [name])
    rng = random.Random(f"{name} in tests")
    found = [trial(sweep, name, rng) for _ in range(TRIALS)]
    assert [one for one in found if one["faults"]] == []
    assert {one["signal"] for one in found} == {"SIGINT", "SIGTERM", "SIGKILL"}
