"""Devices whose speed has changed since their costs were measured.

A laptop on battery, a busy host or another load on one core makes predictions wrong, and a reader
of the table would doubt the simulator. Devices change independently: each is judged on its own, by
the scatter of its own calibration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

# Seconds of a request that no device spends: threads hand it over and wake up.
_HAND_OFF = 1e-4
# For calibrations of earlier versions without a scatter. Rounds of short models differ by more.
_NOTABLE, _SHORT_SECONDS, _NOTABLE_IF_SHORT = 1.15, 5e-3, 2.0
# The scatter of a busy host is unbounded, but a quarter or four times the predicted time is never
# scatter.
_NOTABLE_ANYWHERE = 4.0


def drifted(
    predicted: Mapping[str, float],
    measured: Mapping[str, float],
    scatter: Mapping[str, float | None],
) -> dict[str, float]:
    """Find devices whose speed has changed; name -> measured over predicted seconds.

    Args:
        predicted: device name -> seconds of the whole model by the simulator; inf if it cannot.
        measured: device name -> median seconds.
        scatter: device name -> `core.cluster.Device.speed_scatter`.
    """
    return {
        name: seconds / predicted[name]
        for name, seconds in measured.items()
        if 0 < predicted.get(name, 0.0) < math.inf
        and seconds > 0
        and _has_drifted(seconds, predicted[name], scatter.get(name))
    }


def _has_drifted(measured: float, predicted: float, scatter: float | None) -> bool:
    distance = abs(math.log(measured / predicted))
    if scatter is not None:
        excused = min(math.log1p(scatter), math.log(_NOTABLE_ANYWHERE))
        return distance > excused and abs(measured - predicted) > _HAND_OFF
    return distance > math.log(_NOTABLE_IF_SHORT if measured < _SHORT_SECONDS else _NOTABLE)


def speed_note(factors: Mapping[str, float]) -> str:
    """One line that names each device with its own factor; "" if none has changed."""
    if not factors:
        return ""
    listed = [f"'{name}' takes {factor:.2f} times" for name, factor in factors.items()]
    whose = "its costs were" if len(listed) == 1 else "their costs were"
    return (
        f"times have changed: {', '.join(listed)} as long as when {whose} measured; predictions "
        "are off by as much; argument `remeasure` measures again"
    )
