"""Several placers on one problem: same evaluator, same budget, median and range over seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import InputError
from placewright.placers.outside import is_path
from placewright.placers.registry import REGISTRY, make_placer, reason_against
from placewright.report.comparison_table import ComparisonTable, Run
from placewright.session.comparison_file import ComparisonFile
from placewright.simulation.evaluator import Evaluator

Report = Callable[[float, str], None]


def compare(
    problem: Problem,
    placers: Sequence[str],
    seeds: int,
    budget: Budget,
    *,
    measure: Callable[[Placement], float] | None = None,
    settings: Mapping[str, Mapping[str, str]] | None = None,
    progress: Report | None = None,
    results_path: str | Path | None = None,
) -> ComparisonTable:
    """Run every placer with seeds 0 .. seeds - 1 under one evaluator and one budget.

    Args:
        problem: what is placed.
        placers: registry names; ``name:key=value:...`` sets hyperparameters of that one.
        seeds: runs per placer.
        budget: of every single run; all queries count, intermediate ones too.
        measure: seconds of a placement on hardware; None simulates.
        settings: hyperparameters by name, besides those in the name.
        progress: told the fraction done and what is running.
        results_path: results are kept here after every run, and runs found here are not repeated.

    Raises:
        UnknownNameError: there is no such placer.
        InputError: no placer or seed is asked for, a placer does not support the problem, or the
            results file belongs to another problem or budget.
    """
    made = made_placers(placers, seeds, settings)
    for name, placer in made.items():
        reason = reason_against(placer, problem)
        if reason is not None:
            raise InputError(f"placer '{name}' cannot place this problem: {reason}")
    store = ComparisonFile(results_path, problem, budget)
    wanted = [(name, seed) for name in made for seed in range(seeds)]
    for index, (name, seed) in enumerate(wanted):
        if progress is not None:
            progress(index / len(wanted), f"{name}, seed {seed}")
        if (name, seed) not in store.runs:
            evaluator = Evaluator(problem, budget, measure=measure)
            store.add(_run(made[name], name, seed, problem, evaluator))
    runs = tuple(store.runs[key] for key in wanted)
    best = min(run.value for run in store.runs.values())
    return ComparisonTable(problem.time_unit, runs, best)


def made_placers(
    names: Sequence[str], seeds: int, settings: Mapping[str, Mapping[str, str]] | None = None
) -> dict[str, Any]:
    """Placers by the names of `compare`; a wrong one is found before any long work.

    Raises:
        UnknownNameError: there is no such placer.
        InputError: no placer or seed is asked for, or a setting is wrong.
        MissingExtraError: a package that a placer needs is not installed.
    """
    if not names or seeds < 1:
        raise InputError(f"compare needs placers and seeds >= 1, got {list(names)} and {seeds}")
    return {name: named_placer(name, (settings or {}).get(name, {})) for name in names}


def named_placer(name: str, settings: Mapping[str, str]) -> Any:
    """The placer behind ``NAME:key=value:...``, with further settings as text."""
    base, *pairs = name.split(":")
    if base not in REGISTRY and pairs and is_path(f"{base}:{pairs[0]}"):  # package.module:Class
        base = f"{base}:{pairs.pop(0)}"
    values = dict(settings)
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"placer '{name}': expected NAME:key=value, got '{pair}'")
        values[key] = value
    return make_placer(base, values)


def _run(placer: Any, name: str, seed: int, problem: Problem, evaluator: Evaluator) -> Run:
    start = time.process_time()
    solution = placer.place(problem, evaluator, np.random.default_rng(seed))
    return Run(
        placer=name,
        seed=seed,
        value=solution.value,
        evaluations=solution.evaluations,
        seconds=time.process_time() - start,
        history=tuple((point.evaluations, point.value) for point in solution.history),
        message=solution.message,
    )
