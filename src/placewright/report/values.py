"""Values and counts as text."""

from __future__ import annotations

import math

from placewright.core.quantities import format_duration


def value_text(value: float | None, unit: str) -> str:
    """A value with its unit; seconds and joules get a prefix such as m or µ."""
    if value is None or not math.isfinite(value):
        return "-"
    return format_duration(value, unit) if unit in ("s", "J") else f"{value:.4g} {unit}"


def counted(number: int, thing: str) -> str:
    """A count with its noun: ``"1 unit"``, ``"2 units"``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
