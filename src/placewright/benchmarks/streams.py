"""All ways to stream each model on two kinds of pairs of cores: rates, and what is recommended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from placewright.core.cluster import Cluster, Device
from placewright.core.solution import Budget
from placewright.errors import PlacewrightError
from placewright.execution.processor import processor_text
from placewright.files.results import ResultsFile, read_rows
from placewright.session.runtimes import default_runtime_name, runtime_named
from placewright.session.search import place
from placewright.session.session import Session
from placewright.session.stream_candidates import best_measured
from placewright.session.stream_measuring import ROUNDS, StreamLength, execute_stream

FORMAT = "placewright.streams/1"
F32, PAIR = "two f32 cores", "f32 + bf16"
PAIRS = (F32, PAIR)
_PRECISION = "INFERENCE_PRECISION_HINT"
_SEARCH_SECONDS = 5.0


@dataclass(frozen=True)
class StreamsRow:
    """One model on one pair of cores.

    Attributes:
        model, cluster: what ran where.
        version: of the runtime's library.
        seed: of the search.
        rates: contender -> samples per second, median of its rounds.
        spreads: contender -> distance of the quartiles of its periods, as a share of the median.
        latencies: contender -> 95th percentile of a sample's seconds.
        predicted: contender -> samples per second by the simulator, where it can say.
        recommended: name of a contender.
        verdict: one sentence.
        left_out: contender -> why it is not comparable.
        message: why nothing was measured; empty where something was.
        machine: the processor in words.
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
        """What the row is a result of."""
        return self.model, self.cluster, self.version, self.seed

    @property
    def of_best(self) -> float:
        """The rate of what is recommended over the best rate; NaN where nothing was measured."""
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
    rounds: int = ROUNDS,
    seed: int = 0,
    results_path: Path | None = None,
    on_row: Callable[[StreamsRow], None] = lambda row: None,
) -> list[StreamsRow]:
    """Place each model for throughput, and measure the plan beside all simpler ways.

    Args:
        models: as `place` takes them.
        clusters: of `PAIRS`.
        samples: whose outputs are compared, and of a round at most.
        rounds: of all contenders in turn.
        seed: of the search.
        results_path: rows of a file are kept and not measured again.
        on_row: called with each row that is new.
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
    plan = place(problem, budget=budget, seed=row.seed, runtime=runtime)
    plan = best_measured(plan, loaded, np.random.default_rng(row.seed))
    result = execute_stream(plan, loaded, length=StreamLength(samples, rounds=rounds))
    contenders = result.verdict.contenders
    return {
        "rates": {name: 1.0 / result.period(name) for name in result.rounds},
        "spreads": {name: one.iqr / one.median for name, one in contenders.items()},
        "latencies": {name: result.latencies(name)[1] for name in result.rounds},
        "predicted": {
            name: 1.0 / period for name, period in result.predicted.items() if name in result.rounds
        },
        "recommended": result.verdict.recommendation,
        "verdict": result.verdict.text,
        "left_out": dict(result.left_out),
    }
