"""Several placers on one problem: same evaluator, same budget, several seeds, results on disk.

Also the Pareto front of latency and energy: placements that no other one beats in both.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from placewright.core.charges import amount_text, require_known
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import FieldError, FileFormatError, InfeasibleError, InputError
from placewright.files.problem_file import content_sha256
from placewright.io.json_text import finite, read_json_object
from placewright.io.written import locked_folder_of, write_text
from placewright.placers.bases import pass_interrupt_on
from placewright.placers.portfolio.auto import Auto
from placewright.placers.portfolio.kernels import make_ready, seconds_to_compile
from placewright.placers.registry import (
    REGISTRY,
    Placer,
    is_path,
    make_placer,
    resolved_settings,
    solution_by,
    tell_of_mended,
    why_not,
)
from placewright.report.comparison_table import FORMAT, ComparisonTable, Run
from placewright.report.time_left import KERNELS, Report, no_report, rough_duration
from placewright.session.request import EVALUATORS, Request
from placewright.session.search import search
from placewright.simulation.bounds.lower import lower_bound
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.workers.interface import ThisProcess, Workers
from placewright.workers.tasks import Done, Shared, Task

_POLICY_HASH = "policy_sha256"


class ComparisonFile:
    """The runs on one problem with one budget and one evaluator.

    Args:
        path: JSON file, read now where it exists; None keeps the runs in memory only.
        evaluator: of all runs, one of `EVALUATORS`.

    Attributes:
        runs: (placer, seed) -> run.
        bound: a lower bound of the problem and its method; None before it was computed.

    Raises:
        FileFormatError: the file is damaged or of another format.
        InputError: it belongs to another problem, budget or evaluator.
    """

    def __init__(
        self, path: str | Path | None, problem: Problem, budget: Budget, evaluator: str
    ) -> None:
        self.runs: dict[tuple[str, int], Run] = {}
        self.bound: tuple[float, str] | None = None
        self._settings: dict[str, Any] = {}  # in the file, also of placers that are not here
        self._path = None if path is None else Path(path)
        self._unit = problem.value_unit
        key = {
            "problem": content_sha256(problem),
            "evaluations": budget.evaluations,
            "budget_seconds": budget.seconds,
            "budget_core_seconds": budget.core_seconds,
            "evaluator": evaluator,
        }
        self._key = finite(key)  # as the file has it
        if self._path is not None and self._path.exists():
            self.runs, self.bound = self._stored(self._path)

    def _stored(self, path: Path) -> tuple[dict[tuple[str, int], Run], tuple[float, str] | None]:
        """The runs and the bound of the file.

        Raises:
            FileFormatError: the file is damaged or of another format.
            InputError: it belongs to another problem, budget or evaluator.
        """
        document = _read(path)
        document.setdefault("evaluator", EVALUATORS[0])  # of files without it
        if {name: document.get(name) for name in self._key} != self._key:
            raise InputError(
                f"'{path}' holds results of another problem or budget, or of another "
                "evaluator; give another file"
            )
        settings = document.get("settings", {})
        if not (isinstance(settings, dict) and all(isinstance(s, dict) for s in settings.values())):
            raise FileFormatError(f"results '{path}' are damaged: settings are no objects")
        self._settings |= settings
        return _content(path, document)

    def require_settings(self, names: Iterable[str]) -> None:
        """Refuse placers whose runs in the file had other settings, or another policy.

        Raises:
            InputError: a default, or the file of a policy, has changed.
        """
        for name in dict.fromkeys(names):
            stored = self._settings.get(name)
            now = {} if stored is None else finite(_settings_now(name))
            if stored is not None and _POLICY_HASH not in stored:  # of files of earlier versions
                now.pop(_POLICY_HASH, None)
            if stored not in (None, now):
                raise InputError(
                    f"'{self._path}' holds runs of '{name}' with other settings or another "
                    "policy; give another file"
                )

    def add(self, run: Run) -> None:
        """Add a run and write all runs, also those that another process has written since.

        Raises:
            InputError: another process has written results of something else to the file, or runs
                of the placer with other settings.
        """
        self.runs[run.placer, run.seed] = run
        if self._path is None:
            return
        with locked_folder_of(self._path):
            if self._path.is_file():
                stored, bound = self._stored(self._path)
                self.require_settings([run.placer])
                self.runs = {**self.runs, **stored, (run.placer, run.seed): run}
                self.bound = self.bound or bound
            table = self.table(tuple(self.runs.values()))
            written = {} if self.bound is None else {"computed_bound": list(self.bound)}
            write_text(self._path, _text({**self._key, **written, **table.data()}))

    def table(self, runs: tuple[Run, ...]) -> ComparisonTable:
        """The table of some of the runs, with the best value and the best bound of all."""
        bound, method = self.bound or (0.0, "")
        best = max(self.runs.values(), key=lambda run: run.lower_bound)
        if best.lower_bound > bound:
            bound, method = best.lower_bound, f"proven by {best.placer}"
        return ComparisonTable(
            self._unit,
            runs,
            min(run.value for run in self.runs.values()),
            {
                name: self._settings[name] if name in self._settings else _settings_now(name)
                for name in dict.fromkeys(run.placer for run in runs)
            },
            bound,
            method,
        )


def settings_by_placer(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """All hyperparameters of placers that are given as ``NAME:key=value:...``, by that text."""
    return {name: resolved_settings(named_placer(name, {})) for name in dict.fromkeys(names)}


def _settings_now(name: str) -> dict[str, Any]:
    """Hyperparameters of a placer; a policy also has a hash of its file, which may change."""
    values = settings_by_placer([name])[name]
    policy = values.get("policy")
    if isinstance(policy, str) and policy:
        with suppress(OSError):
            values[_POLICY_HASH] = hashlib.sha256(Path(policy).read_bytes()).hexdigest()[:16]
    return values


def _read(path: Path) -> dict[str, Any]:
    document = read_json_object(path)
    if document.get("format") != FORMAT:
        raise FileFormatError(
            f"results '{path}' have format {document.get('format')!r}, expected '{FORMAT}'"
        )
    return document


def _content(
    path: Path, document: Mapping[str, Any]
) -> tuple[dict[tuple[str, int], Run], tuple[float, str] | None]:
    """The runs and the bound in a results file.

    Raises:
        FileFormatError: it is damaged.
    """
    try:
        runs = [_run_from(entry) for entry in document["runs"]]
        bound = None
        if "computed_bound" in document:
            value, method = document["computed_bound"]
            bound = _value_from(value), str(method)
        return {(run.placer, run.seed): run for run in runs}, bound
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise FileFormatError(f"results '{path}' are damaged: {error}") from error


def _value_from(value: Any) -> float:
    return math.inf if value is None else float(value)


def _run_from(entry: Mapping[str, Any]) -> Run:
    history = tuple((int(n), _value_from(v)) for n, v in entry["history"])
    numbers = {
        name: _value_from(entry[name]) for name in ("seconds", "lower_bound") if name in entry
    }
    counts = {name: int(entry[name]) for name in ("seed", "evaluations")}
    value = _value_from(entry["value"])
    return Run(**{**entry, **numbers, **counts, "value": value, "history": history})


def _text(document: Mapping[str, Any]) -> str:
    """JSON with one row and one run per line."""
    lines = []
    for name, value in document.items():
        if isinstance(value, list) and value:
            entries = ",\n  ".join(json.dumps(finite(entry)) for entry in value)
            lines.append(f" {json.dumps(name)}: [\n  {entries}\n ]")
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(finite(value))}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def compare(
    problem: Problem,
    placers: Sequence[str],
    seeds: int,
    budget: Budget,
    *,
    measure: Callable[[Placement], float] | None = None,
    progress: Report | None = None,
    results_path: str | Path | None = None,
    workers: Workers | None = None,
) -> ComparisonTable:
    """Run every placer with seeds 0 .. seeds - 1 under one evaluator and one budget.

    Args:
        problem: to place.
        placers: registry names; ``name:key=value:...`` sets hyperparameters of that one.
        seeds: runs per placer.
        budget: of every single run; all queries count, intermediate ones too.
        measure: seconds of a placement on hardware; None simulates.
        progress: is called with the fraction done and what is running.
        results_path: results are kept here after every run, and runs found here are not repeated.
        workers: that do the runs, which simulate; None is this process.

    Raises:
        UnknownNameError: there is no such placer.
        InputError: no placer or seed is asked for, a placer does not support the problem, or the
            results file belongs to another problem, budget or evaluator, or has runs with other
            settings.
    """
    for name, placer in made_placers(placers, seeds).items():
        reason = why_not(placer, problem)
        if reason is not None:
            raise InputError(f"placer '{name}' cannot place this problem: {reason}")
    evaluator = EVALUATORS[0 if measure is None else 1]
    store = ComparisonFile(results_path, problem, budget, evaluator)
    store.require_settings(placers)
    names = tuple(dict.fromkeys(placers))
    # All placers with one seed, then with the next: soon there is a pace of each.
    missing = [(n, seed) for seed in range(seeds) for n in names if (n, seed) not in store.runs]
    report = progress or no_report
    if missing and seconds_to_compile(problem.objective, problem.execution_model) != 0.0:
        # They are not the pace of a run. Other kernels, as of most exact methods, are compiled in
        # their first run.
        report(0.0, KERNELS)
        make_ready(problem.objective, problem.execution_model)
    shown = _ComparisonProgress(report, missing, budget)
    shared = Shared(problem)
    if store.bound is None and measure is None:
        shown.report("lower bound")
        store.bound = _bound(problem, budget)

    def tasks() -> Iterator[Task]:
        for name, seed in missing:
            shown.begins(name, seed)
            yield Task(_run, (name, seed, budget, measure), shared, _label(name, seed))

    takers = workers or ThisProcess()
    for done in takers.run(tasks()):
        store.add(done.result)
        shown.ended(done, takers.count)
    return store.table(tuple(store.runs[name, seed] for name in names for seed in range(seeds)))


def _bound(problem: Problem, budget: Budget) -> tuple[float, str]:
    """A lower bound within the seconds of one run, and its method; without seconds, to the end."""
    found = lower_bound(problem, budget.least_seconds)
    return found.value, found.method


def _label(name: str, seed: int) -> str:
    return f"{name}, seed {seed}"


class _ComparisonProgress:
    """Reports the progress of a comparison, with the time left by the pace of each placer so far.

    Args:
        missing: placer and seed of each run that is not stored.
        budget: of every run; its seconds are the pace of placers that have not run yet.
        clock: seconds.
    """

    def __init__(
        self,
        progress: Report,
        missing: Sequence[tuple[str, int]],
        budget: Budget,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress, self._budget, self._clock = progress, budget, clock
        self._count, self._at_once = max(1, len(missing)), 1
        self._open = {_label(name, seed): name for name, seed in missing}
        self._began: dict[str, float] = {}
        self._seconds: dict[str, list[float]] = {}

    def report(self, what: str) -> None:
        """Report a step, with the time left."""
        self._progress(1.0 - len(self._open) / self._count, f"{what}, {self._left()}")

    def begins(self, name: str, seed: int) -> None:
        """A run was given to a worker."""
        self._began[_label(name, seed)] = self._clock()
        self.report(_label(name, seed))

    def ended(self, done: Done, at_once: int) -> None:
        """A run has ended; the report names the worker if it is another process."""
        label, self._at_once = done.task.label, max(1, at_once)
        name = self._open.pop(label)
        self._seconds.setdefault(name, []).append(self._clock() - self._began[label])
        if done.worker:
            self.report(f"{label}, by worker {done.worker}")

    def _left(self) -> str:
        """The time left; placers of an unknown pace are named instead."""
        now, seconds, unknown = self._clock(), 0.0, []
        for label, name in self._open.items():
            pace = self._budget.seconds
            if name in self._seconds:
                pace = statistics.median(self._seconds[name])
            if pace is None:
                unknown.append(name)
            else:
                seconds += max(0.0, pace - (now - self._began.get(label, now)))
        seconds /= self._at_once
        if not unknown:
            return f"about {rough_duration(seconds)} left"
        if seconds == 0:
            return "time left unknown"
        which = ", ".join(dict.fromkeys(unknown))
        return f"about {rough_duration(seconds)} left, without {which}"


def made_placers(names: Sequence[str], seeds: int) -> dict[str, Any]:
    """Make the placers of `compare` by name, before any long work.

    Raises:
        UnknownNameError: there is no such placer.
        InputError: no placer or seed is asked for, or a setting is wrong.
        MissingExtraError: a package that a placer needs is not installed.
    """
    if not names:
        raise FieldError("placers", "names no placer; give one or several")
    if seeds < 1:
        raise FieldError("seeds", f"expects a whole number >= 1, got {seeds}")
    placers = {name: named_placer(name, {}) for name in names}
    for placer in placers.values():
        tell_of_mended(placer.name)
    return placers


def named_placer(name: str, settings: Mapping[str, str]) -> Placer:
    """Make the placer of ``NAME:key=value:...``, with further settings as text."""
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


def _run(
    problem: Problem,
    name: str,
    seed: int,
    budget: Budget,
    measure: Callable[[Placement], float] | None,
) -> Run:
    if budget.is_timed:  # else a worker's first run would pay for the kernels that runs share
        make_ready(problem.objective, problem.execution_model)
    placer, evaluator = named_placer(name, {}), Evaluator(problem, budget, measure=measure)
    start = time.process_time()
    solution = pass_interrupt_on(solution_by(placer, problem, evaluator, seed))
    return Run(
        placer=name,
        seed=seed,
        value=solution.value,
        evaluations=solution.evaluations,
        seconds=time.process_time() - start,
        history=tuple((point.evaluations, point.value) for point in solution.history),
        message=solution.message,
        lower_bound=0.0 if measure is not None else solution.lower_bound,
    )


@dataclass(frozen=True, eq=False)
class ParetoPoint:
    """One placement of a front."""

    placement: Placement  # of the problem's units
    latency: float  # in seconds
    energy: float  # in joules
    # energy / lower bound - 1 among placements of at most the latency that was asked for; inf if
    # the placement is that of least latency
    gap: float
    units: dict[str, int]  # device -> number of its units


FRONT_COLUMNS = ("latency", "energy", "above bound", "units")


def front_rows(front: Sequence[ParetoPoint]) -> tuple[tuple[str, ...], ...]:
    """A row of text for each point, with `FRONT_COLUMNS`."""
    return tuple(
        (
            amount_text(point.latency, "latency"),
            amount_text(point.energy, "energy"),
            f"{point.gap:.1%}" if math.isfinite(point.gap) else "-",
            ", ".join(f"{name} {count}" for name, count in point.units.items() if count),
        )
        for point in front
    )


def front_data(front: Sequence[ParetoPoint]) -> list[dict[str, Any]]:
    """The points as a JSON document: seconds, joules, units of each device."""
    return [
        {"latency": point.latency, "energy": point.energy, "gap": finite(point.gap),
         "units": point.units}
        for point in front
    ]  # fmt: skip


def pareto_front(
    problem: Problem,
    budget: Budget,
    *,
    points: int = 5,
    seed: int = 0,
    report: Report = no_report,
) -> tuple[ParetoPoint, ...]:
    """Search for placements of little latency and energy.

    The first search minimises latency, the second energy. Each further one minimises energy below a
    limit on latency between those of the first two.

    Args:
        problem: under an execution model of one sample; its own limits hold for all points.
        points: number of searches, >= 2.

    Returns:
        The points that no other point beats, least latency first.

    Raises:
        FieldError: `points` is below 2, or a device has no power.
        InfeasibleError: no placement was found.
    """
    whole = charged_by_energy(problem, points)
    report(0.0, "least latency")
    first = _found(replace(problem, objective="latency"), budget, seed, None)
    report(1.0 / points, "least energy")
    last = _found(whole, budget, seed, first.placement)
    found = [first, last]
    for number, latency in enumerate(_between(first.latency, last.latency, points - 2)):
        report((2.0 + number) / points, f"latency {latency:.3g} s at most")
        most = min(latency, problem.limits.get("latency", latency))
        limited = replace(whole, limits={**problem.limits, "latency": most})
        found.append(_found(limited, budget, seed, first.placement))
    return tuple(_undominated(found))


def require_front(request: Request, points: int) -> None:
    """Refuse a front as far as its request tells, before anything is read or measured.

    Raises:
        FieldError: `points` is below 2, or values are measured or not of one sample.
    """
    if request.evaluator == "measured":
        raise FieldError("pareto", "is of predicted values; leave out evaluator measured")
    _require_searches(request.objective, points)


def _require_searches(objective: str | None, points: int) -> None:
    if points < 2:
        raise FieldError("pareto", f"needs at least 2 searches, got {points}")
    if objective in ("throughput", "training"):
        raise FieldError("pareto", f"is of one sample: objective {objective} has no front")


def charged_by_energy(problem: Problem, points: int) -> Problem:
    """The problem with energy as its objective, for a front with so many searches.

    Raises:
        FieldError: `points` is below 2, a device has no power, or a sample has no energy here.
    """
    _require_searches(problem.objective, points)
    if not problem.counts("energy"):
        require_known(problem.cluster, "energy")
    return replace(problem, objective="energy")


def _between(shortest: float, longest: float, count: int) -> Iterator[float]:
    """Latencies with equal ratios between two; none if the two are about equal."""
    if longest > shortest * 1.001:
        yield from np.geomspace(shortest, longest, count + 2)[1:-1].tolist()


def _found(problem: Problem, budget: Budget, seed: int, start: Placement | None) -> ParetoPoint:
    row = None if start is None else start.device_of
    solution = search(problem, Auto(), budget, seed=seed, start=row)
    if solution.placement is None:
        raise InfeasibleError(f"none was found: {solution.message or 'the budget ended first'}")
    amounts = Simulator(problem).amounts(solution.placement)
    counts = np.bincount(solution.placement.device_of, minlength=problem.n_devices).tolist()
    return ParetoPoint(
        solution.placement,
        amounts["latency"],
        amounts["energy"],
        solution.gap if problem.objective == "energy" else float("inf"),
        dict(zip(problem.cluster.device_names, counts, strict=True)),
    )


def _undominated(points: list[ParetoPoint]) -> Iterator[ParetoPoint]:
    """Points that no other one beats or equals, least latency first."""
    least = float("inf")
    for point in sorted(points, key=lambda other: (other.latency, other.energy)):
        if point.energy < least:
            least = point.energy
            yield point
