"""The table that `place` prints: a plan beside simpler ways to run its model, as measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placewright.core.plan import (
    ALL_CORES,
    EVEN_SPLIT,
    LOWER_BOUND,
    PLAN,
    Plan,
    contender_of,
)
from placewright.report.machine_speed import drifted, speed_note

_COLUMNS = ("contender", "predicted", "measured", "spread", "prediction error")


@dataclass(frozen=True)
class ContenderTable:
    """A table of contenders with the verdict below it, one or more lines."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    verdict: str


def request_table(
    plan: Plan,
    measured: Mapping[str, tuple[float, float]],
    predicted: Mapping[str, float],
    searched: str,
    left_out: Mapping[str, str],
    outputs: tuple[float, float],
    lines: Sequence[str],
) -> ContenderTable:
    """The table of contenders that ran single requests.

    Args:
        measured: contender -> median and distance between the quartiles, in seconds.
        predicted: contender -> seconds by the simulator.
        searched: the contender that the search returned.
        left_out: contender -> why it is not comparable.
        outputs: relative error of the plan's outputs, and the tolerance.
        lines: the verdict, and how to run what it recommends.
    """
    rows = [[name, "-", "not comparable", "-", "-"] for name in left_out]
    for name in sorted(measured, key=_position):
        (median, iqr), expected = measured[name], predicted.get(name)
        rows.append(
            [
                _label(name, searched, plan.placer.name),
                "-" if expected is None else f"{expected * 1e3:.2f} ms",
                f"{median * 1e3:.2f} ms",
                f"{iqr * 1e3:.2f} ms",
                "-" if expected is None else f"{expected / median - 1:+.1%}",
            ]
        )
    rows.append([LOWER_BOUND, f"{plan.lower_bound * 1e3:.2f} ms", "-", "-", "-"])
    devices = {contender_of(device.name): device for device in plan.problem.cluster.devices}
    alone = {name: median for name, (median, _) in measured.items() if name in devices}
    scatter = {name: device.speed_scatter for name, device in devices.items()}
    changed = drifted(predicted, alone, scatter)
    reached = "" if changed else _share_reached(plan, alone, measured[searched][0])
    text = [
        *(f"'{name}' is not comparable: {reason}" for name, reason in left_out.items()),
        f"outputs equal to the unsplit model (relative error {outputs[0]:.1g}, tolerance "
        f"{outputs[1]:.1g}){reached}",
        *lines,
        *filter(None, [speed_note(changed)]),
    ]
    title = "Training step" if plan.problem.objective == "training" else "Latency"
    return ContenderTable(title, _COLUMNS, rows, "\n".join(text))


def _share_reached(plan: Plan, alone: Mapping[str, float], seconds: float) -> str:
    """The part of the gain that the lower bound allows; "" for a plan without a gain.

    The bound is predicted, so that it means nothing beside seconds of a machine that has changed.
    """
    best = min(alone.values(), default=0.0)
    is_split = len(np.unique(plan.placement.device_of)) > 1
    if not is_split or best <= seconds or best <= plan.lower_bound:
        return ""
    share = (best - seconds) / (best - plan.lower_bound)
    return f"; {share:.0%} of what a perfect split could gain over the best single device"


def _position(name: str) -> int:
    """The runtime's default stands behind single devices, before splits."""
    return {ALL_CORES: 1, EVEN_SPLIT: 2, PLAN: 3}.get(name, 0)


def _label(name: str, searched: str, placer: str) -> str:
    if name != searched:
        return name
    return f"searched ({placer})" if name == PLAN else f"{name}, searched ({placer})"
