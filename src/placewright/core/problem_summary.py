"""A problem in a few lines: its sizes, devices and constraints, never its arrays."""

from __future__ import annotations

import math
from typing import Any

from placewright.core.quantities import format_bytes

_MOST = 8  # devices and pins that are named


def summary(problem: Any) -> str:
    """Ops, units, devices, objective, execution model and constraints, as `print` shows them.

    Args:
        problem: a `core.problem.Problem`, whose file imports this one.
    """
    graph, cluster = problem.graph, problem.cluster
    lines = [
        f"Problem: {graph.n_ops} ops in {problem.n_units} units, {graph.n_tensors} tensors, "
        f"{problem.n_devices} devices",
        f"objective    {problem.objective} under '{problem.execution_model.name}', in "
        f"{problem.time_unit}",
        f"devices      {_listed(list(map(_device, cluster.devices)))}; host '{cluster.host}'",
    ]
    if problem.source is not None:
        lines.insert(1, f"model        {problem.source.path}")
    if problem.pins:
        names = cluster.device_names
        pins = [f"{graph.op_names[op]}={names[at]}" for op, at in sorted(problem.pins.items())]
        lines.append(f"pins         {_listed(pins)}")
    together = problem.n_units - problem.colocation.n_groups
    if together:
        lines.append(f"colocation   {problem.colocation.n_groups} classes of units")
    if problem.resident_inputs:
        lines.append(f"resident     {len(problem.resident_inputs)} inputs")
    return "\n".join(lines)


def _device(device: Any) -> str:
    limit = device.memory_bytes
    return device.name if math.isinf(limit) else f"{device.name} ({format_bytes(limit)})"


def _listed(texts: list[str]) -> str:
    more = len(texts) - _MOST
    return ", ".join(texts[:_MOST]) + (f" and {more} more" if more > 0 else "")
