"""A plan is believed where all that follows from its problem and placement follows anew."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from placewright.core.plan import Plan
from placewright.core.solution import Solution
from placewright.errors import FileFormatError
from placewright.files import plan_file
from placewright.frameworks.registry import framework_names
from placewright.io.opened import shown_name
from placewright.session.models import runnable_source
from placewright.session.recommended import searched_plan
from placewright.session.running import require_model
from placewright.session.search import plan_of
from placewright.simulation.model import Simulator

_SAME = 1e-9  # relative; sums may be added in another order by another version
_Segments = Sequence[tuple[int, Sequence[int]]]


def read_plan(path: Path | str, *, searched: bool = False, model: Path | str | None = None) -> Plan:
    """Read a plan and its problem, and compute anew whatever follows from its placement.

    Args:
        path: of the plan.
        searched: take what the search found, where the plan holds a simpler placement.
        model: where the plan's model is now; None is the place that the plan names.

    Raises:
        InputError: a file cannot be read.
        FileFormatError: a field is wrong, or contradicts the problem, the placement or the
            simulator; the message names the field, what it says and what follows.
        StalePlanError: the problem file, or `model`, is not the one that the plan was made for.
    """
    plan = plan_file.read_plan(path)
    contradiction = next(_contradictions(plan), None)
    if contradiction is not None:
        raise FileFormatError(f"plan '{shown_name(path)}' contradicts itself: {contradiction}")
    if model is not None:
        source = replace(require_model(plan.problem), path=str(model))
        runnable_source(source, plan.problem.graph)  # refuses another content
        plan = replace(plan, problem=replace(plan.problem, source=source))
    return searched_plan(plan) if searched else plan


def _contradictions(plan: Plan) -> Iterator[str]:
    """What is wrong, each as a clause, the most telling first."""
    if plan.runtime not in framework_names():
        yield f"runtime is '{shown_name(plan.runtime)}', known are {', '.join(framework_names())}"
    simulator = Simulator(plan.problem)
    placements = [("placement", plan.placement)]
    if plan.searched is not None:
        placements.append(("searched.placement", plan.searched.placement))
    for name, placement in placements:
        violation = simulator.violation(placement)
        if violation is not None:
            yield f"{name}: {violation.message}"
            return
    solution = Solution(plan.placement, plan.value, plan.status, plan.lower_bound)
    derived = plan_of(plan.problem, solution, plan.placer, plan.runtime)
    yield from _number("predicted.value", plan.value, derived.value)
    if plan.searched is not None:
        value = simulator.value(plan.searched.placement)
        yield from _number("searched.value", plan.searched.value, value)
    yield from _bound(plan)
    if dict(plan.memory).keys() != dict(derived.memory).keys():
        yield f"predicted.memory names {', '.join(plan.memory)}, the devices are " + ", ".join(
            derived.memory
        )
    for device, peak in derived.memory.items():
        yield from _number(f"predicted.memory of '{device}'", plan.memory[device], peak)
    if plan.segments is not None:
        yield from _segments(plan, plan.segments, derived.segments)


def _number(name: str, told: float, found: float) -> Iterator[str]:
    if not math.isclose(told, found, rel_tol=_SAME, abs_tol=0.0):
        yield f"{name} is {told!r}, its placement gives {found!r}"


def _bound(plan: Plan) -> Iterator[str]:
    if not 0.0 <= plan.lower_bound <= plan.value * (1.0 + _SAME):
        yield f"predicted.lower_bound is {plan.lower_bound!r}, the value is {plan.value!r}"
    if plan.status not in ("optimal", "feasible"):
        yield f"predicted.status is '{plan.status}', but there is a placement"


def _segments(plan: Plan, told: _Segments, found: _Segments | None) -> Iterator[str]:
    if found is None:
        yield f"it has segments, which '{plan.problem.execution_model.name}' has not"
        return
    names = plan.problem.cluster.device_names
    for index, (mine, derived) in enumerate(zip(told, found, strict=False)):
        if mine[0] != derived[0]:
            yield (
                f"segment {index} is on '{names[mine[0]]}', its placement runs it on "
                f"'{names[derived[0]]}'"
            )
        if list(mine[1]) != list(derived[1]):
            yield f"segment {index} holds other ops than its placement runs there"
    if len(told) != len(found):
        yield f"it has {len(told)} segments, its placement has {len(found)}"
