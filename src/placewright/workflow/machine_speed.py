"""Whether the machine is as fast as it was when its costs were measured.

Stored costs are those of the hour in which they were measured. A laptop on battery or a busy host
changes every prediction by the same factor: what is faster stays faster, but a reader of the table
would doubt the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

_NOTABLE = 1.15
# Rounds of shorter models differ by more: hand-offs between threads are a part of them.
_SHORT, _NOTABLE_WHERE_SHORT = 5e-3, 2.0


def slowdown(predicted: Mapping[str, float], measured: Mapping[str, float]) -> float:
    """Measured over predicted seconds of whole models on single devices: what all agree on.

    The factor that is closest to 1, and 1 where some are above and some below, or there are none: a
    machine that has changed shows it on every device, a disturbed round on one.
    """
    pairs = [(measured[name], predicted[name]) for name in measured if name in predicted]
    factors = [_factor(a, b) for a, b in pairs if 0 < b < math.inf and a > 0] or [1.0]
    return max(1.0, min(factors)) * min(1.0, max(factors))


def _factor(measured: float, predicted: float) -> float:
    factor = measured / predicted
    is_short = measured < _SHORT and 1 / _NOTABLE_WHERE_SHORT < factor < _NOTABLE_WHERE_SHORT
    return 1.0 if is_short else factor


def is_notable(factor: float) -> bool:
    """True beyond what rounds differ by."""
    return not 1 / _NOTABLE <= factor <= _NOTABLE


def speed_note(factor: float) -> str:
    """What to tell where the speed has changed; "" where it has not."""
    if not is_notable(factor):
        return ""
    return (
        f"this machine now takes {factor:.2f} times as long as when its costs were measured: "
        "predictions are off by that factor; `place --remeasure` measures them again"
    )
