"""Compiles the kernels of the members of `auto` before a clock starts."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import Event, ExecutionModel, MaxLoad, Sequential
from placewright.core.problem import Objective, Problem, timed_objective
from placewright.core.solution import Budget
from placewright.placers.bases import pass_interrupt_on
from placewright.placers.exact.parts.bound import parts_bound
from placewright.placers.registry import make_placer
from placewright.placers.resident import class_bytes
from placewright.simulation.bounds.lower import quick_bounds, relaxed_bounds
from placewright.simulation.compiled import tell_compiling
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.layout import hop_seconds, problem_arrays

_LONG = 5.0  # seconds of compiling that a message announces
_EVENT = (
    *("single", "heft", "peft", "cpop", "m-etf", "m-topo"),
    *("local-search", "problem-space", "multilevel"),
)
_SMALL = {"multilevel": {"groups": "2"}}  # the small problem has few units to join
_LOADS = ("single", "m-topo", "local-search", "multilevel")
_SUMS = ("single", "local-search")
_MODELS = Event | MaxLoad | Sequential  # whose placers have many kernels


@functools.cache
def make_ready(objective: Objective, model: ExecutionModel) -> None:
    """Run the methods that have kernels on a small problem, once per process.

    The first run after an installation or an update compiles for a minute, which is no part of a
    search's budget.
    """
    objective = timed_objective(objective)
    if not isinstance(model, _MODELS):
        return  # their placers' kernels are few
    members: tuple[str, ...] = _LOADS if isinstance(model, MaxLoad) else _SUMS
    members = _EVENT if isinstance(model, Event) else members
    mark, began = _mark(objective, model), time.perf_counter()
    expected = seconds_to_compile(objective, model)
    if not expected <= _LONG:
        tell_compiling(expected)
    for memory in (np.inf, 44.0):
        problem = _small_problem(objective, model, memory)
        for name in members:
            evaluator = Evaluator(problem, Budget(evaluations=400))
            placer = make_placer(name, _SMALL.get(name))
            solution = placer.place(problem, evaluator, np.random.default_rng(0))
            pass_interrupt_on(solution)
            if solution.placement is not None and isinstance(model, Event):
                evaluator.simulator.timeline(solution.placement)
        quick_bounds(problem)
        relaxed_bounds(problem, 1.0)
        parts_bound(problem)
        hop_seconds(problem_arrays(problem), 0, 0, 1)  # constraint programs ask for single hops
    seconds = time.perf_counter() - began
    if not mark.exists():
        with contextlib.suppress(OSError):  # a cache that cannot be written to
            mark.write_text(f"{seconds}")


def seconds_to_compile(
    objective: Objective, model: ExecutionModel, folder: Path | None = None
) -> float:
    """The seconds that `make_ready` took for another version; 0 if this one's are on the disk.

    It is nan if no version was compiled here before.

    Args:
        folder: of this version's kernels; those of other versions are next to it. None is Numba's.
    """
    if not isinstance(model, _MODELS):
        return 0.0
    objective = timed_objective(objective)
    mark = _mark(objective, model, folder)
    if mark.exists():
        return 0.0
    before = []
    for other in mark.parent.parent.glob(f"*/{mark.name}"):
        with contextlib.suppress(OSError, ValueError):
            before.append(float(other.read_text()))
    return max(before, default=math.nan)


def _mark(objective: Objective, model: ExecutionModel, folder: Path | None = None) -> Path:
    """The file in the folder of this version's kernels that exists once all are compiled.

    A kernel of this room has another folder if this room or `simulation` is of another version.
    """
    home = Path(cast(Any, class_bytes)._cache._cache_path).parent if folder is None else folder
    # A training step has the kernels of a call.
    of = "latency" if isinstance(model, Event) else objective
    return home / f"ready-{of}-{model.name}"


def _small_problem(objective: Objective, model: ExecutionModel, memory: float) -> Problem:
    """A problem with branches, weights and links, like those that are searched."""
    builder = GraphBuilder()
    tensor = builder.add_input(1.0)
    for branch in range(4):
        first = builder.add_op(f"fork{branch}", "Op", inputs=[tensor])
        start = builder.add_tensor(first, 2.0)
        ends = []
        for arm in range(2):
            op = builder.add_op(
                f"op{branch}.{arm}", "Op", inputs=[start], weights=[builder.add_weight(8.0)]
            )
            ends.append(builder.add_tensor(op, 3.0))
        last = builder.add_op(f"join{branch}", "Op", inputs=ends)
        tensor = builder.add_tensor(last, 1.0, is_output=branch == 3)
    graph = builder.build()
    names = ("a", "b")
    links = [Link(x, y, 0.1, 100.0) for x in (*names, "host") for y in (*names, "host") if x != y]
    devices = tuple(Device(name, memory_bytes=memory) for name in names)
    costs = CostTable(frozen_floats([[1.0 + op % 3, 1.5 + op % 2] for op in range(graph.n_ops)]))
    problem = Problem.of_ops(graph, Cluster(devices, tuple(links)), costs)
    return replace(problem, objective=objective, execution_model=model)
