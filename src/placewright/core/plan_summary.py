"""A plan on one screen: at most 24 lines of 80 columns, from what the plan itself holds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from placewright.core.contender_names import PLAN, contender_of
from placewright.core.quantities import format_bytes, format_duration

WIDTH, LINES = 80, 24
_DEVICES = 12
_NAME = 24


def summary(plan: Any) -> str:
    """Verdict, value, gap, devices, segments and measurement, as `print` shows them.

    Args:
        plan: a `core.plan.Plan`, whose file imports this one.
    """
    problem = plan.problem
    model = "" if problem.source is None else f"{problem.source.path}: "
    size = f"{problem.graph.n_ops} ops in {problem.n_units} units"
    lines = [
        f"{model}{size}, {problem.objective} under '{problem.execution_model.name}'",
        f"verdict    {_verdict(plan)}",
        f"value      {_value(plan, plan.value)} predicted",
        f"bound      {_bound(plan)}",
        f"measured   {_measured(plan)}",
        f"found by   {search_text(plan.placer)}",
        *([] if problem.source is None else [f"runs on    {plan.runtime}"]),
        *_devices(plan),
        *(f"left out: {what}" for what in plan.left_out),
    ]
    shown = lines if len(lines) <= LINES else [*lines[: LINES - 1], "..."]
    return "\n".join(_cut(line, WIDTH) for line in shown)


def search_text(record: Any) -> str:
    """How much a search did and why it ended.

    Args:
        record: a `core.plan.PlacerRecord`, whose file imports this one.
    """
    work = "" if record.core_seconds is None else f", {record.core_seconds:.3g} core-seconds"
    ended = "" if record.stop is None else f", ended: {record.stop.value}"
    return f"{record.name}, seed {record.seed}, {record.evaluations:,} evaluations{work}{ended}"


def _verdict(plan: Any) -> str:
    """What to run, by the measurement where there is one."""
    used = np.unique(plan.placement.device_of).tolist()
    names = [plan.problem.cluster.device_names[device] for device in used]
    advised = None if plan.measured is None else plan.measured.recommendation
    if advised is not None and advised not in (PLAN, *map(contender_of, names)):
        return f"run '{advised}' instead: it was measured to be as fast or faster"
    if len(names) == 1:
        return f"do not split: '{names[0]}' runs everything"
    if plan.measured is None:
        return f"split over {len(names)} devices by prediction: not measured"
    return f"split over {len(names)} devices"


def _bound(plan: Any) -> str:
    if not (plan.lower_bound > 0 and math.isfinite(plan.gap)):
        return "none is proven, so that the gap is unknown"
    by = f" by {plan.bound_method}" if plan.bound_method else ""
    return f"{_value(plan, plan.lower_bound)}{by}: gap {plan.gap:.1%} ({plan.status})"


def _measured(plan: Any) -> str:
    found = plan.measured
    if found is None:
        return "not yet"
    fastest = sorted(found.baselines.items(), key=lambda one: one[1])[:2]
    beside = "".join(f"; '{name}' {format_duration(value)}" for name, value in fastest)
    spread = format_duration(found.iqr)
    return f"{format_duration(found.median)}, spread {spread}, {found.runs} runs{beside}"


def _devices(plan: Any) -> list[str]:
    """A line for each device that is used, the fullest first where they are many."""
    problem = plan.problem
    counts = np.bincount(plan.placement.device_of, minlength=problem.n_devices)
    used = [device for device in range(problem.n_devices) if counts[device]]
    shown = used
    if len(used) > _DEVICES:
        shown = sorted(sorted(used, key=lambda device: -int(counts[device]))[:_DEVICES])
    held = np.bincount(
        np.array([device for device, _ in plan.segments or ()], dtype=np.int64),
        minlength=problem.n_devices,
    )
    rows = [f"{'device':<{_NAME}}{'units':>10}{'segments':>10}{'memory':>14}{'limit':>14}"]
    for device in shown:
        one = problem.cluster.devices[device]
        pieces = str(held[device]) if plan.segments is not None else "-"
        limit = "-" if math.isinf(one.memory_bytes) else format_bytes(one.memory_bytes)
        memory = format_bytes(plan.memory[one.name])
        name = _cut(one.name, _NAME - 1)
        rows.append(f"{name:<{_NAME}}{counts[device]:>10}{pieces:>10}{memory:>14}{limit:>14}")
    if len(used) > len(shown):
        rows.append(f"... and {len(used) - len(shown)} more devices")
    return rows


def _value(plan: Any, value: float) -> str:
    unit = plan.problem.time_unit
    return format_duration(value) if unit == "s" else f"{value:.4g} {unit}"


def _cut(text: str, width: int) -> str:
    """The beginning of a text, without a word that the width would cut."""
    if len(text) <= width:
        return text
    words = text[: width - 3].rpartition(" ")[0].rstrip()
    return f"{words} ..." if len(words) > width // 2 else f"{text[: width - 3]}..."
