"""A request to a plan within all its limits: measure, search, check on the hardware."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from placewright.core.deadline import Deadline
from placewright.core.plan import Plan
from placewright.core.solution import Budget
from placewright.errors import InputError, OutOfTime
from placewright.placers.learned.training import check_takes_policy
from placewright.placers.registry import Placer, make_placer
from placewright.session import contenders, running, search, stream_check
from placewright.session.measuring import Measured
from placewright.session.parsing import (
    parse_budget,
    parse_latency_limit,
    parse_pairs,
    parse_total,
)
from placewright.session.problems import ProblemRequest, build
from placewright.session.steps import CHECKING, SEARCHING, Report, Steps, no_report, rough_duration

_QUICK_SECONDS = 10.0
_USUAL_SECONDS = 30.0
_LEAST_SEARCH_SHARE = 0.3  # of what is left of the total, however long the check may take
_BOUND_SHARE = 0.2  # of the search's seconds, which the last bound takes after it
QUICK_CHECK = "check on the hardware: outputs were not compared, nor simpler ways measured"


@dataclass(frozen=True)
class SearchRequest:
    """How a placement is looked for, and how long everything may take.

    Attributes:
        placer: the algorithm.
        budget: of the search; None is 30 s, 10 s with `is_quick`.
        total: seconds of everything, measuring and checking included; None is no limit.
        is_quick: few rounds, a stored calibration or none, no check.
        seed: of every random choice.
        evaluator: ``simulated`` or ``measured``.
        replicate: groups of alike devices may take turns.
        check: run the plan beside simpler ways, where it can run.
        latency_limit: of a throughput plan: seconds that 95 % of its samples may take from entry to
            end; inf is no limit.
    """

    placer: Placer
    budget: Budget | None = None
    total: float | None = None
    is_quick: bool = False
    seed: int = 0
    evaluator: str = "simulated"
    replicate: bool = False
    check: bool = True
    latency_limit: float = math.inf

    @classmethod
    def of_texts(
        cls,
        placer: str,
        *,
        settings: Iterable[str] | None = None,
        policy: Path | None = None,
        budget: str | None = None,
        evaluations: int | None = None,
        total: str | None = None,
        latency_limit: str | None = None,
        **others: Any,
    ) -> SearchRequest:
        """From the texts of command-line options; what can be checked without work is.

        Raises:
            InputError: a text has the wrong form.
            UnknownNameError: there is no such placer.
            MissingExtraError: a package that the placer needs is not installed.
            FileFormatError: the policy cannot be read.
        """
        values = parse_pairs(settings or [], "--set-placer", "KEY=VALUE")
        if policy is not None:
            check_takes_policy(placer)
            from placewright.placers.learned.checkpoint import load_checkpoint

            load_checkpoint(policy, placer)
            values["policy"] = str(policy)
        is_limited = budget is not None or evaluations is not None
        return cls(
            make_placer(placer, values),
            budget=parse_budget(budget, evaluations) if is_limited else None,
            total=parse_total(total),
            latency_limit=parse_latency_limit(latency_limit),
            **others,
        )

    @property
    def limit(self) -> Budget:
        """The search's own budget."""
        usual = _QUICK_SECONDS if self.is_quick else _USUAL_SECONDS
        return self.budget or Budget(seconds=usual)


@dataclass(frozen=True)
class Placed:
    """A plan, and the table of what it was measured beside; None where it was not."""

    plan: Plan
    table: contenders.Table | None = None


def place_request(
    request: ProblemRequest,
    wanted: SearchRequest,
    report: Report = no_report,
) -> Placed:
    """Read, measure, search and check within the total.

    Args:
        request: what is placed where.
        wanted: how.
        report: told what is being done.

    Raises:
        InputError: the request is wrong.
        InfeasibleError: no placement satisfies the constraints, or none was found.
        MismatchError: outputs differ from the unsplit model's.
        OutOfTime: the total ended before there was a plan.
    """
    running.check_evaluator(wanted.evaluator)
    if not math.isinf(wanted.latency_limit) and request.objective != "throughput":
        raise InputError(
            "--latency-limit is of a sample in a stream: it needs --objective throughput"
        )
    deadline = Deadline.after(wanted.total)
    is_checked = wanted.check and not wanted.is_quick
    seconds = wanted.limit.seconds or 0.0
    steps = Steps(report, search_seconds=seconds, is_checked=is_checked)
    found = build(request, steps, deadline, is_quick=wanted.is_quick)
    plan, left_out = _searched(found, wanted, request.runtime, steps, deadline)
    table = None
    if (running.can_run(plan) or stream_check.can_stream(plan)) and wanted.check:
        if wanted.is_quick:
            left_out.append(QUICK_CHECK)
        else:
            try:
                plan, table = _checked(plan, found, wanted, steps, deadline)
            except OutOfTime as error:
                left_out.append(f"check on the hardware: {error.args[0]}")
    return Placed(replace(plan, left_out=tuple(left_out)), table)


def _searched(
    found: Measured,
    wanted: SearchRequest,
    runtime: str | None,
    steps: Steps,
    deadline: Deadline,
) -> tuple[Plan, list[str]]:
    """The plan of a search within what is left, and all that was left out so far."""
    problem, left_out = found.problem, list(found.left_out)
    deadline.require("the search")
    limit = _within(wanted.limit, deadline, found.check_seconds if steps.is_checked else 0.0)
    if limit.seconds != wanted.limit.seconds:
        assert limit.seconds is not None
        whole = wanted.limit.seconds
        instead = "" if whole is None else f" instead of {rough_duration(whole)}"
        left_out.append(f"search: {rough_duration(limit.seconds)}{instead}")
    steps.tell(SEARCHING, f"searching with {wanted.placer.name}", limit.seconds)
    plan = search.place(
        problem,
        placer=wanted.placer,
        budget=limit,
        seed=wanted.seed,
        runtime=runtime,
        measure=running.measure_of(problem, runtime, wanted.evaluator),
        replicate=wanted.replicate,
    )
    return plan, left_out


def _within(budget: Budget, deadline: Deadline, reserved: float) -> Budget:
    """The budget, cut where the rest of the total ends before it; the check keeps its seconds."""
    if not deadline.is_limited:
        return budget
    left = deadline.seconds_left
    mine = max(left - reserved, _LEAST_SEARCH_SHARE * left) / (1.0 + _BOUND_SHARE)
    whole = math.inf if budget.seconds is None else budget.seconds
    return replace(budget, seconds=mine) if mine < whole else budget


def _checked(
    plan: Plan, found: Measured, wanted: SearchRequest, steps: Steps, deadline: Deadline
) -> tuple[Plan, contenders.Table]:
    def report(fraction: float, what: str) -> None:
        steps.tell(CHECKING, what, found.check_seconds * 5.0 * (1.0 - fraction))

    if not stream_check.can_stream(plan):
        return contenders.check_on_hardware(plan, report, deadline=deadline)
    return stream_check.check_stream_on_hardware(
        plan,
        report,
        latency_limit=wanted.latency_limit,
        improves=wanted.placer.name == "auto",
        deadline=deadline,
    )
