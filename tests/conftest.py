"""Hypothesis profiles, Ctrl-C, converted models, and the path to what tests share."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile(
    "fast", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fast")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started by a shell in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of models that a whole run converts once, shared by its workers."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the run's; each worker has one of its own in it
    folder = folder / "converted"
    folder.mkdir(exist_ok=True)
    return folder
