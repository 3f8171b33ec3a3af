"""`placewright bench workers` on the smallest model: what is timed is not asserted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cli.runner import InProcess


def test_two_workers_are_timed_beside_one(tmp_path: Path, cli: InProcess) -> None:
    """The values are equal, and this process may run on all its cores again."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("two workers of one core each need two cores")
    done = cli("bench", "workers", "--models", "rnnlm/tiny", "--clusters", "2gpu", "--placers",
               "random", "--evaluations", 20, "--rounds", 1, "--json", "--kinds", "processes",
               cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["kind"], row["problems"], row["runs"], row["equal"]) == ("processes", 1, 2, True)
    assert len(row["one"]) == len(row["two"]) == 1
    assert os.sched_getaffinity(0) == cores
