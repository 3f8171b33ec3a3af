"""Which devices are no longer as fast as they were when their costs were measured.

Stored costs are those of the hour in which they were measured. A laptop on battery, a busy host or
another load on one core changes predictions, and a reader of the table would doubt the simulator.
Devices drift apart: each is judged on its own, by the scatter that its own calibration saw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

# Seconds of a request that are no device's: threads hand it over and are woken.
_HAND_OFF = 1e-4
# Where an earlier version calibrated and kept no scatter. Rounds of short models differ by more.
_NOTABLE, _SHORT, _NOTABLE_WHERE_SHORT = 1.15, 5e-3, 2.0
# A host that is busy while it calibrates scatters without end; no reader takes a quarter or four
# times the predicted time for scatter.
_NOTABLE_ANYWHERE = 4.0


def drifted(
    predicted: Mapping[str, float],
    measured: Mapping[str, float],
    scatter: Mapping[str, float | None],
) -> dict[str, float]:
    """Devices whose speed has changed -> measured over predicted seconds, in the measured order.

    Args:
        predicted: device name -> seconds of the whole model by the simulator; inf where it cannot.
        measured: device name -> median seconds.
        scatter: device name -> `core.cluster.Device.speed_scatter`.
    """
    return {
        name: seconds / predicted[name]
        for name, seconds in measured.items()
        if 0 < predicted.get(name, 0.0) < math.inf
        and seconds > 0
        and _is_off(seconds, predicted[name], scatter.get(name))
    }


def _is_off(measured: float, predicted: float, scatter: float | None) -> bool:
    distance = abs(math.log(measured / predicted))
    if scatter is not None:
        excused = min(math.log1p(scatter), math.log(_NOTABLE_ANYWHERE))
        return distance > excused and abs(measured - predicted) > _HAND_OFF
    return distance > math.log(_NOTABLE_WHERE_SHORT if measured < _SHORT else _NOTABLE)


def speed_note(factors: Mapping[str, float]) -> str:
    """One line that names each device with its own factor; "" where none has changed."""
    if not factors:
        return ""
    told = [f"'{name}' {factor:.2f} times" for name, factor in factors.items()]
    whose = "its costs were" if len(told) == 1 else "their costs were"
    return (
        f"now slower or faster: {', '.join(told)} as long as when {whose} measured; predictions "
        "are off by as much; argument `remeasure` measures again"
    )
