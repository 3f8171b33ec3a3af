"""From a problem to a plan: search within the limits of a request, then check on the hardware.

With workers, turns of the members of `auto` are tasks (`session.hosts`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import cast

from placewright.core.arrays import IntArray
from placewright.core.charges import CHARGED
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution, Stop
from placewright.errors import (
    FieldError,
    InfeasibleError,
    InputError,
    Interrupted,
    OutOfTime,
)
from placewright.frameworks.runtimes import default_runtime
from placewright.placers.advice import advice, streaming_placement, weights_only
from placewright.placers.learned.training import check_takes_policy
from placewright.placers.pipelines.ideals.program import replicated
from placewright.placers.portfolio.auto import Auto
from placewright.placers.portfolio.kernels import make_ready
from placewright.placers.registry import (
    Placer,
    family_of,
    make_placer,
    resolved_settings,
    solution_by,
    tell_of_mended,
    why_not,
)
from placewright.profiling.hardware import Deadline, measured_values
from placewright.report.comparison_table import ContenderTable
from placewright.report.time_left import (
    CHECKING,
    KERNELS,
    PROBING,
    SEARCHING,
    Report,
    Steps,
    rough_duration,
)
from placewright.session.call_mix import checked_calls, unproven_of_calls
from placewright.session.checking import Check, check_on_hardware, probe_on_hardware
from placewright.session.hosts import SpreadAuto, workers_of
from placewright.session.language.answer import memory_advice
from placewright.session.language.problem import is_of_tokens
from placewright.session.language.run_search import (
    ENOUGH,
    LayersInRuns,
    why_inexpressible,
    why_pins_inexpressible,
)
from placewright.session.measuring import Measured
from placewright.session.models import ModelOfRequest
from placewright.session.plans import limits_that_copies_exceed, plan_of, predicted_plan
from placewright.session.request import Request
from placewright.session.running import ELSEWHERE, can_run, can_stream, why_away, why_no_check
from placewright.session.streams import (
    predicted_within,
    require_no_state,
    unchecked,
    within_latency,
    within_limit,
)
from placewright.simulation.bounds.lower import RELAXATION, lower_bound, quick_bounds
from placewright.simulation.evaluator import CLOSED, Evaluator
from placewright.simulation.model import Simulator
from placewright.simulation.stream.tasks import why_no_stream

_LOG = logging.getLogger(__name__)
BOUND_SHARE = 0.2  # of the budget's seconds, for the last bound, which comes after the search
_ADVICE = 30.0  # seconds for advice after a search that no clock limits
_LEAST_ADVICE = 3.0  # seconds for it after a short search
_GROUPS_SHARE = 0.5  # of the budget's seconds and core-seconds, for forming groups
# of what is left of the total, however long the check may take; and of the budget, for a further
# search, however long the one before has taken
_LEAST_SEARCH_SHARE = 0.3
WEIGHTS_ONLY = (
    "tensors of samples in flight: no placement has room for all those of one sample, so that the "
    "search counted weights only (0 samples in flight); a stream of one sample at a time keeps the "
    "limits"
)
UNJUDGED = (
    "check on the hardware: the search measured its placements, and the verdict is by prediction"
)
CUT_SHORT = "the rest of the search, and the check on the hardware: it was interrupted"


def search(
    problem: Problem,
    placer: Placer,
    budget: Budget,
    *,
    seed: int = 0,
    measure: Callable[[Placement], float] | None = None,
    start: IntArray | None = None,
) -> Solution:
    """Run one placer on one problem.

    Args:
        budget: whichever of its limits is met first ends the search.
        measure: seconds of a placement on hardware; None simulates.
        start: a placement that is evaluated first, shape (n_units,).

    Returns:
        The incumbent with the best proven lower bound; `infeasible` or `unknown` without one.

    Raises:
        InputError: the placer does not support the problem.
        Interrupted: Ctrl-C; it carries the incumbent.
    """
    reason = why_not(placer, problem)
    if reason is not None:
        raise InputError(f"placer '{placer.name}' cannot place this problem: {reason}")
    evaluator = Evaluator(problem, budget, measure=measure)
    try:
        for bound in quick_bounds(problem):
            evaluator.offer_bound(bound.value, bound.method)
        if start is not None and not evaluator.is_spent:
            evaluator.evaluate(start)
        solution = _whole(solution_by(placer, problem, evaluator, seed))
        if measure is not None or RELAXATION in evaluator.bounded_by:
            return solution
        return _with_best_bound(problem, solution, budget)
    except Interrupted:
        raise
    except KeyboardInterrupt:
        solution = evaluator.solution(message="interrupted", stop=Stop.INTERRUPTED)
        raise Interrupted(solution) from None


def _whole(solution: Solution) -> Solution:
    """Return a complete solution; raise `Interrupted` with one that Ctrl-C cut short."""
    if solution.stop is Stop.INTERRUPTED:
        raise Interrupted(solution)
    return solution


def _with_best_bound(problem: Problem, solution: Solution, budget: Budget) -> Solution:
    """Add the bound of the linear relaxation if the gap is open and the bound is larger.

    It comes after the search and takes a fifth of its seconds at most, so that every placer has the
    same budget.
    """
    if solution.placement is None or solution.status == "optimal" or solution.gap <= CLOSED:
        return solution
    best = lower_bound(problem, BOUND_SHARE * budget.least_seconds)
    if best.value <= solution.lower_bound:
        return solution
    bound = min(best.value, solution.value)
    solution = replace(solution, lower_bound=bound, bound_method=best.method)
    is_closed = solution.value <= bound * (1.0 + CLOSED)
    return replace(solution, status="optimal", stop=Stop.PROVEN) if is_closed else solution


def find_plan(
    problem: Problem,
    *,
    placer: str | Placer = "auto",
    budget: Budget | None = None,
    seed: int = 0,
    runtime: str | None = None,
    measure: Callable[[Placement], float] | None = None,
    replicate: bool = False,
    again: Callable[[], Budget | None] = lambda: None,
) -> Plan:
    """Find a placement of `problem` and put it in a plan.

    If `again` returns a budget, a problem of streams without a placement is searched with it once
    more, with weights only (`_with_weights_only`), and the plan's problem counts these. That may
    take a second such search, for which `again` is called once more.

    With `replicate`, groups of equal devices that take turns with the samples are formed first (see
    `placers.pipelines.ideals.program`). The placer starts from the split that they were formed
    for, and the plan's cluster has the groups as its devices.

    Raises:
        UnknownNameError: there is no such placer.
        InputError: the placer does not take the problem, or no groups can be formed.
        InfeasibleError: no placement satisfies the constraints, or none was found.
        Interrupted: Ctrl-C; it carries the incumbent and its plan, which is marked as interrupted.
    """
    algorithm = make_placer(placer) if isinstance(placer, str) else placer
    limit, start = budget or Budget(seconds=30.0), None
    if replicate:
        if measure is not None:
            raise InputError(
                "a placement is measured by the latency of one sample, and groups take turns "
                "with many: leave out argument `replicate`, or simulate"
            )
        problem, start, limit = _with_groups(problem, limit)
    how = algorithm, seed, runtime or default_runtime(problem)

    def searched(of: Problem, within: Budget) -> Solution:
        return search(of, algorithm, within, seed=seed, measure=measure, start=start)

    def searched_again(of: Problem) -> Solution | None:
        left = again()
        return None if left is None else searched(of, left)

    try:
        solution = searched(problem, limit)
        if solution.placement is None:
            problem, solution = _with_weights_only(problem, solution, searched_again)
    except Interrupted as error:
        if error.solution.placement is not None:
            error.plan = _plan_found(problem, error.solution, *how)
        raise
    if solution.placement is None:
        proven = "no placement is possible" if solution.status == "infeasible" else "none was found"
        why = solution.message or "the budget ended first"
        fault = InfeasibleError(f"{proven}: {why}{_change_that_fits(problem, limit)}")
        fault.is_proven = solution.status == "infeasible"
        raise fault
    return _plan_found(problem, solution, *how)


def _with_weights_only(
    problem: Problem, refused: Solution, search_for: Callable[[Problem], Solution | None]
) -> tuple[Problem, Solution]:
    """The problem with 0 samples in flight, and a placement that streams within the limits.

    Args:
        problem: of which a search found no placement.
        refused: what that search returned.
        search_for: searches a problem; returns None if there is no time for that.

    Returns:
        The arguments themselves if no such placement was found.

    Raises:
        Interrupted: Ctrl-C, without an incumbent.
    """
    lighter, solutions = weights_only(problem), list[Solution]()
    if lighter is None:
        return problem, refused

    def found(of: Problem) -> Placement | None:
        if (solution := search_for(of)) is None:
            return None
        solutions.append(solution)
        return solution.placement

    try:
        if streaming_placement(lighter, found) is None:
            return problem, refused
    except Interrupted:
        raise Interrupted(replace(refused, stop=Stop.INTERRUPTED)) from None
    first, last = solutions[0], solutions[-1]
    if last is first:
        return lighter, first
    bound, method = first.lower_bound, first.bound_method  # `last` is of smaller devices
    return lighter, replace(last, lower_bound=bound, bound_method=method, status="feasible")


def _change_that_fits(problem: Problem, budget: Budget) -> str:
    """A last clause on what would help a problem without a placement; empty if nothing does.

    Args:
        problem: that was searched.
        budget: of that search, whose seconds limit those of the advice.
    """
    limit = max(_LEAST_ADVICE, BOUND_SHARE * budget.least_seconds) if budget.is_timed else _ADVICE
    change = memory_advice(problem) if is_of_tokens(problem) else advice(problem, limit)
    return f"; {change}" if change else ""


def _plan_found(
    problem: Problem, solution: Solution, placer: Placer, seed: int, runtime: str
) -> Plan:
    record = PlacerRecord(
        placer.name,
        version("placewright"),
        seed,
        solution.evaluations,
        solution.seconds,
        solution.history,
        solution.stop,
        solution.core_seconds,
        resolved_settings(placer),
    )
    return plan_of(problem, solution, record, runtime)


def _with_groups(problem: Problem, budget: Budget) -> tuple[Problem, IntArray, Budget]:
    """The problem of the best groups, the split that they were formed for, and the budget left."""
    clock = Evaluator(problem, budget)
    with clock.share(_GROUPS_SHARE):
        groups = replicated(problem, lambda: clock.remaining_seconds)
    if groups.device_of is None:
        raise InfeasibleError(f"none was found: {groups.message}; leave out argument `replicate`")

    def left(whole: float | None, spent: float) -> float | None:
        return None if whole is None else max((1.0 - _GROUPS_SHARE) * whole, whole - spent)

    seconds = left(budget.seconds, clock.seconds)
    core_seconds = left(budget.core_seconds, clock.core_seconds)
    rest = replace(budget, seconds=seconds, core_seconds=core_seconds)
    return groups.problem, groups.device_of, rest


@dataclass(frozen=True)
class Placed:
    """A plan and the table of its contenders; None if they were not measured."""

    plan: Plan
    table: ContenderTable | None = None


def placer_of(request: Request) -> Placer:
    """Make the placer of a request, with its settings and policy; check the request's search.

    Raises:
        InputError: it has no such setting, or takes no policy.
        UnknownNameError: there is no such placer.
        MissingExtraError: a package that it needs is not installed.
        FileFormatError: the policy cannot be read.
    """
    if request.latency_limit is not None and request.objective != "throughput":
        raise FieldError(
            "latency_limit", "is of a sample in a stream: it needs objective throughput"
        )
    placer = _made(request)
    if (request.workers, request.ray) != (None, None) and not isinstance(placer, Auto):
        field = "workers" if request.ray is None else "ray"
        raise FieldError(
            field, f"spreads the members of placer auto; '{placer.name}' is one search"
        )
    return placer


def _made(request: Request) -> Placer:
    values = dict(request.settings)
    if not isinstance(request.placer, str):
        if values or request.policy is not None:
            raise FieldError("placer", "is an object, which has its settings and policy already")
        return request.placer
    if request.policy is not None:
        check_takes_policy(request.placer)
        from placewright.placers.learned.shared.checkpoint import load_checkpoint

        load_checkpoint(request.policy, family_of(request.placer))
        values["policy"] = str(request.policy)
    placer = make_placer(request.placer, values)
    tell_of_mended(placer.name)
    return placer


def tell_of_core_seconds(placers: Iterable[Placer], limit: Budget) -> None:
    """Log that evaluations do not limit the processor time of `auto`, unless a clock does."""
    if not limit.is_timed and any(isinstance(placer, Auto) for placer in placers):
        _LOG.info(
            "auto: %s do not limit the core-seconds of its relaxations and constraint programs; "
            "argument `core_seconds` does",
            _size_of(limit),
        )


def steps_of(request: Request, report: Report) -> Steps:
    """The steps of placing a request."""
    limit, check = request.limit, None
    if _wants_check(request) and request.objective not in CHARGED:
        check = PROBING if request.quick else CHECKING
    if limit.seconds is None:
        what = f"the search of {_size_of(limit)}"
        return Steps(report, search_seconds=math.nan, search=what, check=check)
    return Steps(report, search_seconds=limit.seconds * (1.0 + BOUND_SHARE), check=check)


def _size_of(limit: Budget) -> str:
    """The limit of an untimed search as text: evaluations or core-seconds."""
    if limit.evaluations is not None:
        return f"{limit.evaluations} evaluations"
    return f"{limit.core_seconds:g} core-seconds"


def search_and_check(
    model: ModelOfRequest, placer: Placer, measured: Measured, steps: Steps, deadline: Deadline
) -> Placed:
    """Search and check on the hardware within the total.

    Args:
        measured: the problem.
        deadline: of everything.

    Raises:
        InputError: the request is wrong.
        InfeasibleError: no placement satisfies the constraints, or none was found.
        MismatchError: outputs differ from the unsplit model's.
        OutOfTime: the total ended before there was a plan.
    """
    request, wants = model.request, _wants_check(model.request)
    _require_stream(measured.problem, request)
    away = why_away(measured.problem, model) if wants else None
    if wants and not (away or request.quick) and can_stream(measured.problem):
        require_no_state(model.loaded_for(measured.problem))  # before a search in vain
    plan, left_out = _search_within(model, placer, measured, steps, deadline)
    if measured.parts:
        reason = why_no_check(plan) if wants and not request.quick else None
        left_out += [] if reason is None else [f"check on the hardware: {reason}"]
        plan = predicted_plan(replace(plan, left_out=tuple(left_out)))
        compares = wants and not request.quick and reason is None
        checked = checked_calls(plan, measured.parts, model, compares=compares, deadline=deadline)
        return Placed(checked)
    table, limit, reason = None, request.latency_limit, why_no_check(plan) or away
    plan = within_limit(plan, limit)
    is_named = request.check or (wants and (can_run(plan) or reason == away))
    if reason is not None and is_named:
        left_out.append(f"check on the hardware: {reason}")
    elif wants and reason is None:
        try:
            if request.quick:
                plan, unchecked = probe_on_hardware(
                    plan,
                    model.loaded,
                    _reports(steps, PROBING),
                    deadline=deadline,
                    limit=limit,
                    is_asked=request.evaluator == "measured",
                )
                left_out.append(unchecked)
            else:
                plan, table = _checked(plan, model, steps, deadline)
                left_out += plan.left_out
        except OutOfTime as error:
            left_out.append(f"check on the hardware: {error.args[0]}")
            plan = error.plan or plan
    elif not wants and request.evaluator == "measured":
        left_out.append(UNJUDGED)
    if request.evaluator == "simulated":
        plan = predicted_within(plan, limit)
    if limit is not None and (plan.measured is None or request.quick):  # else a check has found it
        in_flight = within_latency(Simulator(plan.problem), plan.placement, limit)
        plan = replace(plan, in_flight=in_flight)
    if can_run(plan):
        left_out += limits_that_copies_exceed(plan)
    return Placed(replace(plan, left_out=tuple(left_out)), table)


def _wants_check(request: Request) -> bool:
    """True if the plan is to be checked; by default for all but a problem in memory."""
    return not isinstance(request.model, Problem) if request.check is None else request.check


def _require_stream(problem: Problem, request: Request) -> None:
    """Refuse a limit on the latency of samples if no stream of them can be played.

    Raises:
        FieldError: the problem has no stream, or its costs are no seconds.
    """
    if request.latency_limit is None:
        return
    reason = why_no_stream(problem)
    if problem.time_unit != "s":
        reason = f"its costs are in {problem.time_unit}, not in seconds"
    if reason is not None:
        raise FieldError("latency_limit", f"is of a sample in a stream, and {reason}; leave it out")


def _search_within(
    model: ModelOfRequest, placer: Placer, measured: Measured, steps: Steps, deadline: Deadline
) -> tuple[Plan, list[str]]:
    """Search within the seconds left; return the plan and all clauses about omissions."""
    request, problem, left_out = model.request, measured.problem, list(measured.left_out)
    deadline.require("the search")
    tell_of_core_seconds([placer], request.limit)
    is_alone = (request.workers, request.ray) == (None, None)
    if is_of_tokens(problem) and (reason := why_pins_inexpressible(problem)) is not None:
        raise FieldError("pins", f"leaves nothing that the engine can express: {reason}")
    if isinstance(placer, Auto) and is_alone and is_of_tokens(problem):
        placer = LayersInRuns(_enough(request))
    is_whole = isinstance(placer, LayersInRuns) or not is_of_tokens(problem)
    whole, is_default, began = request.limit, _counts_by_default(model), deadline.clock()
    reserved = measured.check_seconds if steps.check == CHECKING else 0.0
    limit = _within(whole, deadline, reserved)

    def again() -> Budget | None:
        left = _left(whole, deadline.clock() - began)
        return _within(left, deadline, reserved) if is_default and not deadline.is_over else None

    if limit.seconds != whole.seconds:
        assert limit.seconds is not None
        instead = "" if whole.seconds is None else f" instead of {rough_duration(whole.seconds)}"
        left_out.append(f"search: {rough_duration(limit.seconds)}{instead}")
    with workers_of(request) as workers, measure_of(model, problem) as measure:
        by: Placer = placer if workers is None else SpreadAuto(cast(Auto, placer), workers)
        taken_by = "" if workers is None else f", {workers.name}"
        if isinstance(placer, Auto) and workers is None:
            with deadline.clock.stopped():
                steps.tell(KERNELS, "compiling kernels")
                make_ready(problem.objective, problem.execution_model)
        seconds = None if limit.seconds is None else limit.seconds * (1.0 + BOUND_SHARE)
        steps.tell(SEARCHING, f"searching with {placer.name}{taken_by}", seconds)
        try:
            plan = find_plan(
                problem,
                placer=by,
                budget=limit if is_whole else limit.half,
                seed=request.seed,
                runtime=request.runtime,
                measure=measure,
                replicate=request.replicate,
                again=again,
            )
            plan = _expressible(plan, request, limit)
        except Interrupted as error:
            if error.plan is not None:
                plan = replace(error.plan, left_out=(*left_out, CUT_SHORT))
                error.plan = unproven_of_calls(unchecked(plan, request), measured.parts)
            raise
    if plan.problem.execution_model != problem.execution_model:
        left_out.append(WEIGHTS_ONLY)
    return plan, left_out


def _enough(request: Request) -> float:
    """Gap at which the search for a language model ends; 0 if the request states its time."""
    return ENOUGH if (request.budget, request.core_seconds) == (None, None) else 0.0


def _counts_by_default(model: ModelOfRequest) -> bool:
    """True if neither the request nor a stored problem says how many samples are in flight."""
    return model.request.samples_in_flight is None and model.read.problem is None


def _expressible(plan: Plan, request: Request, limit: Budget) -> Plan:
    """The plan, or, if it is one of a language model that its engine cannot express, another."""
    if not is_of_tokens(plan.problem) or why_inexpressible(plan.problem, plan.placement) is None:
        return plan
    found = find_plan(plan.problem, placer=LayersInRuns(), budget=limit.half, seed=request.seed)
    return replace(found, placer=plan.placer)


def measure_of(
    model: ModelOfRequest, problem: Problem
) -> AbstractContextManager[Callable[[Placement], float] | None]:
    """The function, for a block, that measures a placement; None if the evaluator simulates."""
    if model.request.evaluator == "simulated":
        return nullcontext()
    if problem.costs.source in ELSEWHERE:
        raise FieldError(
            "evaluator",
            f"measures on this machine, but the costs are '{problem.costs.source}'; leave it out, "
            "or name devices of this machine",
        )
    return measured_values(problem, model.loaded_for(problem))


def _left(budget: Budget, spent: float) -> Budget:
    """The budget of a further search: the seconds that are left, and never less than a share."""
    if budget.seconds is None:
        return budget
    least = _LEAST_SEARCH_SHARE * budget.seconds
    return replace(budget, seconds=max(least, budget.seconds - spent))


def _within(budget: Budget, deadline: Deadline, reserved: float) -> Budget:
    """Cut the budget if the total ends before it; the check keeps its seconds."""
    if not deadline.is_limited:
        return budget
    left = deadline.seconds_left
    mine = max(left - reserved, _LEAST_SEARCH_SHARE * left) / (1.0 + BOUND_SHARE)
    whole = math.inf if budget.seconds is None else budget.seconds
    return replace(budget, seconds=mine) if mine < whole else budget


def _checked(
    plan: Plan, model: ModelOfRequest, steps: Steps, deadline: Deadline
) -> tuple[Plan, ContenderTable]:
    limit = model.request.latency_limit
    check = Check(
        latency_limit=math.inf if limit is None else limit,
        improves=plan.placer.name == "auto",
        is_counted=model.request.limit.seconds is None and not deadline.is_limited,
    )
    loaded, told = model.loaded(plan.runtime), _reports(steps, CHECKING)
    return check_on_hardware(plan, loaded, told, check=check, deadline=deadline)


def _reports(steps: Steps, step: str) -> Report:
    """Reports of a step, as those of the whole command."""
    return lambda fraction, what: steps.tell(step, what, part=fraction)
