"""Benchmarks as commands, end to end on small inputs: timings are never asserted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from cli.runner import Benchmark

from benchmarks import searches_at_once
from placewright.files.problem_file import write_problem
from placewright.placers.learned.hsdag.graph import GraphView
from placewright.testing.problems import random_problem


@pytest.mark.slow
def test_kernel_rows_beside_plain_python(tmp_path: Path, benchmark: Benchmark) -> None:
    """Rates of what was asked for; rows of other sizes stay in the file."""
    for sizes in ("50", "100,200"):
        done = benchmark("kernel", "--sizes", sizes, "--devices", "2,3", "--results", "k.json",
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
def test_sizes_are_numbers(sizes: str, tmp_path: Path, benchmark: Benchmark) -> None:
    done = benchmark("kernel", "--sizes", sizes, cwd=tmp_path)
    assert done.returncode == 2
    assert f"got '{sizes}'" in done.stderr


@pytest.mark.slow
def test_updates_of_hsdag_are_timed_on_any_problem(tmp_path: Path, benchmark: Benchmark) -> None:
    problem = random_problem(np.random.default_rng(0), n_ops=12, n_devices=2, constrained=False)
    write_problem(tmp_path / "own.json", problem)
    done = benchmark("hsdag_update", "--models", "own.json", "--updates", 2, "--json",
               cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["graph"], row["units"]) == ("own.json", problem.n_units)
    assert 1 <= row["nodes"] <= GraphView.of(problem.unit_graph).n_nodes
    assert row["seconds"] > 0


def test_a_search_goes_on_beside_a_long_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches_at_once, "LENGTH", 3)
    assert searches_at_once.ratio(searches_at_once.chains()) > 0


@pytest.mark.slow
def test_two_workers_are_timed_beside_one(tmp_path: Path, benchmark: Benchmark) -> None:
    """The values are equal, and this process may run on all its cores again."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("two workers of one core each need two cores")
    done = benchmark("workers", "--models", "rnnlm/tiny", "--clusters", "2gpu", "--placers",
               "random", "--evaluations", 20, "--rounds", 1, "--json", "--kinds", "processes",
               cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["kind"], row["problems"], row["runs"], row["equal"]) == ("processes", 1, 2, True)
    assert len(row["one"]) == len(row["two"]) == 1
    assert os.sched_getaffinity(0) == cores


@pytest.mark.slow
def test_serving_measures_all_contenders_in_one_loop(tmp_path: Path, benchmark: Benchmark) -> None:
    """A row for each runtime that was asked for; timings are never asserted."""
    words = ("--models", "zoo:rnnlm/tiny", "--runtime", "onnxruntime", "--rounds", 3)
    done = benchmark("serving", *words, "--results", "s.json", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["cuts"] > 0
    assert min(row[name] for name in ("plain", "unsplit", "split", "kept_run")) > 0.0
    assert json.loads((tmp_path / "s.json").read_text())["rows"] == [row]
