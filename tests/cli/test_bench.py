"""`placewright bench`, end to end on small inputs: what is timed is never asserted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli.runner import InProcess, the_line

from placewright.suites import tarnawski

LEARNED = ("bench", "learned", "--clusters", "2gpu", "--evaluations", 40, "--results", "l.json")


def learned(
    cli: InProcess, folder: Path, placers: str, seeds: int = 2, *more: str
) -> dict[tuple[str, int], dict[str, object]]:
    """Runs of `bench learned` on the smallest recurrent model, by placer and seed."""
    done = cli(*LEARNED, "--models", "zoo:rnnlm/tiny", "--objectives", "latency", "--placers",
               placers, "--seeds", seeds, *more, "--json", cwd=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["problem"] for row in rows} == {"rnnlm/tiny 2gpu"}
    return {(row["placer"], row["seed"]): row for row in rows}


def test_learned_keeps_every_run_and_goes_on_in_any_folder(tmp_path: Path, cli: InProcess) -> None:
    """A second call, from another folder, adds only what is missing: kept runs stay as they are."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    first = learned(cli, here, "cem,random")
    controls = ("cooling", "random-grouped:learner=post", "heft", "local-search")
    names = ("cem", "cem:updates=false", "random-grouped:learner=cem", *controls, "random")
    assert list(first) == [(name, seed) for seed in (0, 1) for name in names]
    kept = json.loads((here / "l.json").read_text())["rows"]
    (there / "l.json").write_text((here / "l.json").read_text())
    again = learned(cli, there, "cem,random,post", 3, "--workers", "2")
    assert {key: again[key] for key in first} == first  # seconds too, which no two runs share
    more = json.loads((there / "l.json").read_text())["rows"]
    assert more[: len(kept)] == kept
    assert len(more) == 3 * 10
    assert len(again["cem", 0]["parts"]) == 10  # type: ignore[arg-type]
    report = (there / "l-40.md").read_text()
    assert "### `post`" in report
    assert "| `post` | 1 |" in report


def test_homogeneous_starts_are_switched_off_for_all(tmp_path: Path, cli: InProcess) -> None:
    runs = learned(cli, tmp_path, "cem,local-search", 1, "--no-starts")
    assert list(runs) == [
        ("cem:homogeneous_starts=false", 0),
        ("cem:homogeneous_starts=false:updates=false", 0),
        ("random-grouped:learner=cem:homogeneous_starts=false", 0),
        ("cooling", 0),
        ("random-grouped:learner=post:homogeneous_starts=false", 0),
        ("heft", 0),
        ("local-search", 0),
    ]
    starts = {"heft": 40, "local-search": 40, "cooling": 3}  # a CPU and two GPUs, each timed
    assert all(row["samples"] == 40 - starts.get(name, 0) for (name, _), row in runs.items())


def test_learned_refuses_what_it_does_not_know(tmp_path: Path, cli: InProcess) -> None:
    for model in ("zoo:rnnln", "rnnln"):
        done = cli(*LEARNED, "--models", model, cwd=tmp_path)
        assert done.returncode == 2
        assert "unknown zoo model 'rnnln'" in done.stderr
    done = cli(*LEARNED, "--models", "rnnlm/tiny", "--objectives", "throughput", cwd=tmp_path)
    assert done.returncode == 2
    assert "--objectives is latency or training, got 'throughput'" in done.stderr
    assert not (tmp_path / "l.json").exists()


def test_the_report_of_learned_replaces_nothing_that_it_reads(
    tmp_path: Path, cli: InProcess
) -> None:
    """It was told after all runs, or not at all."""
    (tmp_path / "l-40.md").write_text("policy")
    words = ("--models", "rnnlm/tiny", "--placers", "zero-shot:policy=l-40.md")
    assert "'l-40.md' is read and would be" in the_line(cli(*LEARNED, *words, cwd=tmp_path), 2)
    assert (tmp_path / "l-40.md").read_text() == "policy"
    (tmp_path / "l-40.md").unlink()
    (tmp_path / "l-40.md").mkdir()
    done = cli(*LEARNED, "--models", "rnnlm/tiny", "--placers", "cem", cwd=tmp_path)
    assert "'l-40.md' is a folder" in the_line(done, 2)
    assert not (tmp_path / "l.json").exists()


def test_only_reports_of_learned_are_replaced(tmp_path: Path, cli: InProcess) -> None:
    """Behind the name of the results they have a number alone; the next check refuses the model."""
    for name in ("l-notes.md", "l-old-40.md"):
        (tmp_path / name).write_text("policy")
        words = ("--models", "rnnln", "--placers", f"zero-shot:policy={name}")
        done = cli(*LEARNED, *words, cwd=tmp_path)
        assert done.returncode == 2
        assert "unknown zoo model 'rnnln'" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("tarnawski", "--data", "a", "--fetch", "b"), "leave out --data"),
        (("learned", "--workloads", "gnmt"), "give it as --data, too"),
    ],
)
def test_an_option_that_would_mean_nothing_is_refused(
    words: tuple[str, ...], told: str, tmp_path: Path, cli: InProcess
) -> None:
    assert told in the_line(cli("bench", *words, cwd=tmp_path), 2)
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_placement_is_noted_by_its_status(
    tmp_path: Path, cli: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(folder: Path, **options: Any) -> list[tarnawski.BenchmarkRow]:
        found = [(None, "infeasible"), (12.3456789, "feasible")]
        rows = [
            tarnawski.BenchmarkRow("w", "heft", value, 0.0, None, status, 1.0, 0, "")
            for value, status in found
        ]
        options["on_ahead"](len(rows))
        for row in rows:
            options["on_row"](row)
        return rows

    monkeypatch.setattr(tarnawski, "run_tarnawski_benchmark", run)
    done = cli("bench", "tarnawski", "--data", ".", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of 2: w heft: infeasible" in done.stderr
    assert "2 of 2: w heft: 12.3457 ms" in done.stderr
    assert "None" not in done.stderr
