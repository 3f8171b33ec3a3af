"""The cost store: what is written is found, by several processes, and damage is named."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from placewright.errors import InputError
from placewright.profiling.store import CostStore

WRITER = """
import sys
from placewright.profiling.store import CostStore
store = CostStore(sys.argv[1])
for number in range(40):
    store.put_samples({f"{sys.argv[2]} {number}": [float(number)]}, complete=True)
"""


def test_samples_come_back(tmp_path: Path) -> None:
    CostStore(tmp_path / "new" / "store").put_samples({"a": [1.5, math.inf]}, complete=False)
    store = CostStore(tmp_path / "new" / "store")
    assert store.samples(["a", "b"]) == {"a": ([1.5, math.inf], False)}
    store.put_samples({"a": [2.0]}, complete=True)
    assert store.samples(["a"]) == {"a": ([2.0], True)}


def test_facts_come_back(tmp_path: Path) -> None:
    store = CostStore(tmp_path / "store")
    assert store.fact("x") is None
    store.put_fact("x", "1")
    store.put_fact("x", "2")
    assert store.fact("x") == "2"


def test_two_processes_write_at_the_same_time(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    commands = [[sys.executable, "-c", WRITER, path, name] for name in ("left", "right")]
    writers = [subprocess.Popen(command) for command in commands]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    keys = [f"{name} {number}" for name in ("left", "right") for number in range(40)]
    assert len(CostStore(path).samples(keys)) == 80


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_text("this is no database, and longer than a header of SQLite would be" * 20)
    with pytest.raises(InputError, match=r"cost store .* cannot be used"):
        CostStore(path)
