"""Lines of text about a plan and its recommendation, and warnings about its memory limits."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from placewright.core.charges import amounts_text
from placewright.core.execution_models import EVENT, Event, MaxLoad
from placewright.core.plan import (
    ALL_CORES,
    EVEN_SPLIT,
    PLAN,
    Measurement,
    Plan,
    device_of,
    no_choice,
    scope_of_proof,
    search_text,
    stream_by_name,
)
from placewright.core.problem import Problem
from placewright.core.quantities import counted, format_bytes, format_duration, value_text
from placewright.core.source import ModelSource, calls_of, calls_text
from placewright.report.verdict import searched_was
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
    if alone := no_choice(problem):
        return alone
    groups = " on these groups" if (problem.cluster.replicas > 1).any() else ""
    if engine := scope_of_proof(plan):
        groups = f" of the placements{engine}"
    if plan.status == "optimal":
        return f"proven to be the least{groups}{_by(plan)}"
    if not (plan.lower_bound > 0 and math.isfinite(plan.gap)):
        return f"no lower bound{groups} is known"
    bound = value_text(plan.lower_bound, problem.value_unit)
    return f"lower bound{groups} {bound}{_by(plan)}, gap {plan.gap:.1%}"


def plan_lines(plan: Plan, model: str, *, is_changed: bool = False) -> list[str]:
    """The lines below the verdict: value, bound, gap, and the share of each device.

    Args:
        is_changed: ops were moved after the search.
    """
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
    found = "moved from what was found by" if is_changed else "found by"
    lines += [f"{found} {search_text(plan.placer)}", *loss_lines(problem.source)]
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
    if plan.in_flight is not None:
        lines.append(f"at most {counted(plan.in_flight, 'sample')} in flight")
    if plan.searched is not None:
        why = f"it was {was}" if (was := searched_was(plan)) else "no sure gain"
        lines.append(
            f"the plan holds {placement_text(plan)}; the search found another placement, predicted "
            f"at {value_text(plan.searched.value, unit)}; {why}; argument `searched` takes it"
        )
    skipped = [f"left out: {what}" for what in plan.left_out]
    return lines + skipped + left_out_lines(plan)


def _memory_text(plan: Plan, device: str) -> str:
    size, counts = format_bytes(plan.memory[device]), plan.problem.execution_model.memory_counts
    return f"peak memory {size}" if counts == "peak" else f"memory {size} ({counts})"


def plan_warning(plan: Plan) -> str | None:
    """`limit_warning` of a plan; None, too, if a stream of it keeps the limits."""
    warning = limit_warning(plan.problem)
    if warning is None or left_out_lines(plan):
        return warning
    is_streamed = Simulator(plan.problem).sample_peaks(plan.placement) is not None
    return None if is_streamed else warning


def limit_warning(problem: Problem) -> str | None:
    """Warning that memory limits do not count tensors; None if all tensors fit anyway."""
    left_out = float(problem.unit_graph.tensor_bytes.sum())
    counts = problem.execution_model.memory_counts
    if counts != "weights only" or left_out == 0 or _is_roomy(problem):
        return None
    text = (
        f"memory limits hold for weights only under '{problem.execution_model.name}': tensors, "
        f"{format_bytes(left_out)} of one sample in the whole model, are missing"
    )
    if isinstance(problem.execution_model, MaxLoad):
        return f"{text}; argument `samples_in_flight` 1 or more counts them"
    return text


def _is_roomy(problem: Problem) -> bool:
    """True if each device has memory for all weights and tensors of one sample."""
    most = problem.kept.total + float(problem.unit_graph.tensor_bytes.sum())
    used = np.full(problem.n_devices, most)
    return not problem.cluster.exceeded_limits(used)


def left_out_lines(plan: Plan) -> list[str]:
    """Warnings about devices on which one sample in flight would not fit, if none is counted.

    The sample is played as a stream if the problem has one.
    """
    problem = plan.problem
    model = problem.execution_model
    if not isinstance(model, MaxLoad) or model.samples_in_flight > 0 or _is_roomy(problem):
        return []
    cluster = problem.cluster
    whole = Simulator(problem).sample_peaks(plan.placement)
    if whole is None:
        roomy = replace(problem, cluster=cluster.without_memory_limits)
        whole = Simulator(roomy.with_samples_in_flight(1)).memory_peaks(plan.placement)
    return [
        f"warning: with one sample in flight '{name}' needs {format_bytes(size)} and has "
        f"{format_bytes(limit)}; argument `samples_in_flight` 1 counts it"
        for name, size, limit in cluster.exceeded_limits(whole)
    ]


_FLAGS = ("colocate_backward", "dropout")  # options of the source of a training step
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
    if stream_by_name(plan) is not None:
        return [
            f"{_faster(measured)}; argument `samples` of a run, or `pw.stream`, runs that, "
            "argument `searched` what the search found"
        ]
    device = device_of(name, plan.problem.cluster.device_names)
    if plan.searched is not None or is_all_on(plan, device):
        line = f"this plan holds {placement_text(plan)}, as recommended when it was measured"
        return [line if plan.searched is None else f"{line}; {_TAKES_SEARCHED}"]
    return [f"{_faster(measured)}; place again for a plan that holds it"]


def default_text(
    plan: Plan,
    runtime: str,
    call: str | None,
    *,
    has_command: bool = True,
    state: Mapping[str, str] | None = None,
) -> list[str]:
    """Lines about running the model with the runtime's default, which no placement expresses.

    Args:
        runtime: its name if a command must name it; "" if it is the default one.
        call: expression that makes the model with the default in Python; None without one.
        has_command: False if a command would choose other options than the plan's.
        state: output -> input of the next call, as they were given when the model was read.
    """
    problem, source = plan.problem, plan.problem.source
    if source is None or source.path.startswith("module:"):
        return [f"to run '{ALL_CORES}', call the unsplit model itself"]
    in_python = [] if call is None else [f"'{ALL_CORES}' in Python: {call}"]
    if not has_command:
        return in_python
    words = [f"placewright place {shlex.quote(source.path)} --devices cpu"]
    words += _as_read(source, state or {})
    if problem.objective == "training":
        words.append("--objective training")
    if runtime:
        words.append(f"--runtime {runtime}")
    return [f"a plan for '{ALL_CORES}': {' '.join(words)}", *in_python]


def _as_read(source: ModelSource, state: Mapping[str, str]) -> list[str]:
    """Options that read a model with the inputs, state and training step that it has in a plan."""
    values = {} if source.signature is None else source.signature.values
    given = [
        (option, f"{name}={','.join(map(str, numbers))}")
        for option, row in (("shape", source.shapes), ("value", values))
        for name, numbers in row.items()
        if numbers
    ]
    given += [("state", f"{output}={name}") for output, name in state.items()]
    given += [(name, text) for name, text in source.options.items() if name == "optimizer"]
    flags = [name for name in _FLAGS if source.options.get(name) == "yes"]
    return [
        *(f"--{option} {shlex.quote(text)}" for option, text in given),
        *(f"--{name.replace('_', '-')}" for name in flags),
    ]


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
