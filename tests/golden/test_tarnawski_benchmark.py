"""The benchmark: rows, gaps, resuming, fetching."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path
from urllib.error import URLError

import pytest

from placewright.errors import AnswerError, FileFormatError, InputError, UnknownNameError
from placewright.suites import tarnawski
from placewright.suites.tarnawski import (
    REPLICATED,
    BenchmarkRow,
    fetch_workloads,
    find_workloads,
    run_apart,
    run_one,
    run_tarnawski_benchmark,
)

SMALL = Path(__file__).parent / "small_workload.json"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The small workload as a throughput layer graph and as a latency operator graph."""
    for place in ("throughput/LayerGraphs", "latency/OperatorGraphs"):
        (tmp_path / place).mkdir(parents=True)
        shutil.copy(SMALL, tmp_path / place / "small.json")
    return tmp_path


def in_this_process(workload: str, path: Path, method: str, seconds: float) -> BenchmarkRow | None:
    return run_one(workload, str(path), method, seconds)


def test_a_value_below_a_bound_has_a_negative_gap(data: Path, tmp_path: Path) -> None:
    """It would say that a bound is false. A difference from rounding is none."""

    def run(workload: str, path: Path, method: str, seconds: float) -> BenchmarkRow | None:
        value = {"greedy": 0.9, "heft": 1.0 - 1e-12}[method]
        return BenchmarkRow(workload, method, value, 1.0, None, "feasible", 1.0, 0, "")

    rows = run_tarnawski_benchmark(
        data,
        methods=["greedy", "heft"],
        seconds_per_run=60.0,
        results_path=tmp_path / "results.json",
        run=run,
    )
    assert {row.gap for row in rows if row.method == "heft"} == {0.0}
    assert all(row.gap == pytest.approx(-0.1) for row in rows if row.method == "greedy")


def test_rows_gaps_and_resuming(data: Path, tmp_path: Path) -> None:
    """Methods that are not defined for a workload give no row; a second call runs nothing."""
    results = tmp_path / "results.json"
    seen: list[BenchmarkRow] = []
    rows = run_tarnawski_benchmark(
        data,
        methods=["ideal-dp", "maxload-ip", "greedy"],
        seconds_per_run=60.0,
        results_path=results,
        on_row=seen.append,
        run=in_this_process,
    )
    by_key = {(row.workload.split("/")[0], row.method): row for row in rows}
    assert sorted(by_key) == [
        ("latency", "greedy"),
        ("throughput", "greedy"),
        ("throughput", "ideal-dp"),
        ("throughput", "maxload-ip"),
    ]
    assert len(seen) == 4
    contiguous, free = by_key["throughput", "ideal-dp"], by_key["throughput", "maxload-ip"]
    assert contiguous.value == pytest.approx(17)
    assert free.value == pytest.approx(14)
    assert contiguous.gap == pytest.approx(17 / 14 - 1, rel=1e-4)  # against the best bound
    assert free.peak_memory_bytes > 1e6

    again = run_tarnawski_benchmark(
        data,
        methods=["ideal-dp", "maxload-ip"],
        workloads=["throughput"],
        seconds_per_run=60.0,
        results_path=results,
        run=lambda *_: pytest.fail("ran again"),
    )
    assert [row.value for row in again] == [contiguous.value, free.value]


def test_a_run_whose_process_dies_is_a_row() -> None:
    row = run_apart("throughput/LayerGraphs/small", SMALL, "support.dying_placer:Dying", 5.0)
    assert row is not None
    assert (row.value, row.status) == (None, "error")
    assert "ended with -9" in row.message


def test_a_run_is_found_by_content_and_budget_not_by_path(data: Path, tmp_path: Path) -> None:
    ran: list[tuple[str, float]] = []

    def noted(workload: str, path: Path, method: str, seconds: float) -> BenchmarkRow | None:
        ran.append((workload, seconds))
        return in_this_process(workload, path, method, seconds)

    file = data / "throughput" / "LayerGraphs" / "small.json"

    def run(seconds: float) -> list[str]:
        rows = run_tarnawski_benchmark(
            data,
            methods=["greedy"],
            workloads=["throughput"],
            seconds_per_run=seconds,
            results_path=tmp_path / "r.json",
            run=noted,
        )
        return [row.workload for row in rows]

    run(60.0)
    elsewhere = file.rename(file.with_name("elsewhere.json"))
    assert run(60.0) == ["throughput/LayerGraphs/elsewhere"]
    run(30.0)
    run(60.0)
    elsewhere.write_text(json.dumps(json.loads(elsewhere.read_text()) | {"maxSizePerFPGA": 21}))
    run(60.0)
    assert ran == [
        ("throughput/LayerGraphs/small", 60.0),
        ("throughput/LayerGraphs/elsewhere", 30.0),
        ("throughput/LayerGraphs/elsewhere", 60.0),
    ]


def test_replicas_have_a_row_of_their_own(data: Path) -> None:
    """Three accelerators of 20 bytes: two take turns with 10 to 13, (3 + 5 + 4 + 6 + 0.5 + 1) / 2;
    14 is 7 s on the CPU; 15 and 16 are 2 + 3 + 0.5 + 0.5 s. The gap is to balanced load, not to
    what the others prove without replicas; training has no value, latency no row."""
    folder = data / "throughput" / "LayerGraphs"
    content = json.loads(SMALL.read_text()) | {"maxFPGAs": 3, "maxSizePerFPGA": 20}
    (folder / "small.json").write_text(json.dumps(content))
    shutil.copy(SMALL.with_name("small_training.json"), folder / "training.json")
    rows = run_tarnawski_benchmark(
        data,
        methods=["ideal-dp", REPLICATED],
        results_path=data / "results.json",
        run=in_this_process,
    )
    found = {(row.workload.split("/")[-1], row.method): row for row in rows}
    assert sorted(found) == [
        ("small", "ideal-dp"),
        ("small", REPLICATED),
        ("training", "ideal-dp"),
        ("training", REPLICATED),
    ]
    row, single = found["small", REPLICATED], found["small", "ideal-dp"]
    assert row.value == pytest.approx(9.75)
    assert single.value is not None
    assert single.value > 9.75
    assert row.gap == pytest.approx(9.75 / row.bound - 1)
    assert "acc:0+acc:1 acc:2 cpu:0" in row.message
    assert found["training", REPLICATED].value is None
    assert "which tensors are gradients" in found["training", REPLICATED].message


@pytest.mark.slow
def test_every_run_has_a_process_of_its_own(data: Path, tmp_path: Path) -> None:
    rows = run_tarnawski_benchmark(
        data, methods=["dpl"], seconds_per_run=30.0, results_path=tmp_path / "r.json"
    )
    assert [(row.workload, row.method) for row in rows] == [("throughput/LayerGraphs/small", "dpl")]


def test_what_is_wrong_is_told(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no workloads named like bert"):
        find_workloads(data, ["bert"])
    with pytest.raises(UnknownNameError, match="unknown placer 'hefft'"):
        run_tarnawski_benchmark(data, methods=["hefft"], results_path=tmp_path / "r.json")
    (tmp_path / "r.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(FileFormatError, match="format 'other'"):
        run_tarnawski_benchmark(data, methods=["dpl"], results_path=tmp_path / "r.json")


def archive_of(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"repository-abc/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def test_fetching_checks_what_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = archive_of(
        {
            "README.md": b"no",
            "throughput-inputs/LayerGraphs/a.json": b"{}",
            "human-experts/a_expert.json": b"[]",
            "throughput-inputs/../../evil.json": b"no",
        }
    )
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO(content))
    with pytest.raises(AnswerError, match="other workloads than were published"):
        fetch_workloads(tmp_path / "data")
    expected = b"experts/a_expert.json[]throughput/LayerGraphs/a.json{}"
    monkeypatch.setattr(tarnawski, "DIGEST", hashlib.sha256(expected).hexdigest())
    root = fetch_workloads(tmp_path / "data")
    written = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    assert written == ["experts/a_expert.json", "throughput/LayerGraphs/a.json"]


@pytest.mark.parametrize("cut", [10, 60])
def test_half_an_archive_is_an_answer(
    cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = archive_of({"throughput-inputs/a.json": b"{}"})[:cut]
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO(content))
    with pytest.raises(AnswerError, match="no archive"):
        fetch_workloads(tmp_path)


def test_no_network_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    with pytest.raises(AnswerError, match="cannot download"):
        fetch_workloads(tmp_path)
