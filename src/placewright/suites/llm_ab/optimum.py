"""The best placement of a comparison's devices by its costs, with a proven limit.

It chooses for each module among the columns of the options and each of their devices alone.
Columns that share a device are not held to one memory, so that the limit is proven and the
placement may need a little more than there is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from placewright.core.arrays import frozen_floats
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import Sequential
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import InfeasibleError, PlacewrightError
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator
from placewright.suites.llm_ab.costs import (
    Column,
    Constants,
    Option,
    message_seconds,
    module_seconds,
)

SECONDS = 5.0  # of each search


def columns_beside(options: Sequence[Option]) -> tuple[Column, ...]:
    """Columns of options, and each of their devices alone."""
    found = {column for option in options for column in option.columns}
    return tuple(sorted(found | {((name, 1.0),) for column in found for name, _ in column}))


def problem_of(
    option: Option, columns: Sequence[Column], constants: Constants, *, limits: bool = True
) -> Problem:
    """The timed passes of a request as a problem under `sequential`, in seconds.

    Args:
        option: whose request, devices and ways count.
        columns: that modules may take.
        constants: of the engine.
        limits: memories count.
    """
    work, timed = option.work, option.timed()
    repeats = sum(of.repeats for _, of in timed)
    tokens = sum(of.repeats * of.tokens for _, of in timed)
    whole = sum(of.repeats * of.tokens for of in work.request.passes)
    graph = replace(
        work.graph, tensor_bytes=frozen_floats(work.graph.tensor_bytes * tokens / whole)
    )
    seconds = np.array([
        [
            module_seconds(option, constants, kind, [(own[n], of) for n, of in timed], column)
            for column in columns
        ]
        for kind, own in zip(graph.op_kinds, work.work, strict=True)
    ])  # fmt: skip
    return Problem(
        graph,
        _cluster(option, columns, constants, limits=limits),
        CostTable(seconds, source="data sheets"),
        Grouping.identity(graph.n_ops),
        execution_model=Sequential(max(1, repeats)),
    )


def _cluster(
    option: Option, columns: Sequence[Column], constants: Constants, *, limits: bool
) -> Cluster:
    names = [" ".join(f"{device}*{share:g}" for device, share in column) for column in columns]
    devices = [
        Device(name, memory_bytes=_limit(option, column, constants) if limits else math.inf)
        for name, column in zip(names, columns, strict=True)
    ]
    links = [
        _link(option, constants, (names[a], names[b]), (columns[a], columns[b]))
        for a in range(len(columns))
        for b in range(len(columns))
        if a != b
    ]
    outside = [Link("host", name) for name in names] + [Link(name, "host") for name in names]
    return Cluster(tuple(devices), (*links, *outside), host="host")


def _link(
    option: Option, constants: Constants, names: tuple[str, str], ends: tuple[Column, Column]
) -> Link:
    """Make a link with the seconds of a message, which are affine in its bytes."""
    none, some = (message_seconds(option, constants, *ends, size) for size in (0.0, 1e9))
    return Link(*names, none, math.inf if some <= none else 1e9 / (some - none))


def _limit(option: Option, column: Column, constants: Constants) -> float:
    """Bytes of modules that a column holds until one of its devices is full."""
    return min(
        (
            option.devices[name].memory_bytes
            - constants.rates(option.devices[name].kind).reserve_bytes
        )
        / share
        for name, share in column
        if name in option.devices
    )


def best_rates(
    options: Sequence[Option], constants_of: dict[str, Constants]
) -> tuple[float, float]:
    """Tokens per second of the best placement, and their upper bound; NaN if unknown.

    Options with as many replicas are searched together; each replica has its own devices.
    """
    best, limit = math.nan, math.nan
    for replicas in sorted({option.replicas for option in options}):
        group = [option for option in options if option.replicas == replicas]
        first = group[0]
        found, bound = _searched(first, columns_beside(group), constants_of[first.engine])
        best, limit = np.fmax(best, found), np.fmax(limit, bound)
    return float(best), float(limit)


def _searched(
    option: Option, columns: Sequence[Column], constants: Constants
) -> tuple[float, float]:
    try:
        problem = problem_of(option, columns, constants)
        evaluator = Evaluator(problem, Budget(seconds=SECONDS))
        solution = make_placer("sequential-ip", {}).place(
            problem, evaluator, np.random.default_rng(0)
        )
    except (InfeasibleError, PlacewrightError):
        return math.nan, math.nan
    value, bound = solution.value, solution.lower_bound
    tokens = option.tokens
    return (
        tokens / value if math.isfinite(value) else math.nan,
        tokens / bound if bound > 0 else math.nan,
    )
