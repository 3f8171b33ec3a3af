"""`placewright bench`, end to end on small inputs: what is timed is never asserted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli.runner import InProcess

from placewright.files.problem_file import write_problem
from placewright.placers.learned.hsdag.graph_view import GraphView
from placewright.testing.problems import random_problem

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
    names = ("cem", "cem:updates=false", "random-grouped:learner=cem", "random")
    assert list(first) == [(name, seed) for seed in (0, 1) for name in names]
    kept = json.loads((here / "l.json").read_text())["rows"]
    (there / "l.json").write_text((here / "l.json").read_text())
    again = learned(cli, there, "cem,random,post", 3, "--workers", "2")
    assert {key: again[key] for key in first} == first  # seconds too, which no two runs share
    more = json.loads((there / "l.json").read_text())["rows"]
    assert more[: len(kept)] == kept
    assert len(more) == 3 * 7
    assert len(again["cem", 0]["parts"]) == 10  # type: ignore[arg-type]
    report = (there / "l-40.md").read_text()
    assert "### `post`" in report
    assert "| `post` | 1 |" in report


def test_homogeneous_starts_are_switched_off_for_all(tmp_path: Path, cli: InProcess) -> None:
    runs = learned(cli, tmp_path, "cem,local-search", 1, "--no-starts")
    assert list(runs) == [
        ("cem:homogeneous_starts=false", 0),
        ("cem:updates=false:homogeneous_starts=false", 0),
        ("random-grouped:learner=cem:homogeneous_starts=false", 0),
        ("local-search", 0),
    ]
    assert all(row["samples"] == 40 for (name, _), row in runs.items() if name != "local-search")


def test_learned_refuses_what_it_does_not_know(tmp_path: Path, cli: InProcess) -> None:
    for model in ("zoo:rnnln", "rnnln"):
        done = cli(*LEARNED, "--models", model, cwd=tmp_path)
        assert done.returncode == 2
        assert "unknown zoo model 'rnnln'" in done.stderr


def test_kernel_rows_beside_plain_python(tmp_path: Path, cli: InProcess) -> None:
    """Rates of what was asked for; rows of other sizes stay in the file."""
    for sizes in ("50", "100,200"):
        done = cli("bench", "kernel", "--sizes", sizes, "--devices", "2,3", "--results", "k.json",
                   "--plot", "k.svg", "--json", cwd=tmp_path)  # fmt: skip
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)
        wanted = [(int(n), d) for d in (2, 3) for n in sizes.split(",")]
        assert sorted((row["ops"], row["devices"]) for row in rows) == sorted(wanted)
        for row in rows:
            assert row["ops_per_second"] == pytest.approx(row["ops"] / row["seconds"])
            assert row["edges"] >= row["ops"]
    assert len(json.loads((tmp_path / "k.json").read_text())["rows"]) == 6
    assert (tmp_path / "k.svg").read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize("sizes", ["0", "many", "10,-5"])
def test_sizes_are_numbers(sizes: str, tmp_path: Path, cli: InProcess) -> None:
    for command in ("kernel", "incremental"):
        done = cli("bench", command, "--sizes", sizes, cwd=tmp_path)
        assert done.returncode == 2
        assert f"got '{sizes}'" in done.stderr


def test_incremental_values_are_those_of_full_evaluations(tmp_path: Path, cli: InProcess) -> None:
    """The command fails where they differ."""
    done = cli("bench", "incremental", "--sizes", 60, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["objective"] for row in rows} == {"latency", "throughput"}
    assert all(row["full"] > 0 and row["incremental"] > 0 for row in rows)


def test_updates_of_hsdag_are_timed_on_any_problem(tmp_path: Path, cli: InProcess) -> None:
    problem = random_problem(np.random.default_rng(0), n_ops=12, n_devices=2, constrained=False)
    write_problem(tmp_path / "own.json", problem)
    done = cli("bench", "hsdag-update", "--models", "own.json", "--updates", 2, "--json",
               cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["graph"], row["units"]) == ("own.json", problem.n_units)
    assert 1 <= row["nodes"] <= GraphView.of(problem.unit_graph).n_nodes
    assert row["seconds"] > 0
