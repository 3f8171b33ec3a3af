"""Milliseconds of a call of a loaded plan and of the plain compiled model, in one loop."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.command import Models, Results, run
from placewright.cli import options as opt
from placewright.cli.command import command
from placewright.cli.output import print_json, print_line, print_note
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.execution.processor import processor_text
from placewright.files.results import read_rows, write_rows
from placewright.session.loaded.plans import LoadedPlan
from placewright.session.plans import plan_of
from placewright.session.request import Request
from placewright.session.session import Session
from placewright.session.session import run as run_plan

FORMAT = "placewright.serving/1"
PIECES = 4
_RECORD = PlacerRecord("benchmarks.serving", "1", 0, 0, 0.0)


@dataclass(frozen=True)
class ServingRow:
    """Medians of a model in a runtime, in milliseconds except counts.

    Attributes:
        model, runtime: names.
        rounds: of the loop in which contenders take turns.
        plain: a call of the compiled model through the library, on one core.
        unsplit: a call of a loaded plan with the whole model on that core.
        unsplit_above: median over rounds of `unsplit` - `plain`.
        split: a call of a loaded plan that alternates between two cores.
        cuts: number of tensors that cross between the cores in a call.
        copies: a copy of the bytes of these tensors.
        split_above_per_cut: (`split` - `unsplit` - `copies`) / `cuts`, by round.
        kept_run: a call of `pw.run`, which keeps the unsplit plan loaded.
        machine: name of the processor.
    """

    model: str
    runtime: str
    rounds: int
    plain: float
    unsplit: float
    unsplit_above: float
    split: float
    cuts: int
    copies: float
    split_above_per_cut: float
    kept_run: float
    machine: str


def serving_row(name: str, session: Session, rounds: int) -> ServingRow:
    """Measure a model, every contender once in each round.

    Args:
        name: of the model.
        session: with two devices.
        rounds: at least 1, after ten rounds that do not count.
    """
    problem, model = session.problem, session.loaded
    inputs = model.random_inputs(np.random.default_rng(0))
    alone = Placement.on_one_device(problem.n_units, 0)
    apart = _alternating(problem)
    crossing = _crossing(problem, apart)
    plans = [_plan(session, placement) for placement in (alone, apart)]
    plain = model.plain(problem.cluster.devices[0])
    sources = [np.zeros(max(1, size), np.uint8) for size in crossing]
    targets = [np.empty_like(source) for source in sources]

    def copy() -> None:
        for source, target in zip(sources, targets, strict=True):
            np.copyto(target, source)

    with LoadedPlan(plans[0], model) as unsplit, LoadedPlan(plans[1], model) as split:
        contenders: list[Callable[[], Any]] = [
            lambda: plain(inputs),
            lambda: unsplit.run(inputs),
            lambda: split.run(inputs),
            copy,
            lambda: run_plan(plans[0], inputs),
        ]
        seconds = 1e3 * _rounds(contenders, rounds)
    one, two, three, copies, kept = seconds.T
    cuts = max(1, len(crossing))
    return ServingRow(
        name,
        str(session.request.runtime),
        rounds,
        plain=statistics.median(one),
        unsplit=statistics.median(two),
        unsplit_above=statistics.median(two - one),
        split=statistics.median(three),
        cuts=len(crossing),
        copies=statistics.median(copies),
        split_above_per_cut=statistics.median((three - two - copies) / cuts),
        kept_run=statistics.median(kept),
        machine=processor_text(),
    )


def _plan(session: Session, placement: Placement) -> Plan:
    found = Solution(placement, 0.0, "feasible", 0.0)
    return plan_of(session.problem, found, _RECORD, str(session.request.runtime))


def _alternating(problem: Problem) -> Placement:
    """Runs of units in topological order, alternately on the two devices."""
    position = np.empty(problem.n_units, dtype=np.int64)
    position[problem.unit_graph.topological_order] = np.arange(problem.n_units)
    return Placement.of(position * PIECES // problem.n_units % 2)


def _crossing(problem: Problem, placement: Placement) -> list[int]:
    """Bytes of each tensor that enters a segment of the other device."""
    graph, device_of = problem.unit_graph, placement.device_of
    sizes = []
    for tensor, producer in enumerate(graph.tensor_producers.tolist()):
        readers = graph.tensor_consumers.row(tensor)
        if producer >= 0 and np.any(device_of[readers] != device_of[producer]):
            sizes.append(int(graph.tensor_bytes[tensor]))
    return sizes


def _rounds(contenders: list[Callable[[], Any]], rounds: int) -> np.ndarray[Any, Any]:
    """Seconds, shape (rounds, contenders).

    An untimed call goes first, so that the timed call finds the processor's caches as the same
    contender left them. Some contenders share weights, and others have weights of their own.
    """
    found = np.empty((rounds + 10, len(contenders)))
    for row in found:
        for at, call in enumerate(contenders):
            call()
            start = time.perf_counter()
            call()
            row[at] = time.perf_counter() - start
    return found[10:]


@command("runtime", model=None)
def serving(
    request: Request,
    models: Models = ("zoo:rnnlm/tiny,zoo:resnet50/tiny"),
    rounds: Annotated[int, typer.Option(min=1, help="In which all contenders take turns.")] = 400,
    results: Results = Path("serving.json"),
    as_json: opt.Json = False,
) -> None:
    """Time calls of loaded plans and of the plain compiled model in one loop."""
    from dataclasses import replace

    from placewright.session.devices import devices_by_runtime
    from placewright.session.parsing import parse_names

    names = [request.runtime] if request.runtime else list(devices_by_runtime()[0])
    known = read_rows(results, FORMAT, ServingRow) if results.exists() else []
    rows = []
    for model in parse_names(models):
        for runtime in names:
            asked = replace(request, runtime=runtime, devices="cpu:0,cpu:1", quick=True)
            session = Session(asked, model=model, calibrate=False)
            if session.problem.n_units < PIECES:
                print_note(f"{model} {runtime}: left out, it has {session.problem.n_units} units")
                continue
            row = serving_row(model, session, rounds)
            rows.append(row)
            print_note(f"{model} {runtime}: done")
    again = {(row.model, row.runtime) for row in rows}
    kept = [row for row in known if (row.model, row.runtime) not in again]
    write_rows(results, FORMAT, [*kept, *rows])
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    for row in rows:
        print_line(
            f"{row.model} {row.runtime}: plain {row.plain:.3f} ms, unsplit plan "
            f"{row.unsplit:.3f} ms ({row.unsplit_above:+.3f}), split {row.split:.3f} ms, "
            f"{row.split_above_per_cut:+.3f} ms for each of {row.cuts} cuts, "
            f"pw.run {row.kept_run:.3f} ms"
        )


if __name__ == "__main__":
    run(serving)
