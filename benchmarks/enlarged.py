"""A recurrent layer that is larger than any device's memory, placed by every learner and run.

Mirhoseini et al. 2017 enlarge their RNNLM until a layer no longer fits one device. Here the layer's
four gate matrices have 134 MB together, and every device has less memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import typer

from benchmarks import tables
from benchmarks.command import ResultsIfAny, run, write_results
from placewright.cli import options as opt
from placewright.cli.command import command
from placewright.cli.output import print_json, print_shown, progress
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.execution.comparing import compare_outputs
from placewright.execution.runtime import LoadedModel
from placewright.placers.bases import pass_interrupt_on
from placewright.placers.registry import (
    make_placer,
    placers_that_learn,
    placers_that_take_a_policy,
)
from placewright.profiling.hardware import measured_values
from placewright.session.request import Request
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator

MODEL = "zoo:rnnlm/enlarged"
MEMORY = 100e6


@dataclass(frozen=True)
class EnlargedRow:
    """One learner's placement.

    Attributes:
        placer: registry name.
        value: predicted seconds; None if no placement fits.
        evaluations: number of queries.
        peaks: peak bytes of each device.
        fits: no device exceeds its memory.
        measured: seconds on this machine; None if it was not run.
        error: largest relative error of the outputs against the unsplit model.
        equal: the error is within the runtime's tolerance.
        core_seconds: of the search.
    """

    placer: str
    value: float | None
    evaluations: int
    peaks: tuple[float, ...] = ()
    fits: bool = False
    measured: float | None = None
    error: float | None = None
    equal: bool = False
    core_seconds: float = 0.0


def run_enlarged_benchmark(
    problem: Problem,
    model: LoadedModel | None,
    placers: Sequence[str] = (),
    evaluations: int = 300,
) -> Iterator[EnlargedRow]:
    """Place with every learner, and run the placements if there is a model.

    Args:
        problem: with its memory limits.
        model: loaded by a runtime; None only simulates.
        placers: registry names; by default all that learn or were trained.
        evaluations: of every run.
    """
    learned = dict.fromkeys([*placers_that_learn(), *placers_that_take_a_policy()])
    with nullcontext() if model is None else measured_values(problem, model) as measure:
        for name in placers or learned:
            yield _enlarged_row(problem, model, name, evaluations, measure)


def _enlarged_row(
    problem: Problem,
    model: LoadedModel | None,
    name: str,
    evaluations: int,
    measure: Callable[[Placement], float] | None,
) -> EnlargedRow:
    evaluator = Evaluator(problem, Budget(evaluations=evaluations))
    placer, rng = make_placer(name), np.random.default_rng(0)
    solution = pass_interrupt_on(placer.place(problem, evaluator, rng))
    if solution.placement is None:
        return EnlargedRow(name, None, solution.evaluations, core_seconds=solution.core_seconds)
    row = _simulated(name, problem, solution.placement, solution)
    if model is None or measure is None:
        return row
    found = compare_outputs(problem, solution.placement, model)
    ran = {"measured": measure(solution.placement), "error": found.error, "equal": found.equal}
    return EnlargedRow(**{**asdict(row), **ran})


def enlarged_document(problem: Problem, rows: Sequence[EnlargedRow]) -> str:
    """Rows as a JSON document."""
    memory = dict(
        zip(problem.cluster.device_names, problem.cluster.memory_bytes.tolist(), strict=True)
    )
    document = {
        "format": "placewright.enlarged/1",
        "model": MODEL,
        "memory": memory,
        "weights": float(problem.graph.weight_bytes.sum()),
        "largest_layer": layer_bytes(problem),
        "rows": [asdict(row) for row in rows],
    }
    return json.dumps(document, indent=1) + "\n"


def layer_bytes(problem: Problem) -> float:
    """Bytes of the equal, largest weights: the gate matrices of the recurrent layer."""
    sizes = np.sort(problem.graph.weight_bytes)
    return float(sizes[sizes == sizes[-1]].sum())


def _simulated(name: str, problem: Problem, placement: Placement, found: Solution) -> EnlargedRow:
    simulator = Simulator(problem)
    peaks = simulator.memory_peaks(placement)
    value = simulator.value(placement)
    fits = bool(math.isfinite(value) and np.all(peaks <= problem.cluster.memory_bytes))
    return EnlargedRow(
        name,
        value,
        found.evaluations,
        tuple(peaks.tolist()),
        fits,
        core_seconds=found.core_seconds,
    )


@command("devices", "runtime", model=None, devices="cpu:0,cpu:1")
def enlarged(
    request: Request,
    evaluations: Annotated[int, typer.Option(help="Evaluations of every run.")] = 300,
    results: ResultsIfAny = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Place and run a layer that is larger than any device's memory, with every learner."""
    from placewright.session.problems import constrained
    from placewright.session.session import Session

    with progress("enlarged", hidden=quiet or as_json) as report:
        session = Session(request, report, model=MODEL, calibrate=False)
        free = session.problem
    problem = constrained(free, dict.fromkeys(free.cluster.device_names, MEMORY), {})
    rows = list(run_enlarged_benchmark(problem, session.loaded, evaluations=evaluations))
    write_results(results, enlarged_document(problem, rows))
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        print_shown(tables.enlarged_table(rows, f"{MODEL}, {MEMORY / 1e6:.0f} MB a device"))
    if not all(row.fits and row.equal for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    run(enlarged)
