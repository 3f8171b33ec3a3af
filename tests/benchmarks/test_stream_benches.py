"""Benchmarks of streams: what a row says is what happened, and files resume."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import stream_equality, streams
from benchmarks.memory import run_memory_benchmark
from benchmarks.stream_equality import most_under_way, run_stream_equality
from benchmarks.streams import F32, PAIR, StreamsRow, read_streams
from benchmarks.streams_report import streams_text
from placewright.core.solution import Budget
from placewright.errors import RuntimeFailure
from placewright.execution.runner import ConcurrentRunner
from placewright.session.session import Session

MODEL = "zoo:moe/tiny"


@pytest.mark.parametrize("seed", range(20))
def test_samples_under_way_at_one_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    spans = [(float(a), float(a + n)) for a, n in rng.integers(1, 9, (12, 2))]
    brute = max(sum(begin <= at < end for begin, end in spans) for at, _ in spans)
    assert most_under_way(spans) == brute
    assert most_under_way([(0.0, 1.0), (1.0, 2.0)]) == 1
    assert most_under_way([]) == 0


def equality(results: Path | None = None, **options: Any) -> stream_equality.StreamEqualityRow:
    (row,) = run_stream_equality(
        [MODEL], ["onnxruntime"], samples=25, results_path=results, **options
    )
    return row


@pytest.mark.slow
def test_equal_samples_are_kept_in_a_file(tmp_path: Path) -> None:
    row = equality(tmp_path / "equality.json")
    assert (row.equal, row.kept, row.message) == (True, True, "")
    assert 1 <= row.under_way <= 3
    new: list[Any] = []
    assert equality(tmp_path / "equality.json", on_row=new.append) == row
    assert new == []


@pytest.mark.parametrize("change", ["order", "lost"])
def test_outputs_of_another_sample_and_lost_samples_are_told(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = ConcurrentRunner.stream

    def changed(self: Any, requests: Any, **options: Any) -> Iterator[Any]:
        answers = list(held(self, requests, **options))
        if change == "lost":
            yield from answers[:-1]
            return
        answers[7], answers[8] = answers[8], answers[7]
        yield from answers

    monkeypatch.setattr(ConcurrentRunner, "stream", changed)
    row = equality()
    assert not row.equal
    assert row.message == ("24 of 25 samples came back" if change == "lost" else "")


@pytest.mark.slow
def test_a_stream_under_a_limit_keeps_it_and_is_predicted() -> None:
    session = Session(MODEL, devices="cpu:0,cpu:1", runtime="torch", objective="throughput",
                      calibrate=False, quick=True)  # fmt: skip
    if session.problem.n_devices < 2:
        pytest.skip("needs two cores")
    row = run_memory_benchmark(
        MODEL,
        session.problem,
        session.loaded,
        share=0.7,
        placer="local-search",
        budget=Budget(evaluations=200),
        runtime="torch",
    )
    assert row.equal
    assert row.in_flight >= 1
    assert set(row.used) == {"cpu:0", "cpu:1"}
    for name, measured in row.measured.items():
        assert measured <= row.limit
        assert abs(row.predicted[name] / measured - 1.0) < 0.03


ROW = StreamsRow(
    "zoo:a", F32, "openvino 1", 0,
    rates={"cpu:0": 5.0, "one copy per device": 9.0, "plan": 10.0},
    spreads={"cpu:0": 0.01, "one copy per device": 0.02, "plan": 0.03},
    latencies={"cpu:0": 0.2, "one copy per device": 0.25, "plan": 0.3},
    predicted={"plan": 10.5}, recommended="one copy per device", verdict="use it",
    machine="a processor", date="2026-01-02",
)  # fmt: skip


def test_the_table_has_every_way_and_the_verdict() -> None:
    failed = StreamsRow("zoo:b", F32, "openvino 1", 0, message="it cannot run")
    other = replace(ROW, cluster=PAIR, recommended="plan", left_out={"even split": "too large"})
    text = streams_text([ROW, failed, other])
    assert "Machine: a processor. Version: openvino 1. Date: 2026-01-02." in text
    assert "| zoo:a | 5.0 (cpu:0) | 9.0 | 10.0 | one copy per device | 0.90 |" in text
    assert "| zoo:b | - | - | - | it cannot run | - |" in text
    assert "The recommended way has 0.90 of the best rate or more." in text
    assert "The recommended way has 1.00 of the best rate or more." in text
    assert "| zoo:a, plan | 10.00 | 3.0% | 10.50 | 300 ms |" in text
    assert "- zoo:a: 'even split' is left out: too large" in text
    assert text.index("## Two f32 cores") < text.index("## F32 + bf16")


def test_pairs_resume_and_a_model_that_cannot_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, benchmark: Any
) -> None:
    calls = itertools.count()

    def measured(row: StreamsRow, samples: int, rounds: int) -> dict[str, Any]:
        if next(calls) == 1:
            raise RuntimeFailure("no such luck")
        assert (samples, rounds) == (30, 5)
        names = ("rates", "spreads", "latencies", "predicted", "recommended", "verdict")
        return {name: getattr(ROW, name) for name in names}

    monkeypatch.setattr(streams, "_measured", measured)
    words = ("streams", "--models", "zoo:a", "--samples", 30, "--rounds", 5)
    done = benchmark(*words, "--results", "streams.json", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["cluster"] for row in found] == [F32, PAIR]
    assert [row["message"] for row in found] == ["", "no such luck"]
    assert found[0]["of_best"] == 0.9
    kept = read_streams(tmp_path / "streams.json")
    assert (tmp_path / "streams.md").read_text() == streams_text(kept)
    benchmark(*words, "--results", "streams.json", "--json", cwd=tmp_path)
    assert next(calls) == 2
    wrong = benchmark(*words, "--clusters", "three cores", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "unknown pair of cores 'three cores'" in wrong.stderr
