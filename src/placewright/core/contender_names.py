"""Names of contenders in tables, reports and plan files.

Users choose the names of devices, and a device may be called `plan`. A contender of ours and a
device that runs everything never have the same name: a device with one of our names is marked.
"""

from __future__ import annotations

from collections.abc import Sequence

PLAN = "plan"  # the placement that the search found, or that a plan holds
SEARCHED = "searched"  # the placement that the search found, if a plan holds another
ALL_CORES = "all cores"  # the runtime's own default
EVEN_SPLIT = "even split"
COPIES = "one copy per device"
CORES = "one copy per core"
MODE = "throughput mode"
LOWER_BOUND = "lower bound"  # a row beside the contenders
UNSPLIT_STREAMS = (COPIES, CORES, MODE)  # for streams; no placement can express them

_OURS = (PLAN, SEARCHED, ALL_CORES, EVEN_SPLIT, LOWER_BOUND, *UNSPLIT_STREAMS)
_MARK = "device:"


def contender_of(device: str) -> str:
    """Name of the contender that runs everything on a device: the device's, marked if it is ours.

    >>> contender_of("cpu:0"), contender_of("plan")
    ('cpu:0', 'device:plan')
    """
    return f"{_MARK}{device}" if device in _OURS or device.startswith(_MARK) else device


def device_of(contender: str, devices: Sequence[str]) -> int | None:
    """The device that runs everything in a contender; None for other contenders."""
    return next((at for at, name in enumerate(devices) if contender_of(name) == contender), None)
