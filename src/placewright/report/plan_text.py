"""Lines of text about a plan, and warnings about its memory limits."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from placewright.core.calls import calls_of, calls_text
from placewright.core.charges import amounts_text
from placewright.core.execution_models import EVENT, Event, MaxLoad
from placewright.core.plan import Plan, search_text
from placewright.core.problem import Problem
from placewright.core.quantities import format_bytes
from placewright.core.source import ModelSource
from placewright.report.recommendation import placement_text
from placewright.report.values import counted, value_text
from placewright.simulation.model import Simulator


def _by(plan: Plan) -> str:
    return f" by {plan.bound_method}" if plan.bound_method else ""


def loss_lines(source: ModelSource | None) -> list[str]:
    """A line about the loss that was added to a model without a scalar output."""
    if source is None or "loss" not in source.options:
        return []
    return [f"loss: {source.options['loss']} of the outputs, because the model returns no scalar"]


def _dispatch(problem: Problem) -> str:
    """The dispatch rule, if it is not the default."""
    model = problem.execution_model
    if not isinstance(model, Event) or model.dispatch == EVENT.dispatch:
        return ""
    return f" (dispatch {model.dispatch})"


def _proven(plan: Plan) -> str:
    """The bound with the gap, or why there is nothing to prove."""
    problem = plan.problem
    choices = problem.allowed_by_class.sum(axis=1)
    if (choices == 1).all():
        return "only one placement exists, because every unit has one possible device"
    if len(choices) == 1:
        return f"all ops move together, so only {choices[0]} placements exist, each on one device"
    groups = " on these groups" if (problem.cluster.replicas > 1).any() else ""
    if plan.status == "optimal":
        return f"proven to be the least{groups}{_by(plan)}"
    if not (plan.lower_bound > 0 and math.isfinite(plan.gap)):
        return f"no lower bound{groups} is known"
    bound = value_text(plan.lower_bound, problem.value_unit)
    return f"lower bound{groups} {bound}{_by(plan)}, gap {plan.gap:.1%}"


def plan_lines(plan: Plan, model: str) -> list[str]:
    """The lines below the verdict: value, bound, gap, and the share of each device."""
    problem = plan.problem
    unit = problem.value_unit
    lines = [
        f"{model}: {problem.graph.n_ops} ops in {problem.n_units} units, "
        f"{problem.objective} under execution model '{problem.execution_model.name}'"
        f"{_dispatch(problem)}",
        f"predicted {value_text(plan.value, unit)}; {_proven(plan)}",
    ]
    if len(plan.amounts) > 1:
        lines.append(f"of one sample: {amounts_text(plan.amounts)}")
    if calls := calls_of(problem.source):
        lines.append(f"the value is that of the mean call of {calls_text(calls)}; memory fits each")
    lines += [f"found by {search_text(plan.placer)}", *loss_lines(problem.source)]
    counts = np.bincount(plan.placement.device_of, minlength=problem.n_devices).tolist()
    segments = [0] * problem.n_devices
    for device, _ in plan.segments or ():
        segments[device] += 1
    for device, name in enumerate(problem.cluster.device_names):
        if counts[device]:
            pieces = f" in {counted(segments[device], 'segment')}" if plan.segments else ""
            replicas = int(problem.cluster.replicas[device])
            each = f" on each of {replicas}" if replicas > 1 else ""
            lines.append(
                f"  {name}: {counted(counts[device], 'unit')}{pieces}, "
                f"{_memory_text(plan, name)}{each}"
            )
    if plan.searched is not None:
        why = "no sure gain" if plan.measured is None else "it was not faster"
        lines.append(
            f"the plan holds {placement_text(plan)}; the search found another placement, predicted "
            f"at {value_text(plan.searched.value, unit)}; {why}; argument `searched` takes it"
        )
    skipped = [f"left out: {what}" for what in plan.left_out]
    return lines + skipped + left_out_lines(plan)


def _memory_text(plan: Plan, device: str) -> str:
    size, counts = format_bytes(plan.memory[device]), plan.problem.execution_model.memory_counts
    return f"peak memory {size}" if counts == "peak" else f"memory {size} ({counts})"


def limit_warning(problem: Problem) -> str | None:
    """Warning that memory limits do not count tensors; None if all tensors fit anyway."""
    left_out = float(problem.unit_graph.tensor_bytes.sum())
    most = float(problem.kept.total) + left_out
    cluster = problem.cluster
    of_pools = cluster.pooled(np.full(cluster.n_devices, most))
    is_roomy = most <= float(cluster.memory_bytes.min()) and (of_pools <= cluster.pool_bytes).all()
    if problem.execution_model.memory_counts != "weights only" or left_out == 0 or is_roomy:
        return None
    text = (
        f"memory limits hold for weights only under '{problem.execution_model.name}': tensors, "
        f"{format_bytes(left_out)} of one sample in the whole model, are missing"
    )
    if isinstance(problem.execution_model, MaxLoad):
        return f"{text}; argument `samples_in_flight` 1 or more counts them"
    return text


def left_out_lines(plan: Plan) -> list[str]:
    """Warnings about devices on which one sample in flight would not fit, if none is counted."""
    problem = plan.problem
    model = problem.execution_model
    if not isinstance(model, MaxLoad) or model.samples_in_flight > 0:
        return []
    cluster = problem.cluster
    roomy = replace(problem, cluster=cluster.without_memory_limits)
    whole = Simulator(roomy.with_samples_in_flight(1)).memory_peaks(plan.placement)
    needed = [*whole.tolist(), *cluster.pooled(whole).tolist()]
    names = (*cluster.device_names, *cluster.shared_pools)
    return [
        f"warning: with one sample in flight '{name}' needs {format_bytes(size)} and has "
        f"{format_bytes(limit)}; argument `samples_in_flight` 1 counts it"
        for name, size, limit in zip(names, needed, cluster.memory_limits.tolist(), strict=True)
        if size > limit
    ]
