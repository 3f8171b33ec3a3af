"""Numbers with units: text for people, and numbers from text such as ``16GiB`` or ``12us``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from numbers import Real

from placewright.errors import InputError


def format_bytes(value: float) -> str:
    """Bytes with a binary unit and two decimals: ``"1.50 GiB"``."""
    if not math.isfinite(value):
        return "no limit"
    value = round(value)
    for unit, size in (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if round(value / (size / 1024.0), 2) >= 1024.0:  # of the unit below, "1024.00"
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f} B"


def format_duration(seconds: float, unit: str = "s") -> str:
    """Seconds, or joules, with a fitting prefix and three digits: ``"12.3 ms"``.

    No clock reads a tenth of a nanosecond; less than half of it is 0 s.

    >>> format_duration(0.0123), format_duration(9.996e-4), format_duration(1234.5)
    ('12.3 ms', '1 ms', '1,230 s')
    >>> format_duration(-3e-17), format_duration(4e-11, "J")
    ('0 ns', '0.04 nJ')
    """
    if not math.isfinite(seconds):
        return "-"
    for prefix, size in (("", 1.0), ("m", 1e-3), ("u", 1e-6)):
        if float(f"{seconds / size:.3g}") >= 1.0:  # of the prefix below, it would be "1e+03"
            return f"{plain_number(seconds / size)} {prefix}{unit}"
    is_rounding = unit == "s" and abs(seconds) < 5e-11
    return f"{0.0 if is_rounding else seconds / 1e-9:.3g} n{unit}"


def plain_number(value: float, digits: int = 3) -> str:
    """A number with so many digits, and no exponent if it is large.

    >>> plain_number(9068.3), plain_number(57.34), plain_number(123456.0, 4)
    ('9,070', '57.3', '123,500')
    """
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if "e+" in text else text


def value_text(value: float | None, unit: str) -> str:
    """A value with its unit; seconds and joules get a prefix such as m or u."""
    if value is None or not math.isfinite(value):
        return "-"
    return (
        format_duration(value, unit) if unit in ("s", "J") else f"{plain_number(value, 4)} {unit}"
    )


def counted(number: int, thing: str) -> str:
    """A count with its noun.

    >>> counted(1, "unit"), counted(1200, "unit")
    ('1 unit', '1,200 units')
    """
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?|inf)\s*([A-Za-z\u00b5\u03bc/]*)\s*")
_BYTES = {
    "": 1.0,
    "B": 1.0,
    **{f"{prefix}B": 1000.0**power for power, prefix in enumerate("kMGTP", start=1)},
    **{f"{prefix}iB": 1024.0**power for power, prefix in enumerate("KMGTP", start=1)},
    "KB": 1000.0,
}
# Also "4gb", but not "4Gb" for its gigabits, and no "4G", which is 4GB to some and 4GiB to others.
_IN_ANY_CASE = {**{unit.lower(): size for unit, size in _BYTES.items()}, **_BYTES}
_PER_SECOND = {f"{unit}/s": size for unit, size in _BYTES.items() if unit} | {"": 1.0}
_SECONDS = {
    "s": 1.0,
    "": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "\u00b5s": 1e-6,  # micro sign
    "\u03bcs": 1e-6,  # Greek letter, which looks the same
    "ns": 1e-9,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
}

_WATTS = {"": 1.0, "W": 1.0, "mW": 1e-3, "kW": 1e3}
_JOULES = {"": 1.0, "J": 1.0, "uJ": 1e-6, "mJ": 1e-3, "kJ": 1e3, "Wh": 3600.0}
_PRICES = {"": 1.0, "/h": 1.0, "/min": 60.0, "/s": 3600.0}
_PREFIXES = {"": 1.0, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_OPERATIONS = {
    "": 1.0,
    **{f"{prefix}{word}": factor for prefix, factor in _PREFIXES.items() if prefix
       for word in ("FLOPS", "FLOP/s", "OPS", "OP/s")},
}  # fmt: skip


def _parser(units: dict[str, float], expected: str) -> Callable[[str | float], float]:
    """A function from a text, or a number in the unit of its name, to that number.

    It raises InputError for a text that is not `expected` >= 0. ``"inf"`` is no limit.
    """

    def parse(text: str | float) -> float:
        return _parse(text, units, expected)

    return parse


parse_bytes = _parser(_IN_ANY_CASE, "a number of bytes such as 16GiB, 500MiB or 4GB")
parse_seconds = _parser(_SECONDS, "a duration such as 30s, 2min or 12us")
parse_bandwidth = _parser(_PER_SECOND, "a bandwidth such as 24GB/s")  # bytes per second
parse_operations = _parser(  # per second
    _OPERATIONS, "operations per second such as 101 TFLOPS or 24 TOPS"
)
parse_watts = _parser(_WATTS, "a power such as 65 W or 800 mW")
parse_joules = _parser(_JOULES, "an energy such as 3J, 20mJ or 0.1Wh")
parse_hourly_price = _parser(_PRICES, "a price such as 0.35/h or 0.0001/s")  # in any currency
parse_amount = _parser({"": 1.0}, "a number such as 1e-6")


def _parse(text: str | float, units: dict[str, float], expected: str) -> float:
    if isinstance(text, str):
        match = _NUMBER.fullmatch(text)
        if match is None:
            raise InputError(f"expected {expected}, got '{text}'")
        value, unit = float(match[1]), match[2]
    elif isinstance(text, Real) and not isinstance(text, bool):  # also a number of NumPy
        try:
            value, unit = float(text), ""
        except OverflowError:
            raise InputError(f"expected {expected}, got an integer of too many digits") from None
    else:
        raise InputError(f"expected {expected}, got {text}")
    if unit not in units or not value >= 0:
        raise InputError(f"expected {expected}, got '{text}'")
    return value * units[unit]
