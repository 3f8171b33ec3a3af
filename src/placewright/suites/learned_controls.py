"""Which runs a comparison of learned placers needs: each learner with its two controls."""

from __future__ import annotations

from collections.abc import Sequence

from placewright.placers.registry import placer_class, placers_that_learn
from placewright.report.learned.statistics import STARTS, controls_of


def with_controls(placers: Sequence[str], *, controls: bool, starts: bool) -> list[str]:
    """What is run for these placers, without repetition.

    Args:
        placers: ``NAME`` or ``NAME:key=value:...``.
        controls: add both controls of each that learns.
        starts: False switches the homogeneous placements off for all that would evaluate them.
    """
    wanted: list[str] = []
    for placer in placers:
        learns = placer.partition(":")[0] in placers_that_learn() and "updates=" not in placer
        wanted += [placer, *(controls_of(placer) if controls and learns else ())]
    if not starts:
        has = {name: hasattr(placer_class(name.partition(":")[0]), STARTS) for name in wanted}
        wanted = [f"{name}:{STARTS}=false" if has[name] else name for name in wanted]
    return list(dict.fromkeys(wanted))
