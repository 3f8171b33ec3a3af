"""Predicted and measured latency of placements that calibration has not seen.

A third of the placements is random, a third comes from heuristics, and a third is within 20 % of
the best known. Every measurement is a ratio to the unsplit model on the first device in the same
loop, so that drift of the machine cancels. Load of other users on one core does not cancel, but
mostly passes within a minute. So each placement is measured in three visits, minutes apart, and the
median visit counts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import tables
from benchmarks.accuracy_report import VISITS, AccuracyRow
from benchmarks.accuracy_streams import (
    REPLICATED,
    StreamMeasurement,
    is_streamed,
)
from benchmarks.command import Plot, Results, run
from placewright.cli import options as opt
from placewright.cli.command import command
from placewright.cli.output import print_json, print_note, print_shown
from placewright.core.arrays import IntArray
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.execution.placements import call_runner, whole_call_runner
from placewright.execution.runtime import LoadedModel
from placewright.files.problem_file import problem_text, text_sha256
from placewright.files.results import read_rows, write_rows
from placewright.placers.bases import pass_interrupt_on
from placewright.placers.registry import make_placer
from placewright.profiling.evidence import wandering_placement
from placewright.profiling.hardware import warm_time
from placewright.profiling.measure import Rounds
from placewright.report.time_left import Counted
from placewright.session.request import Request
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.simulation.serving import served_seconds

FORMAT = "placewright.accuracy/1"
HEURISTICS = ("heft", "peft", "cpop", "m-topo", "m-etf", "even-split", "round-robin", "greedy")
_STICKINESS = (0.99, 0.97, 0.95, 0.9, 0.8, 0.6)
_SEARCH_EVALUATIONS = 3000
_NEAR = 1.2
_ROUNDS = 5  # of each visit

_Chosen = tuple[str, str, Placement]  # its kind and what made it


def run_accuracy_benchmark(
    name: str,
    problem: Problem,
    model: LoadedModel,
    placements: int = 30,
    *,
    seed: int = 0,
    results_path: Path | None = None,
    on_row: Callable[[AccuracyRow], None] = lambda row: None,
    on_ahead: Callable[[int], None] = lambda number: None,
) -> list[AccuracyRow]:
    """Measure placements of one model.

    Args:
        name: of the model, for the rows.
        problem: calibrated; with the objective throughput, the seconds per sample of streams are
            measured, also of the replicated plan if all devices are equal.
        model: loaded by the runtime.
        placements: total number, a third of each kind.
        seed: of every random choice.
        results_path: matching rows of the file are kept; rows of other models stay in it.
        on_row: called with each row after each visit.
        on_ahead: called with the number of visits, before the first.

    Raises:
        FileFormatError: the results file is not one of this benchmark.
        RuntimeFailure: a placement cannot run.
    """
    simulator, digest = Simulator(problem), text_sha256(problem_text(problem))
    known = {} if results_path is None else {row.key: row for row in read_accuracy(results_path)}
    keys = []
    chosen = list(_placements(problem, simulator, placements, np.random.default_rng(seed)))
    with _measurement(problem, model, seed) as made:
        if isinstance(made, StreamMeasurement) and made.replicated is not None:
            chosen.append((REPLICATED, "the model on all devices in turn", made.replicated))
        for kind, origin, placement in chosen:
            content = digest + repr(_content(placement)) + (kind if kind == REPLICATED else "")
            key = hashlib.sha256(content.encode()).hexdigest()[:24]
            keys.append(key)
            if key not in known:
                value = made.predicted(kind, placement)
                known[key] = AccuracyRow(name, kind, origin, value, math.nan, 0.0, key, 0, (), 0)
        on_ahead(sum(VISITS - known[key].n_visits for key in keys))
        for visit in range(VISITS):
            for key, (kind, _, placement) in zip(keys, chosen, strict=True):
                if known[key].n_visits <= visit:
                    ratios = made.ratios(kind, placement)
                    known[key] = known[key].visited(ratios, made.base)
                    if results_path is not None:
                        begun = [row for row in known.values() if row.n_visits]
                        write_rows(results_path, FORMAT, begun)
                    on_row(known[key])
    return [known[key] for key in keys]


def _measurement(
    problem: Problem, model: LoadedModel, seed: int
) -> _Measurement | StreamMeasurement:
    if is_streamed(problem):
        return StreamMeasurement(problem, model)
    return _Measurement(problem, model, seed)


class _Measurement:
    """Times of placements relative to the unsplit model on the first device that can hold it."""

    def __init__(self, problem: Problem, model: LoadedModel, seed: int) -> None:
        self._problem, self._model = problem, model
        device = int(np.flatnonzero(np.isfinite(problem.costs.seconds).all(axis=0))[0])
        whole = Placement.on_one_device(problem.n_units, device)
        self.base = served_seconds(problem, whole)
        self._inputs = model.random_inputs(np.random.default_rng(seed))
        self._reference = whole_call_runner(model, problem.cluster.devices[device])

    def __enter__(self) -> _Measurement:
        return self

    def __exit__(self, *_: object) -> None:
        self._reference.close()

    def predicted(self, kind: str, placement: Placement) -> float:
        """Predicted seconds of a placement; all kinds belong to one problem."""
        return served_seconds(self._problem, placement)

    def ratios(self, kind: str, placement: Placement) -> list[float]:
        """Ratios of the placement's seconds to the reference's, one for each round of a visit."""
        rounds = Rounds.of(VISITS * self.base, _ROUNDS)  # whose limit is for all visits together
        ratios: list[float] = []
        with call_runner(self._problem, placement, self._model) as runner:
            self._reference.run(self._inputs)
            runner.run(self._inputs)
            while rounds.want_more(ratios):
                mine = warm_time(runner, self.base)
                ratios.append(mine / warm_time(self._reference, self.base))
        return ratios


def _placements(
    problem: Problem, simulator: Simulator, count: int, rng: np.random.Generator
) -> Iterator[_Chosen]:
    """Distinct feasible placements, a third of each kind; the remainder is random."""
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
    """The placement of each heuristic, then the same with a run of units moved."""
    found = []
    for name in HEURISTICS:
        placer = make_placer(name)
        if placer.why_not(problem) is not None:
            continue
        evaluator = Evaluator(problem, Budget(evaluations=_SEARCH_EVALUATIONS))
        placement = pass_interrupt_on(placer.place(problem, evaluator, rng)).placement
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
    """The best placement of local search, then placements some moves away from it."""
    evaluator = Evaluator(problem, Budget(evaluations=_SEARCH_EVALUATIONS))
    searched = make_placer("local-search").place(problem, evaluator, rng)
    best = pass_interrupt_on(searched).placement
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
    """Move a run of units in topological order to one device, if it may hold them."""
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


def read_accuracy(path: Path) -> list[AccuracyRow]:
    """Rows of a results file, as `files.results.read_rows`."""

    def made(visits: Sequence[float] = (), **fields: Any) -> AccuracyRow:
        return AccuracyRow(**fields, visits=tuple(visits))

    return read_rows(path, FORMAT, made)


@command("devices", "runtime", "objective", "seed", "remeasure", model=None, devices="cores")
def accuracy(
    request: Request,
    models: Annotated[
        str, typer.Option(help="Comma-separated models.")
    ] = "zoo:inception_v3,zoo:resnet50,zoo:bert_base",
    placements: Annotated[int, typer.Option(help="Measured placements of each model.")] = 30,
    results: Results = Path("accuracy.json"),
    plot: Plot = None,
    as_json: opt.Json = False,
) -> None:
    """Compare predicted and measured latency of random, heuristic and near-best placements."""
    from benchmarks.accuracy_report import VISITS, summaries
    from benchmarks.pictures import draw_accuracy
    from placewright.session.parsing import parse_names
    from placewright.session.session import Session
    from placewright.suites.suite.pictures import pyplot

    if plot is not None:
        pyplot()  # before the long work
    rows, counted = [], Counted()
    for name in parse_names(models):
        session = Session(request, model=name)
        rows += run_accuracy_benchmark(
            name,
            session.problem,
            session.loaded,
            placements,
            seed=request.seed,
            results_path=results,
            on_row=lambda row: print_note(
                counted.numbered(
                    f"{row.model} {row.origin}: {row.error:.1%} (visit {row.n_visits} of {VISITS})"
                )
            ),
            on_ahead=counted.ahead,
        )
    found = summaries(rows)
    if plot is not None:
        draw_accuracy(rows, plot)
    if as_json:
        print_json({"rows": [asdict(row) for row in rows], "summary": [asdict(s) for s in found]})
        return
    print_shown(tables.accuracy_table(found))


if __name__ == "__main__":
    run(accuracy)
