"""Names of ways to run a model, in tables, reports and plan files.

Users choose the names of devices, and a device may be called `plan`. A way of our own and a device
that runs everything never have the same name: a device whose name is one of ours is marked.
"""

from __future__ import annotations

from collections.abc import Sequence

PLAN = "plan"  # what the search found, or what a plan holds
SEARCHED = "searched"  # what the search found, where a plan holds another placement
ALL_CORES = "all cores"  # the runtime's own default
EVEN_SPLIT = "even split"
COPIES = "one copy per device"
CORES = "one copy per core"
MODE = "throughput mode"
LOWER_BOUND = "lower bound"  # a row beside the ways
UNSPLIT_STREAMS = (COPIES, CORES, MODE)  # ways for streams that no placement can express

_OURS = (PLAN, SEARCHED, ALL_CORES, EVEN_SPLIT, LOWER_BOUND, *UNSPLIT_STREAMS)
_MARK = "device:"


def contender_of(device: str) -> str:
    """The name of the way that runs everything on a device: the device's own, unless it is ours.

    >>> contender_of("cpu:0"), contender_of("plan")
    ('cpu:0', 'device:plan')
    """
    return f"{_MARK}{device}" if device in _OURS or device.startswith(_MARK) else device


def device_of(contender: str, devices: Sequence[str]) -> int | None:
    """Which of `devices` runs everything in the way of that name; None where it is another way."""
    return next((at for at, one in enumerate(devices) if contender_of(one) == contender), None)
