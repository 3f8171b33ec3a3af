"""`placewright bench`, end to end on small inputs: what is timed is never asserted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli.runner import InProcess

from placewright.files.problem_file import write_problem
from placewright.testing.problems import random_problem

LEARNED = ("bench", "learned", "--clusters", "2gpu", "--evaluations", 20, "--results", "found")


def learned(
    cli: InProcess, folder: Path, placers: str, seeds: int = 2
) -> dict[str, dict[str, object]]:
    """Rows of one run of `bench learned` on the smallest recurrent model, by placer."""
    done = cli(*LEARNED, "--models", "zoo:rnnlm/tiny", "--placers", placers, "--seeds", seeds,
               "--json", cwd=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (table,) = json.loads(done.stdout)
    assert table["problem"] == "rnnlm/tiny 2gpu"
    return {row["placer"]: row for row in table["rows"]}


def test_learned_keeps_every_run_and_goes_on(tmp_path: Path, cli: InProcess) -> None:
    """A second call adds only what is missing: runs that are there stay as they are."""
    first = learned(cli, tmp_path, "random,cem")
    (path,) = (tmp_path / "found").glob("*.json")
    kept = json.loads(path.read_text())["runs"]
    assert [(run["placer"], run["seed"]) for run in kept] == [
        (name, seed) for name in ("random", "cem") for seed in (0, 1)
    ]
    again = learned(cli, tmp_path, "random,cem,post", seeds=3)
    more = json.loads(path.read_text())["runs"]
    assert [run for run in more if run in kept] == kept  # seconds too, which no two runs share
    assert len(more) == 9
    assert set(first) < set(again)
    report = (tmp_path / "found" / "learned-20.md").read_text()
    assert "| rnnlm_tiny_2gpu |" in report
    assert "median below that of `random`" in report


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
    assert 1 <= row["nodes"] <= row["units"]
    assert row["seconds"] > 0
