"""Check that splits of models return the outputs of each sample in every runtime."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks import tables
from benchmarks.command import ModelsOrZoo, ResultsIfAny, run
from placewright.cli import options as opt
from placewright.cli.command import command
from placewright.cli.output import print_json, print_note, print_shown
from placewright.core.cluster import Cluster
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import PlacewrightError, RuntimeFailure
from placewright.execution.output_check import OutputCheck
from placewright.execution.runtime import HostArray, LoadedModel
from placewright.files.results import ResultsFile
from placewright.profiling.evidence import wandering_placement
from placewright.profiling.stream_calibration import sample_error, stream_parts, stream_runner
from placewright.profiling.units import common_units
from placewright.report.time_left import Counted
from placewright.session.devices import discover
from placewright.session.models import load_model, runnable_source, runtime_named
from placewright.session.request import Request

FORMAT = "placewright.stream-equality/1"
_STICKINESS = 0.95


@dataclass(frozen=True)
class StreamEqualityRow:
    """A stream of a model.

    Attributes:
        model, runtime: names.
        version: of the runtime's library.
        samples: number of different samples.
        in_flight: limit of samples in flight.
        segments: of one sample.
        largest_error: over all outputs of all samples, relative to the output's largest magnitude.
        tolerance: of the precision.
        seed: of the split and of the samples.
        message: why it could not run; empty if it ran.
        under_way: most samples in flight at one time.
    """

    model: str
    runtime: str
    version: str
    samples: int
    in_flight: int
    segments: int
    largest_error: float
    tolerance: float
    seed: int
    message: str = ""
    under_way: int = 0

    @property
    def equal(self) -> bool:
        """Whether every sample has the outputs of the unsplit model, in order."""
        return not self.message and self.largest_error <= self.tolerance

    @property
    def kept(self) -> bool:
        """Whether the limit of samples in flight was kept."""
        return self.under_way <= self.in_flight

    @property
    def identity(self) -> tuple[object, ...]:
        """Model, runtime, version, samples, limit and seed."""
        return self.model, self.runtime, self.version, self.samples, self.in_flight, self.seed


def run_stream_equality(
    models: Sequence[str],
    runtimes: Sequence[str],
    *,
    samples: int = 200,
    in_flight: int = 3,
    seed: int = 0,
    results_path: Path | None = None,
    on_row: Callable[[StreamEqualityRow], None] = lambda row: None,
    on_ahead: Callable[[int], None] = lambda number: None,
) -> list[StreamEqualityRow]:
    """Stream samples through a random split of each model over all cores, in each runtime.

    Args:
        models: paths or zoo names.
        runtimes: names; the row of a model that a runtime cannot read has the reason.
        samples: of each stream, all different.
        in_flight: limit of samples in flight.
        seed: of splits and samples.
        results_path: rows of this file are not repeated.
        on_row: called with each new row.
        on_ahead: called with the number of new rows, before the first.
    """
    file = ResultsFile(
        results_path, FORMAT, StreamEqualityRow, lambda row: row.identity, missing=None
    )
    versions = {runtime: runtime_named(runtime).version for runtime in runtimes}
    asked = [
        StreamEqualityRow(
            name, runtime, versions[runtime], samples, in_flight, 0, float("nan"), 0.0, seed
        )
        for name in models
        for runtime in runtimes
    ]
    on_ahead(sum(empty.identity not in file.rows for empty in asked))
    found = []
    for empty in asked:
        row = file.rows.get(empty.identity)
        if row is None:
            row = _row(empty)
            file.add([row])
            on_row(row)
        found.append(row)
    return found


def _row(empty: StreamEqualityRow) -> StreamEqualityRow:
    try:
        problem, loaded = _problem(empty.model, empty.runtime)
        placement = Placement.of(
            wandering_placement(problem, np.random.default_rng(empty.seed), _STICKINESS)
        )
        error, spans = _streamed(problem, placement, loaded, empty)
    except PlacewrightError as failure:
        return replace(empty, largest_error=-1.0, message=str(failure))
    return replace(
        empty,
        segments=len(stream_parts(problem, placement)),
        largest_error=error,
        tolerance=loaded.tolerance(problem.cluster.devices),
        under_way=most_under_way(spans),
    )


def most_under_way(spans: Sequence[tuple[float, float]]) -> int:
    """Most intervals (begin, end) that overlap; at one instant, ends count before begins."""
    events = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    return max(itertools.accumulate(change for _, change in events), default=0)


def _problem(name: str, runtime: str) -> tuple[Problem, LoadedModel]:
    """The model on all cores, in units that its runtime can cut; costs are not used."""
    model = load_model(name, runtime=runtime)
    if model.source is None:
        raise RuntimeFailure(f"'{name}' has no model behind it")
    cluster: Cluster = discover("cores", runtime=runtime)
    loaded = runtime_named(runtime).load(runnable_source(model.source, model.graph), model.graph)
    units = common_units(model.graph, [loaded.fused_groups(cluster.devices[0])])
    costs = CostTable(np.ones((units.n_groups, cluster.n_devices)))
    problem = Problem(
        model.graph,
        cluster,
        costs,
        units,
        objective="throughput",
        execution_model=MaxLoad(),
        source=model.source,
    )
    return problem, loaded


def _streamed(
    problem: Problem, placement: Placement, model: LoadedModel, row: StreamEqualityRow
) -> tuple[float, list[tuple[float, float]]]:
    """The largest error over all samples, and the interval of each sample."""
    check = OutputCheck(model, problem.cluster.devices)
    passed: dict[int, list[HostArray]] = {}

    def given() -> Iterator[list[HostArray]]:
        for number in range(row.samples):
            passed[number] = list(model.random_inputs(np.random.default_rng([row.seed, number])))
            yield passed[number]

    largest = 0.0
    spans: list[tuple[float, float]] = []
    with stream_runner(problem, placement, model, in_flight=row.in_flight) as runner:
        for number, answer in enumerate(runner.stream(given())):
            error = sample_error(check, passed.pop(number), answer.outputs, {})
            largest = max(largest, error) if error == error else float("inf")
            spans.append((answer.start, answer.start + answer.seconds))
    if len(spans) != row.samples:
        raise RuntimeFailure(f"{len(spans)} of {row.samples} samples came back")
    return largest, spans


@command("seed", model=None)
def stream_equality(
    request: Request,
    models: ModelsOrZoo = None,
    runtimes: Annotated[str | None, typer.Option(help="Comma-separated; all without.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Different samples of each stream.")] = 200,
    in_flight: Annotated[int, typer.Option(min=1, help="Most samples in flight.")] = 3,
    results: ResultsIfAny = None,
    as_json: opt.Json = False,
) -> None:
    """Stream samples through splits of models in every runtime, and compare all outputs."""
    from placewright.session.devices import devices_by_runtime
    from placewright.session.parsing import parse_names
    from placewright.zoo import names

    counted = Counted()
    rows = run_stream_equality(
        parse_names(models) if models else [f"zoo:{name}" for name in names()],
        parse_names(runtimes) if runtimes else list(devices_by_runtime()[0]),
        samples=samples,
        in_flight=in_flight,
        seed=request.seed,
        results_path=results,
        on_row=lambda row: print_note(
            counted.numbered(
                f"{row.model} {row.runtime}: {row.message or f'{row.largest_error:.2g}'}"
            )
        ),
        on_ahead=counted.ahead,
    )
    if as_json:
        print_json([{**asdict(row), "equal": row.equal, "kept": row.kept} for row in rows])
    else:
        print_shown(tables.stream_equality_table(rows, samples, in_flight))
    if not all(row.equal and row.kept for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    run(stream_equality)
