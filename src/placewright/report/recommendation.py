"""Lines about what was recommended when a plan was measured, and how to run it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import numpy as np

from placewright.core.plan import (
    ALL_CORES,
    EVEN_SPLIT,
    PLAN,
    UNSPLIT_STREAMS,
    Measurement,
    Plan,
    device_of,
)
from placewright.core.quantities import format_duration

_TAKES_SEARCHED = "argument `searched` takes what the search found"


def held_text(plan: Plan, default: Sequence[str]) -> list[str]:
    """Lines about a plan that was just measured, if the runtime's default was recommended.

    Args:
        default: lines of `default_text`.
    """
    if plan.measured is None or plan.measured.recommendation != ALL_CORES:
        return []
    if plan.searched is not None:
        return list(default)
    return [*default, "the plan holds what the search found, the fastest of the placements"]


def recommendation_text(
    plan: Plan, default: Sequence[str], why_not_default: str | None
) -> list[str]:
    """Lines about the contender that was recommended; none if the plan itself was.

    A file of version 1 holds the searched placement, even if a simpler contender was faster.

    Args:
        default: lines of `default_text`, if the runtime's default was recommended.
        why_not_default: reason why the default is not comparable; None if it is.
    """
    measured = plan.measured
    if measured is None and plan.searched is not None:
        return [
            f"this plan holds {placement_text(plan)}, because a larger gain was not predicted for "
            f"sure; {_TAKES_SEARCHED}"
        ]
    if measured is None or measured.recommendation == PLAN:
        return []
    name = measured.recommendation
    if name == ALL_CORES:
        if why_not_default is not None:  # an earlier version recommended it all the same
            return [
                f"'{name}' was measured beside this plan, but is not comparable: {why_not_default}"
            ]
        return [_faster(measured), *default]
    if name in UNSPLIT_STREAMS:
        return [
            f"{_faster(measured)}; argument `samples` of a run, or `pw.stream`, runs that, "
            "argument `searched` what the search found"
        ]
    device = device_of(name, plan.problem.cluster.device_names)
    if plan.searched is not None or is_all_on(plan, device):
        line = f"this plan holds {placement_text(plan)}, as recommended when it was measured"
        return [line if plan.searched is None else f"{line}; {_TAKES_SEARCHED}"]
    return [f"{_faster(measured)}; place again for a plan that holds it"]


def default_text(plan: Plan, runtime: str, call: str | None) -> list[str]:
    """Lines about running the model with the runtime's default, which no placement expresses.

    Args:
        runtime: its name if a command must name it; "" if it is the default one.
        call: expression that makes the model with the default in Python; None without one.
    """
    problem = plan.problem
    if problem.source is None or problem.source.path.startswith("module:"):
        return [f"to run '{ALL_CORES}', call the unsplit model itself"]
    words = [f"placewright place {shlex.quote(problem.source.path)} --devices cpu"]
    if problem.objective == "training":
        words.append("--objective training")
    if runtime:
        words.append(f"--runtime {runtime}")
    lines = [f"a plan for '{ALL_CORES}': {' '.join(words)}"]
    return lines if call is None else [*lines, f"'{ALL_CORES}' in Python: {call}"]


def is_all_on(plan: Plan, device: int | None) -> bool:
    """True if the plan's placement puts everything on one device."""
    return device is not None and bool((plan.placement.device_of == device).all())


def _faster(measured: Measurement) -> str:
    name = measured.recommendation
    seconds = measured.baselines.get(name)
    if seconds is None:
        return f"'{name}' was recommended when this plan was measured"
    return (
        f"'{name}' was recommended when this plan was measured: {format_duration(seconds)}, "
        f"{seconds / measured.median:.2f} of the plan's time"
    )


def placement_text(plan: Plan) -> str:
    """The placement of a plan that is not the searched one, in words."""
    used = np.unique(plan.placement.device_of).tolist()
    if len(used) > 1:
        return f"'{EVEN_SPLIT}'"
    return f"the unsplit model on '{plan.problem.cluster.device_names[used[0]]}'"
