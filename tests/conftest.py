"""Hypothesis profiles, Ctrl-C, and the path to what tests share."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile(
    "fast", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fast")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started by a shell in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
