"""The cost store: what is written is found, by several processes, and damage is named."""

from __future__ import annotations

import contextlib
import math
import sqlite3
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
    assert [writer.wait(timeout=600) for writer in writers] == [0, 0]
    keys = [f"{name} {number}" for name in ("left", "right") for number in range(40)]
    assert len(CostStore(path).samples(keys)) == 80


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_text("this is no database, and longer than a header of SQLite would be" * 20)
    with pytest.raises(InputError, match=r"cost store .* cannot be used"):
        CostStore(path)


def test_a_fresh_store_forgets_what_was_there_and_keeps_what_it_measures(tmp_path: Path) -> None:
    """The file then holds the new numbers, for it and for everyone after it."""
    path = tmp_path / "costs.sqlite"
    old = CostStore(path)
    old.put_samples({"a": [1.0], "b": [2.0]}, complete=True)
    old.put_fact("fit", "old")
    fresh = CostStore(path, is_fresh=True)
    assert fresh.samples(["a", "b"]) == {}
    assert fresh.fact("fit") is None
    fresh.put_samples({"a": [3.0]}, complete=True)
    fresh.put_fact("fit", "new")
    assert fresh.samples(["a", "b"]) == {"a": ([3.0], True)}
    assert fresh.fact("fit") == "new"
    assert CostStore(path).samples(["a", "b"]) == {"a": ([3.0], True), "b": ([2.0], True)}


def test_measuring_again_that_is_interrupted_loses_no_complete_samples(tmp_path: Path) -> None:
    CostStore(tmp_path / "store").put_samples({"a": [1.0, 1.5]}, complete=True)
    again = CostStore(tmp_path / "store", is_fresh=True)
    assert again.samples(["a"]) == {}
    again.put_samples({"a": [2.0]}, complete=False)
    assert again.samples(["a"]) == {"a": ([2.0], False)}
    assert CostStore(tmp_path / "store").samples(["a"]) == {"a": ([1.0, 1.5], True)}
    another = CostStore(tmp_path / "store", is_fresh=True)  # begins anew
    another.put_samples({"a": [3.0]}, complete=False)
    another.put_samples({"a": [3.0, 3.5]}, complete=True)
    assert another.samples(["a"]) == {"a": ([3.0, 3.5], True)}
    assert CostStore(tmp_path / "store").samples(["a"]) == {"a": ([3.0, 3.5], True)}


def test_final_samples_of_a_fresh_store_replace_complete_ones(tmp_path: Path) -> None:
    """A quick measurement that was to replace a disturbed one left it to the next request."""
    path = tmp_path / "store"
    CostStore(path).put_samples({"a": [9.0, 9.5]}, complete=True)
    CostStore(path).put_samples({"a": [1.0]}, complete=False, is_final=True)  # not asked to replace
    assert CostStore(path).samples(["a"]) == {"a": ([9.0, 9.5], True)}
    fresh = CostStore(path, is_fresh=True)
    fresh.put_samples({"a": [1.0]}, complete=False)
    fresh.put_samples({"a": [1.0, 1.5]}, complete=False, is_final=True)
    assert fresh.samples(["a"]) == {"a": ([1.0, 1.5], False)}
    assert CostStore(path).samples(["a"]) == {"a": ([1.0, 1.5], False)}


def test_a_removed_fact_is_gone(tmp_path: Path) -> None:
    store = CostStore(tmp_path / "store")
    store.put_fact("x", "1")
    store.remove_fact("x")
    store.remove_fact("never")
    assert store.fact("x") is None


CHANGER = """
import sys
from placewright.profiling.store import CostStore
store = CostStore(sys.argv[1])
for number in range(40):
    store.change_fact("x", lambda before: (before or "") + sys.argv[2])
"""


def test_two_processes_change_one_fact(tmp_path: Path) -> None:
    """Read and written in two transactions, changes of the other process were lost."""
    path = str(tmp_path / "store")
    commands = [[sys.executable, "-c", CHANGER, path, name] for name in "ab"]
    changers = [subprocess.Popen(command) for command in commands]
    assert [changer.wait(timeout=600) for changer in changers] == [0, 0]
    text = CostStore(path).fact("x")
    assert text is not None
    assert (text.count("a"), text.count("b")) == (40, 40)


def test_a_fresh_store_finds_the_fact_that_it_changed(tmp_path: Path) -> None:
    CostStore(tmp_path / "store").put_fact("x", "old")
    fresh = CostStore(tmp_path / "store", is_fresh=True)
    assert fresh.fact("x") is None
    assert fresh.change_fact("x", lambda known: f"{known}!") == "old!"
    assert fresh.fact("x") == "old!"


def test_damaged_samples_are_named(tmp_path: Path) -> None:
    store = CostStore(tmp_path / "store")
    store.put_samples({"a": [1.0]}, complete=True)
    with contextlib.closing(sqlite3.connect(tmp_path / "store")) as connection, connection:
        connection.execute("UPDATE samples SET seconds = '[1.0'")
    with pytest.raises(InputError, match=r"cost store '.*store' cannot be used"):
        store.samples(["a"])
