"""Numbers with units as text for people; `files.quantities` parses such text."""

from __future__ import annotations

import math


def format_bytes(value: float) -> str:
    """Bytes with a binary unit and three digits: ``"1.50 GiB"``."""
    if not math.isfinite(value):
        return "no limit"
    for unit, size in (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f} B"


def format_duration(seconds: float, unit: str = "s") -> str:
    """Seconds, or joules, with a fitting prefix and three digits: ``"12.3 ms"``.

    No clock reads a tenth of a nanosecond; less than half of it is 0 s.

    >>> format_duration(0.0123), format_duration(-3e-17), format_duration(4e-11, "J")
    ('12.3 ms', '0 ns', '0.04 nJ')
    """
    if not math.isfinite(seconds):
        return "-"
    for prefix, size in (("", 1.0), ("m", 1e-3), ("u", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {prefix}{unit}"
    is_rounding = unit == "s" and abs(seconds) < 5e-11
    return f"{0.0 if is_rounding else seconds / 1e-9:.3g} n{unit}"
