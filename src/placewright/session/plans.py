"""Plans: made of solutions, read and verified, with another placement, with some ops moved."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from placewright.core.arrays import frozen_floats
from placewright.core.charges import CHARGED
from placewright.core.execution_models import Event
from placewright.core.op_patterns import by_op
from placewright.core.placement import Placement
from placewright.core.plan import ALL_CORES, PlacerRecord, Plan, Searched, stream_by_name
from placewright.core.problem import Problem
from placewright.core.quantities import format_bytes
from placewright.core.solution import Solution, Stop
from placewright.core.source import ModelSource
from placewright.errors import FileFormatError, GraphError, InfeasibleError
from placewright.execution.placements import bytes_of_further_copies
from placewright.execution.state_pairs import asked_of
from placewright.files import plan_file
from placewright.frameworks.registry import (
    framework_named,
    framework_names,
    framework_of,
    is_installed,
)
from placewright.frameworks.runtimes import default_runtime_name
from placewright.io.opened import shown_name
from placewright.report.plan_text import default_text, held_text, recommendation_text
from placewright.report.verdict import predicted_gain
from placewright.session.contenders import whole_processor, why_default_is_not_comparable
from placewright.session.models import (
    finder,
    require_model,
    runnable_source,
    runtime_named,
)
from placewright.session.modules import remember_module
from placewright.simulation.evaluator import CLOSED
from placewright.simulation.model import Simulator
from placewright.simulation.segments import segments_of
from placewright.simulation.stream.play import Stream
from placewright.simulation.timeline import Timeline

_SAME = 1e-9  # relative; sums may be added in another order by another version
_Segments = Sequence[tuple[int, Sequence[int]]]


def plan_of(problem: Problem, solution: Solution, record: PlacerRecord, runtime: str) -> Plan:
    """Make a plan of a solution; value, order, segments and memory come from the simulator.

    A solution that is called optimal needs a bound that closes the gap, else it is feasible.
    """
    if solution.placement is None:
        raise InfeasibleError(f"there is no placement to plan: {solution.message}")
    placement = solution.placement
    simulator = Simulator(problem)
    segments: tuple[tuple[int, tuple[int, ...]], ...] | None = None
    if isinstance(problem.execution_model, Event):
        order = simulator.timeline(placement).order
        segments = tuple(
            (segment.device, tuple(int(unit) for unit in segment.units))
            for segment in segments_of(problem, placement, order)
        )
    peaks = simulator.memory_peaks(placement).tolist()
    value = simulator.value(placement)
    bound = min(solution.lower_bound, value)
    is_open = solution.status == "optimal" and _leaves_gap(bound, value)
    if is_open and record.stop is Stop.PROVEN:
        record = replace(record, stop=Stop.DONE)
    return Plan(
        problem=problem,
        placement=placement,
        value=value,
        lower_bound=bound,
        bound_method=solution.bound_method,
        status="feasible" if is_open else solution.status,
        runtime=runtime,
        memory=dict(zip(problem.cluster.device_names, peaks, strict=True)),
        amounts=simulator.amounts(placement) if problem.time_unit == "s" else {},
        segments=segments,
        placer=record,
    )


def limits_that_copies_exceed(plan: Plan) -> list[str]:
    """A clause for each device or pool that has no room for the copies that segments pack.

    The memory of a plan counts a weight once per device. With some runtimes each of its segments
    packs the weights that it reads.
    """
    if not is_installed(framework_named(plan.runtime)):
        return []
    runtime, cluster = runtime_named(plan.runtime), plan.problem.cluster
    copies = bytes_of_further_copies(plan.problem, plan.segments or (), runtime)
    if not copies.any():
        return []
    whole = copies + [plan.memory[name] for name in cluster.device_names]
    return [
        f"copies of weights that several segments of a device pack: with them '{name}' takes "
        f"{format_bytes(size)} and has {format_bytes(limit)}; option `weights: shared` of the "
        "devices avoids them"
        for name, size, limit in cluster.exceeded_limits(frozen_floats(whole))
    ]


def read_plan(
    path: Path | str, *, searched: bool = False, model: Any = None, example_inputs: Any = ()
) -> Plan:
    """Read a plan and its problem, and verify everything that follows from its placement.

    >>> plan = pw.read_plan("plan.json")
    >>> plan.problem.cluster.device_names
    ('cpu',)

    Args:
        path: of the plan.
        searched: take the searched placement if the plan holds a simpler one.
        model: where the plan's model is now, or the module of a plan that another process made;
            None is the place that the plan names.
        example_inputs: of a module, as `place` takes them.

    Raises:
        InputError: a file cannot be read.
        FileFormatError: a field is wrong, or contradicts the problem, the placement or the
            simulator; the message names the field, its value and the right one.
        StalePlanError: the problem file, or `model`, is not the one that the plan was made for.
    """
    plan = plan_file.read_plan(path)
    contradiction = next(_contradictions(plan), None)
    if contradiction is not None:
        raise FileFormatError(f"plan '{shown_name(path)}' contradicts itself: {contradiction}")
    if model is not None:
        is_path = isinstance(model, str | os.PathLike)
        name = os.fspath(model) if is_path else remember_module(model, example_inputs)
        source = replace(require_model(plan.problem), path=name)
        runnable_source(source, plan.problem.graph)  # refuses another content
        plan = replace(plan, problem=replace(plan.problem, source=source))
    if plan.problem.objective in CHARGED:  # a file may leave out its seconds, which runs need
        plan = replace(plan, amounts=Simulator(plan.problem).amounts(plan.placement))
    return searched_plan(plan) if searched else plan


def _contradictions(plan: Plan) -> Iterator[str]:
    """Yield the contradictions in a plan as clauses, the most important first."""
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
    for quantity, amount in plan.amounts.items():
        right = derived.amounts.get(quantity, math.nan)
        yield from _number(f"predicted.amounts of '{quantity}'", amount, right)
    if plan.segments is not None:
        yield from _segments(plan, plan.segments, derived.segments)


def _leaves_gap(bound: float, value: float) -> bool:
    """True if a bound does not prove a value."""
    return bound < value * (1.0 - CLOSED)


def _number(name: str, stored: float, derived: float) -> Iterator[str]:
    if not math.isclose(stored, derived, rel_tol=_SAME, abs_tol=0.0):
        yield f"{name} is {stored!r}, its placement gives {derived!r}"


def _bound(plan: Plan) -> Iterator[str]:
    if not 0.0 <= plan.lower_bound <= plan.value * (1.0 + _SAME):
        yield f"predicted.lower_bound is {plan.lower_bound!r}, the value is {plan.value!r}"
    if plan.status not in ("optimal", "feasible"):
        yield f"predicted.status is '{plan.status}', but there is a placement"
    if plan.status == "optimal" and _leaves_gap(plan.lower_bound, plan.value):
        yield (
            f"predicted.status is 'optimal', but lower_bound {plan.lower_bound!r} leaves a gap to "
            f"the value, {plan.value!r}"
        )


def _segments(plan: Plan, stored: _Segments, derived: _Segments | None) -> Iterator[str]:
    if derived is None:
        yield f"it has segments, which '{plan.problem.execution_model.name}' has not"
        return
    names = plan.problem.cluster.device_names
    for index, (mine, right) in enumerate(zip(stored, derived, strict=False)):
        if mine[0] != right[0]:
            yield (
                f"segment {index} is on '{names[mine[0]]}', its placement runs it on "
                f"'{names[right[0]]}'"
            )
        if list(mine[1]) != list(right[1]):
            yield f"segment {index} holds other ops than its placement runs there"
    if len(stored) != len(derived):
        yield f"it has {len(stored)} segments, its placement has {len(derived)}"


def predicted_plan(plan: Plan) -> Plan:
    """Give an unmeasured plan the placement that its verdict recommends.

    If the predicted gain of a split does not exceed the error of predictions, the plan gets the
    best single device, and keeps the split in `searched`.
    """
    gain = predicted_gain(plan.problem, plan.placement, plan.value, plan.in_flight)
    if plan.measured is not None or gain is None or gain.is_sure:
        return plan
    alone = Placement.on_one_device(plan.problem.n_units, gain.device)
    return with_placement(plan, alone)


def with_placement(plan: Plan, placement: Placement) -> Plan:
    """Give a plan another placement, and keep the searched one beside it."""
    changed = moved_plan(plan, placement)
    is_best = plan.status == "optimal" and changed.value <= plan.lower_bound * (1.0 + CLOSED)
    return replace(
        changed,
        status="optimal" if is_best else "feasible",
        searched=Searched(plan.placement, plan.value, plan.in_flight),
    )


def moved_plan(plan: Plan, placement: Placement) -> Plan:
    """A plan with another placement of its problem: not measured, and with the same bound."""
    solution = Solution(
        placement, plan.value, "feasible", plan.lower_bound, bound_method=plan.bound_method
    )
    changed = plan_of(plan.problem, solution, plan.placer, plan.runtime)
    return replace(changed, left_out=plan.left_out, in_flight=plan.in_flight)


def searched_plan(plan: Plan) -> Plan:
    """The plan with the searched placement; the same plan if it holds that already."""
    if plan.searched is None:
        is_other = _has_default(plan) or stream_by_name(plan) is not None
        return replace(plan, measured=None) if is_other else plan
    searched = plan.searched
    is_closed = searched.value <= plan.lower_bound * (1.0 + CLOSED)
    return replace(
        moved_plan(plan, searched.placement),
        status="optimal" if is_closed else "feasible",
        in_flight=searched.in_flight,
    )


def held_lines(plan: Plan) -> list[str]:
    """Lines about a plan that was just measured, if the runtime's default was recommended."""
    return held_text(plan, _default_lines(plan) if _has_default(plan) else [])


def recommendation_lines(plan: Plan) -> list[str]:
    """Lines about the contender that was recommended; none if the plan itself was."""
    if not _has_default(plan):
        return recommendation_text(plan, [], None)
    reason = why_default_is_not_comparable(plan.problem, Simulator(plan.problem))
    return recommendation_text(plan, [] if reason else _default_lines(plan), reason)


def _has_default(plan: Plan) -> bool:
    """True if the runtime's default was recommended when the plan was measured."""
    return plan.measured is not None and plan.measured.recommendation == ALL_CORES


def _default_lines(plan: Plan) -> list[str]:
    source, objective = plan.problem.source, plan.problem.objective
    runtime = "" if plan.runtime == default_runtime_name(objective) else plan.runtime
    call, is_found = None, True
    if source is not None and objective != "training" and _is_own_file(source):
        whole = whole_processor(plan)
        if whole is not None:
            chosen = runtime_named(plan.runtime)
            call = chosen.unsplit_call(source.path, whole)
            is_found = whole in chosen.discover()  # else the plan has other options
    state = {} if source is None else asked_of(source.options)
    return default_text(plan, runtime, call, has_command=is_found, state=state)


def _is_own_file(source: ModelSource) -> bool:
    """True for a file that is here and that the library itself can open."""
    framework = framework_of(source)
    if framework is None or not os.path.exists(source.path):
        return False
    return isinstance(finder(framework)(source.path), Path)


@dataclass(frozen=True, eq=False)
class Simulated:
    """A plan with some ops moved, and its prediction."""

    plan: Plan  # after the changes
    before: float  # value of the plan without them, in the problem's time unit
    simulator: Simulator  # of the problem, for further questions

    @property
    def timeline(self) -> Timeline:
        """Start and end of every unit and transfer under the event model.

        Raises:
            InputError: the problem has another execution model.
        """
        return self.simulator.timeline(self.plan.placement)

    def stream(self, samples: int, in_flight: int | None = None) -> Stream:
        """Play a stream of samples; None in flight is the plan's number, or as many as pay.

        Raises:
            InputError: a number is below 1.
            InfeasibleError: so many samples do not fit, or not even one.
        """
        placement = self.plan.placement
        if in_flight is None and self.plan.in_flight is not None:
            with suppress(InfeasibleError):  # of moved ops, fewer samples may fit
                return self.simulator.stream(
                    placement, samples=samples, in_flight=self.plan.in_flight
                )
        return self.simulator.stream(placement, samples=samples, in_flight=in_flight)


def simulated(plan: Plan, changes: Mapping[str, str]) -> Simulated:
    """Move ops of a plan (with their units) to other devices, and predict the result.

    Args:
        plan: stays as it is.
        changes: op name, or pattern of names -> device name; later patterns win, and names over
            all. Empty simulates the plan itself.

    Raises:
        GraphError, UnknownNameError: there is no such op or device, or two names of one unit go to
            different devices.
        InfeasibleError: the changed placement breaks a constraint; the message names it.
    """
    problem, simulator = plan.problem, Simulator(plan.problem)
    _refuse_two_ways(problem, changes)
    devices = plan.placement.device_of.copy()
    for op, device in by_op(problem.graph, changes).items():
        devices[problem.units.group_of[op]] = problem.cluster.device(device)
    placement = Placement.of(devices, plan.placement.order)
    violation = simulator.violation(placement)
    if violation is not None:
        raise InfeasibleError(violation.message)
    if not changes:
        return Simulated(plan, plan.value, simulator)
    return Simulated(moved_plan(plan, placement), plan.value, simulator)


def _refuse_two_ways(problem: Problem, changes: Mapping[str, str]) -> None:
    """Refuse names of ops that move together if they are to go to different devices.

    Raises:
        GraphError: the message has two of them.
    """
    of_unit: dict[int, str] = {}
    for name, device in changes.items():
        if name not in problem.graph.op_index:
            continue
        unit = int(problem.units.group_of[problem.graph.op_index[name]])
        other = of_unit.setdefault(unit, name)
        if changes[other] != device:
            raise GraphError(
                f"'{other}' and '{name}' are in one unit, which moves as a whole: to "
                f"'{changes[other]}' or to '{device}'"
            )
