"""A problem to a plan within all limits of a request: search, check on the hardware."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

from placewright.core.deadline import Deadline
from placewright.core.placement import Placement
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import FieldError, Interrupted, OutOfTime
from placewright.placers.learned.training import check_takes_policy
from placewright.placers.portfolio.auto import Auto
from placewright.placers.portfolio.kernels import make_ready
from placewright.placers.registry import Placer, make_placer
from placewright.profiling.hardware import measured_values
from placewright.report.time_left import rough_duration
from placewright.session import contenders, running, search, stream_check
from placewright.session.measuring import Measured
from placewright.session.reading import ModelOfRequest
from placewright.session.recommended import predicted_plan
from placewright.session.request import Request
from placewright.session.spread_search import SpreadAuto
from placewright.session.steps import CHECKING, KERNELS, SEARCHING, Report, Steps
from placewright.workers.interface import Workers
from placewright.workers.opened import open_workers

_LEAST_SEARCH_SHARE = 0.3  # of what is left of the total, however long the check may take
CUT_SHORT = "the rest of the search, and the check on the hardware: it was interrupted"
QUICK_CHECK = "check on the hardware: outputs were not compared, nor simpler ways measured"


@dataclass(frozen=True)
class Placed:
    """A plan, and the table of what it was measured beside; None where it was not."""

    plan: Plan
    table: contenders.Table | None = None


def placer_of(request: Request) -> Placer:
    """The algorithm with its settings and policy; what is wrong with a search is found here.

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
        from placewright.placers.learned.checkpoint import load_checkpoint

        load_checkpoint(request.policy, request.placer)
        values["policy"] = str(request.policy)
    return make_placer(request.placer, values)


def steps_of(request: Request, report: Report) -> Steps:
    """What is ahead of a request that is placed."""
    seconds = (request.limit.seconds or 0.0) * (1.0 + search.BOUND_SHARE)
    return Steps(report, search_seconds=seconds, is_checked=_is_checked(request))


def placed(
    model: ModelOfRequest, placer: Placer, found: Measured, steps: Steps, deadline: Deadline
) -> Placed:
    """Search and check within the total.

    Args:
        model: of the request.
        placer: of the request.
        found: the problem.
        steps: told what is being done.
        deadline: of everything.

    Raises:
        InputError: the request is wrong.
        InfeasibleError: no placement satisfies the constraints, or none was found.
        MismatchError: outputs differ from the unsplit model's.
        OutOfTime: the total ended before there was a plan.
    """
    plan, left_out = _searched(model, placer, found, steps, deadline)
    table = None
    is_here = running.can_run(plan) or stream_check.can_stream(plan)
    if is_here and _wants_check(model.request):
        if model.request.quick:
            left_out.append(QUICK_CHECK)
        else:
            try:
                plan, table = _checked(plan, model, found, steps, deadline)
            except OutOfTime as error:
                left_out.append(f"check on the hardware: {error.args[0]}")
    if model.request.evaluator == "simulated":
        plan = predicted_plan(plan)
    return Placed(replace(plan, left_out=tuple(left_out)), table)


def _wants_check(request: Request) -> bool:
    """A problem in memory is searched only, unless the request says more."""
    return not isinstance(request.model, Problem) if request.check is None else request.check


def _is_checked(request: Request) -> bool:
    return _wants_check(request) and not request.quick


def _searched(
    model: ModelOfRequest, placer: Placer, found: Measured, steps: Steps, deadline: Deadline
) -> tuple[Plan, list[str]]:
    """The plan of a search within what is left, and all that was left out so far."""
    request, problem, left_out = model.request, found.problem, list(found.left_out)
    deadline.require("the search")
    whole = request.limit
    limit = _within(whole, deadline, found.check_seconds if steps.is_checked else 0.0)
    if limit.seconds != whole.seconds:
        assert limit.seconds is not None
        instead = "" if whole.seconds is None else f" instead of {rough_duration(whole.seconds)}"
        left_out.append(f"search: {rough_duration(limit.seconds)}{instead}")
    with workers_of(request) as workers:
        by = placer if workers is None else SpreadAuto(cast(Auto, placer), workers)
        told = "" if workers is None else f", {workers.name}"
        if isinstance(placer, Auto) and workers is None:
            with deadline.clock.stopped():
                steps.tell(KERNELS, "compiling kernels")
                make_ready(problem.objective, problem.execution_model)
        seconds = None if limit.seconds is None else limit.seconds * (1.0 + search.BOUND_SHARE)
        steps.tell(SEARCHING, f"searching with {placer.name}{told}", seconds)
        try:
            plan = search.place(
                problem,
                placer=by,
                budget=limit,
                seed=request.seed,
                runtime=request.runtime,
                measure=measure_of(model, problem),
                replicate=request.replicate,
            )
        except Interrupted as error:
            if error.plan is not None:
                plan = replace(error.plan, left_out=(*left_out, CUT_SHORT))
                error.plan = predicted_plan(plan) if request.evaluator == "simulated" else plan
            raise
    return plan, left_out


@contextmanager
def workers_of(request: Request) -> Iterator[Workers | None]:
    """The workers that were asked for, for a block; None where none were.

    Raises:
        InputError: there are no such workers, or they could only stand in each other's way.
    """
    if request.workers is None and request.ray is None:
        yield None
        return
    if request.evaluator == "measured":
        field = "workers" if request.ray is None else "ray"
        raise FieldError(field, "is for simulated values: one placement is measured at a time")
    with open_workers(request.workers, request.ray) as workers:
        yield workers


def measure_of(model: ModelOfRequest, problem: Problem) -> Callable[[Placement], float] | None:
    """Seconds of a placement on the hardware, where the evaluator measures; None simulates."""
    if model.request.evaluator == "simulated":
        return None
    if problem.costs.source in running.ELSEWHERE:
        raise FieldError(
            "evaluator",
            f"measures on this machine, but the costs are '{problem.costs.source}'; leave it out, "
            "or name devices of this machine",
        )
    return measured_values(problem, model.loaded_for(problem))


def _within(budget: Budget, deadline: Deadline, reserved: float) -> Budget:
    """The budget, cut where the rest of the total ends before it; the check keeps its seconds."""
    if not deadline.is_limited:
        return budget
    left = deadline.seconds_left
    mine = max(left - reserved, _LEAST_SEARCH_SHARE * left) / (1.0 + search.BOUND_SHARE)
    whole = math.inf if budget.seconds is None else budget.seconds
    return replace(budget, seconds=mine) if mine < whole else budget


def _checked(
    plan: Plan, model: ModelOfRequest, found: Measured, steps: Steps, deadline: Deadline
) -> tuple[Plan, contenders.Table]:
    def report(fraction: float, what: str) -> None:
        steps.tell(CHECKING, what, part=fraction)

    loaded = model.loaded(plan.runtime)
    if not stream_check.can_stream(plan):
        return contenders.check_on_hardware(plan, loaded, report, deadline=deadline)
    limit = model.request.latency_limit
    return stream_check.check_stream_on_hardware(
        plan,
        loaded,
        report,
        latency_limit=math.inf if limit is None else limit,
        improves=plan.placer.name == "auto",
        is_counted=model.request.limit.seconds is None,
        deadline=deadline,
    )
