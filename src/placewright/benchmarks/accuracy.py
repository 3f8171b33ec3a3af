"""Predicted against measured latency: how true is the simulator to this machine?

Three thirds of placements, none of which calibration has seen: random ones, what heuristics find,
and placements within 20 % of the best known. Every measurement is a ratio to the unsplit model on
the first device in the same loop, so that drift of the machine cancels.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import FileFormatError
from placewright.files.problem_file import problem_text, text_sha256
from placewright.files.text import write_text
from placewright.placers.registry import make_placer
from placewright.profiling.calibration import wandering_placement
from placewright.profiling.hardware import (
    placement_runner,
    warm_time,
    whole_model_runner,
)
from placewright.profiling.rounds import Rounds
from placewright.runtimes.base import LoadedModel
from placewright.runtimes.runner import ConcurrentRunner
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator

FORMAT = "placewright.accuracy/1"
KINDS = ("random", "heuristic", "near-best")
HEURISTICS = ("heft", "peft", "cpop", "m-topo", "m-etf", "even-split", "round-robin", "greedy")
_STICKINESS = (0.99, 0.97, 0.95, 0.9, 0.8, 0.6)
_SEARCH_EVALUATIONS = 3000
_NEAR = 1.2
_ROUNDS = 11
_IQR_OF_NORMAL = 1.349  # standard deviations between the quartiles
_MEDIAN_OF_NORMAL = 1.2533  # sqrt(pi / 2): standard error of a median over that of a mean
_CONFIDENT = 1.96  # standard errors that chance exceeds once in twenty


@dataclass(frozen=True)
class AccuracyRow:
    """One placement.

    Attributes:
        model: name of the model.
        kind: ``"random"``, ``"heuristic"`` or ``"near-best"``.
        origin: what made it.
        predicted: seconds by the simulator.
        measured: seconds: the median ratio to the reference times the reference's prediction.
        noise: of a single round: half of the distance between the quartiles of the ratio, in
            seconds.
        key: of placement and problem; a results file that has it is not measured again.
        rounds: of which `measured` is the median; files that do not say are taken to have the most.
    """

    model: str
    kind: str
    origin: str
    predicted: float
    measured: float
    noise: float
    key: str
    rounds: int = _ROUNDS

    @property
    def standard_error(self) -> float:
        """Of `measured`, seconds: how far repeating it would scatter, if rounds are normal."""
        deviation = 2.0 * self.noise / _IQR_OF_NORMAL
        return _MEDIAN_OF_NORMAL * deviation / math.sqrt(self.rounds)

    @property
    def error(self) -> float:
        """|predicted / measured - 1|."""
        return abs(self.predicted / self.measured - 1.0)


@dataclass(frozen=True)
class AccuracySummary:
    """Errors over some rows.

    Attributes:
        model, kind: of the rows; kind ``"all"`` is every third.
        placements: number of rows.
        median, p95: of the errors.
        tau: Kendall's rank correlation over pairs whose measured values differ by more than their
            noise: by 1.96 standard errors of the difference; NaN without such a pair.
    """

    model: str
    kind: str
    placements: int
    median: float
    p95: float
    tau: float


def run_accuracy_benchmark(
    name: str,
    problem: Problem,
    model: LoadedModel,
    placements: int = 30,
    *,
    seed: int = 0,
    rounds: int = _ROUNDS,
    results_path: Path | None = None,
    on_row: Callable[[AccuracyRow], None] = lambda row: None,
) -> list[AccuracyRow]:
    """Measure placements of one model.

    Args:
        name: of the model, for the rows.
        problem: calibrated, event execution model.
        model: as the runtime has read it.
        placements: in all, a third of each kind.
        seed: of every random choice.
        rounds: of each placement, each beside one of the reference, see `Rounds.of`.
        results_path: rows of a file that fit are kept; rows of other models stay in it.
        on_row: called with each row as it is there.

    Raises:
        FileFormatError: the results file is not one of this benchmark.
        RuntimeFailure: a placement cannot run.
    """
    known = [] if results_path is None else _read(results_path)
    by_key = {row.key: row for row in known}
    digest = text_sha256(problem_text(problem))
    simulator = Simulator(problem)
    reference_device = int(np.flatnonzero(np.isfinite(problem.costs.seconds).all(axis=0))[0])
    base = simulator.value(Placement.on_one_device(problem.n_units, reference_device))
    inputs = model.random_inputs(np.random.default_rng(seed))
    rows: list[AccuracyRow] = []
    chosen = _placements(problem, simulator, placements, np.random.default_rng(seed))
    device = problem.cluster.devices[reference_device]
    with whole_model_runner(model, device) as reference:
        reference.run(inputs)
        for kind, origin, placement in chosen:
            key = hashlib.sha256((digest + repr(_content(placement))).encode()).hexdigest()[:24]
            row = by_key.get(key)
            if row is None:
                with placement_runner(problem, placement, model) as runner:
                    runner.run(inputs)
                    ratios = _ratios(runner, reference, Rounds.of(base, rounds), base)
                row = _row(name, kind, origin, simulator.value(placement), ratios, base, key)
                known = [other for other in known if other.key != key] + [row]
                if results_path is not None:
                    _write(results_path, known)
            rows.append(row)
            on_row(row)
    return rows


def summaries(rows: Sequence[AccuracyRow]) -> list[AccuracySummary]:
    """Errors per model and third, and per model over all."""
    found = []
    for name in dict.fromkeys(row.model for row in rows):
        for kind in (*KINDS, "all"):
            part = [r for r in rows if r.model == name and kind in (r.kind, "all")]
            if part:
                errors = [row.error for row in part]
                median, p95 = float(np.median(errors)), float(np.percentile(errors, 95))
                found.append(AccuracySummary(name, kind, len(part), median, p95, _tau(part)))
    return found


def _ratios(
    runner: ConcurrentRunner, reference: ConcurrentRunner, rounds: Rounds, base: float
) -> list[float]:
    ratios: list[float] = []
    while rounds.want_more(ratios):
        ratios.append(warm_time(runner, base) / warm_time(reference, base))
    return ratios


def _row(
    name: str,
    kind: str,
    origin: str,
    predicted: float,
    ratios: list[float],
    base: float,
    key: str,
) -> AccuracyRow:
    low, median, high = (np.percentile(ratios, [25, 50, 75]) * base).tolist()
    return AccuracyRow(name, kind, origin, predicted, median, (high - low) / 2, key, len(ratios))


def _tau(rows: Sequence[AccuracyRow]) -> float:
    measured = np.array([row.measured for row in rows])
    predicted = np.array([row.predicted for row in rows])
    error = np.array([row.standard_error for row in rows])
    first, second = np.triu_indices(len(rows), 1)
    noise = _CONFIDENT * np.hypot(error[first], error[second])
    apart = np.abs(measured[first] - measured[second]) > noise
    if not apart.any():
        return float("nan")
    agree = np.sign(measured[first] - measured[second]) * np.sign(
        predicted[first] - predicted[second]
    )
    return float(agree[apart].mean())


def _placements(
    problem: Problem, simulator: Simulator, count: int, rng: np.random.Generator
) -> Iterator[tuple[str, str, Placement]]:
    """Distinct feasible placements, a third of each kind (the first third takes what is left)."""
    third = count // 3
    seen: set[tuple[int, ...]] = set()

    def fresh(placement: Placement) -> bool:
        content = tuple(placement.device_of.tolist())
        new = content not in seen and simulator.violation(placement) is None
        seen.add(content)
        return new

    sources: tuple[tuple[str, int, Iterator[tuple[str, Placement]]], ...] = (
        ("random", count - 2 * third, _random(problem, rng)),
        ("heuristic", third, _heuristic(problem, rng)),
        ("near-best", third, _near_best(problem, simulator, rng)),
    )
    for kind, wanted, source in sources:
        attempts = 0
        while wanted > 0 and attempts < 200 * count:  # a tiny problem has few placements
            origin, placement = next(source)
            attempts += 1
            if fresh(placement):
                wanted -= 1
                yield kind, origin, placement


def _random(problem: Problem, rng: np.random.Generator) -> Iterator[tuple[str, Placement]]:
    while True:
        for stickiness in _STICKINESS:
            device_of = wandering_placement(problem, rng, stickiness)
            yield f"wandering {stickiness}", Placement.of(device_of)


def _heuristic(problem: Problem, rng: np.random.Generator) -> Iterator[tuple[str, Placement]]:
    """What each heuristic finds, then the same with one run of units moved."""
    found = []
    for name in HEURISTICS:
        placer = make_placer(name)
        if placer.supports(problem):
            continue
        evaluator = Evaluator(problem, Budget(evaluations=_SEARCH_EVALUATIONS))
        placement = placer.place(problem, evaluator, rng).placement
        if placement is not None:
            found.append((name, placement))
            yield name, placement
    while found:
        for name, placement in found:
            yield f"{name}, moved", Placement.of(_moved(problem, placement.device_of, rng))
    yield from _random(problem, rng)


def _near_best(
    problem: Problem, simulator: Simulator, rng: np.random.Generator
) -> Iterator[tuple[str, Placement]]:
    """The best that local search finds, then placements some moves away from it."""
    evaluator = Evaluator(problem, Budget(evaluations=_SEARCH_EVALUATIONS))
    best = make_placer("local-search").place(problem, evaluator, rng).placement
    if best is None:
        return
    limit = _NEAR * simulator.value(best)
    yield "local-search", best
    current = best.device_of
    while True:
        moved = _moved(problem, current, rng)
        if simulator.value(Placement.of(moved)) <= limit:
            current = moved
            yield "near local-search", Placement.of(moved)
        else:
            current = best.device_of
            yield "local-search", best


def _moved(problem: Problem, device_of: IntArray, rng: np.random.Generator) -> IntArray:
    """A run of units in topological order moved to one device, where they are allowed."""
    order = problem.unit_graph.topological_order
    start, length = int(rng.integers(len(order))), int(rng.integers(1, 9))
    device = int(rng.integers(problem.n_devices))
    moved = np.array(device_of)
    for unit in order[start : start + length].tolist():
        group = problem.colocation.group_of == problem.colocation.group_of[unit]
        if problem.allowed[group, device].all():
            moved[group] = device
    return moved


def _content(placement: Placement) -> tuple[list[int], list[int] | None]:
    order = placement.order
    return placement.device_of.tolist(), None if order is None else order.tolist()


def _read(path: Path) -> list[AccuracyRow]:
    if not path.exists():
        return []
    try:
        document = json.loads(path.read_text())
        if document["format"] != FORMAT:
            raise ValueError(f"format is {document['format']!r}")
        return [AccuracyRow(**row) for row in document["rows"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"'{path}' is no results file of this benchmark: {error}") from None


def _write(path: Path, rows: Sequence[AccuracyRow]) -> None:
    document = {"format": FORMAT, "rows": [asdict(row) for row in rows]}
    write_text(path, json.dumps(document, indent=1) + "\n")
