"""Rates of all ways to stream each model on pairs of cores, and the recommended way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import tables
from benchmarks.command import ModelsOrZoo, Results, run, write_results
from placewright.cli import options as opt
from placewright.cli.command import command
from placewright.cli.output import print_json, print_note, print_shown
from placewright.core.cluster import Cluster, Device
from placewright.core.solution import Budget
from placewright.errors import PlacewrightError
from placewright.execution.processor import processor_text
from placewright.files.results import ResultsFile, read_rows
from placewright.frameworks.runtimes import default_runtime_name
from placewright.session.checking import execute_stream
from placewright.session.models import runtime_named
from placewright.session.request import Request
from placewright.session.search import find_plan
from placewright.session.session import Session
from placewright.session.streams import STREAM_ROUNDS, StreamLength, best_measured

FORMAT = "placewright.streams/1"
F32, PAIR = "two f32 cores", "f32 + bf16"
PAIRS = (F32, PAIR)
_PRECISION = "INFERENCE_PRECISION_HINT"
_SEARCH_SECONDS = 5.0


@dataclass(frozen=True)
class StreamsRow:
    """A model on a pair of cores.

    Attributes:
        model, cluster: names.
        version: of the runtime's library.
        seed: of the search.
        rates: contender -> samples per second, median of its rounds.
        spreads: contender -> distance of the quartiles of its periods, as a share of the median.
        latencies: contender -> 95th percentile of a sample's seconds.
        predicted: contender -> simulated samples per second, if there is a prediction.
        recommended: name of a contender.
        verdict: one sentence.
        left_out: contender -> why it is not comparable.
        message: why nothing was measured, else empty.
        machine: name of the processor.
        date: of the measurement, year-month-day.
    """

    model: str
    cluster: str
    version: str
    seed: int
    rates: Mapping[str, float] = field(default_factory=dict)
    spreads: Mapping[str, float] = field(default_factory=dict)
    latencies: Mapping[str, float] = field(default_factory=dict)
    predicted: Mapping[str, float] = field(default_factory=dict)
    recommended: str = ""
    verdict: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    machine: str = ""
    date: str = ""

    @property
    def identity(self) -> tuple[object, ...]:
        """Model, cluster, version and seed."""
        return self.model, self.cluster, self.version, self.seed

    @property
    def of_best(self) -> float:
        """Rate of the recommended way relative to the best rate; NaN if nothing was measured."""
        if not self.rates:
            return float("nan")
        return self.rates[self.recommended] / max(self.rates.values())


def pair_of_cores(name: str) -> Cluster:
    """Two cores: both in f32, or the second one in bf16."""
    second = "f32" if name == F32 else "bf16"
    devices = (
        Device("cpu:0", "cpu", options={_PRECISION: "f32"}),
        Device("cpu:1", "cpu", options={_PRECISION: second}),
    )
    return Cluster(devices)


def run_streams_benchmark(
    models: Sequence[str],
    clusters: Sequence[str] = PAIRS,
    *,
    samples: int = 24,
    rounds: int = STREAM_ROUNDS,
    seed: int = 0,
    results_path: Path | None = None,
    on_row: Callable[[StreamsRow], None] = lambda row: None,
) -> list[StreamsRow]:
    """Place each model for throughput, and measure the plan beside all simpler ways.

    Args:
        models: paths or zoo names.
        clusters: of `PAIRS`.
        samples: number of compared samples, and most samples of a round.
        rounds: of all contenders in turn.
        seed: of the search.
        results_path: rows of this file are not repeated.
        on_row: called with each new row.
    """
    file = ResultsFile(results_path, FORMAT, StreamsRow, lambda row: row.identity, missing=None)
    version = runtime_named(default_runtime_name()).version
    found = []
    for model in models:
        for cluster in clusters:
            empty = StreamsRow(
                model, cluster, version, seed, machine=processor_text(), date=_today()
            )
            row = file.rows.get(empty.identity)
            if row is None:
                try:
                    row = replace(empty, **_measured(empty, samples, rounds))
                except PlacewrightError as error:
                    row = replace(empty, message=str(error))
                file.add([row])
                on_row(row)
            found.append(row)
    return found


def read_streams(path: Path) -> list[StreamsRow]:
    """Rows of a results file, as `files.results.read_rows`."""
    return read_rows(path, FORMAT, StreamsRow, missing=None)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _measured(row: StreamsRow, samples: int, rounds: int) -> dict[str, Any]:
    runtime = default_runtime_name()
    session = Session(
        row.model, cluster=pair_of_cores(row.cluster), runtime=runtime, objective="throughput"
    )
    problem, loaded = session.problem, session.loaded
    budget = Budget(seconds=_SEARCH_SECONDS)
    plan = find_plan(problem, budget=budget, seed=row.seed, runtime=runtime)
    plan = best_measured(plan, loaded, np.random.default_rng(row.seed))
    result = execute_stream(plan, loaded, length=StreamLength(samples, rounds=rounds))
    contenders = result.verdict.contenders
    return {
        "rates": {name: 1.0 / result.period(name) for name in result.rounds},
        "spreads": {name: one.iqr / one.median for name, one in contenders.items()},
        "latencies": {name: result.latencies(name)[1] for name in result.rounds},
        "predicted": {
            name: 1.0 / period
            for name, period in result.contenders.predicted.items()
            if name in result.rounds
        },
        "recommended": result.verdict.recommendation,
        "verdict": result.verdict.text,
        "left_out": dict(result.contenders.left_out),
    }


@command("seed", model=None)
def streams(
    request: Request,
    models: ModelsOrZoo = None,
    clusters: Annotated[
        str | None,
        typer.Option(help="Comma-separated pairs of cores: 'two f32 cores', 'f32 + bf16'."),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=20, help="Compared samples, and most samples of a round.")
    ] = 24,
    rounds: Annotated[int, typer.Option(min=5, help="Rounds of all ways in turn.")] = 9,
    results: Results = Path("streams.json"),
    as_json: opt.Json = False,
) -> None:
    """Measure samples per second of every way to stream models.

    Writes a table beside --results.
    """
    from benchmarks.streams_report import streams_text
    from placewright.errors import UnknownNameError
    from placewright.session.parsing import parse_names
    from placewright.zoo import names

    asked = parse_names(clusters) if clusters else PAIRS
    for name in asked:
        if name not in PAIRS:
            raise UnknownNameError("pair of cores", name, PAIRS)
    rows = run_streams_benchmark(
        parse_names(models) if models else [f"zoo:{name}" for name in names()],
        asked,
        samples=samples,
        rounds=rounds,
        seed=request.seed,
        results_path=results,
        on_row=lambda row: print_note(
            f"{row.model}, {row.cluster}: {row.message or row.recommended}"
        ),
    )
    write_results(results.with_suffix(".md"), streams_text(read_streams(results)))
    if as_json:
        print_json([{**asdict(row), "of_best": row.of_best} for row in rows])
        return
    print_shown(tables.streams_table(rows))


if __name__ == "__main__":
    run(streams)
