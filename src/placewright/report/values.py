"""Values and counts as text."""

from __future__ import annotations

import math

from placewright.core.quantities import format_duration

_LONGEST_NAME = 40  # characters of an operator's name in a table


def value_text(value: float | None, unit: str) -> str:
    """A value with its unit; seconds and joules get a prefix such as m or µ."""
    if value is None or not math.isfinite(value):
        return "-"
    return format_duration(value, unit) if unit in ("s", "J") else f"{value:.4g} {unit}"


def plain_number(value: float) -> str:
    """A number with three digits, and no exponent if it is large.

    >>> plain_number(9068.3), plain_number(57.34)
    ('9,070', '57.3')
    """
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def short_name(name: str) -> str:
    """A name of at most 40 characters; of a longer one the beginning and the end.

    Names of fused operators hold those of all their parts, and fill a table.

    >>> short_name("block/relu;block/norm;block/conv/BiasAdd;block/conv")
    'block/relu;block/no...BiasAdd;block/conv'
    """
    if len(name) <= _LONGEST_NAME:
        return name
    end = (_LONGEST_NAME - 3) // 2
    return f"{name[: _LONGEST_NAME - 3 - end]}...{name[-end:]}"


def counted(number: int, thing: str) -> str:
    """A count with its noun: ``"1 unit"``, ``"2 units"``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
