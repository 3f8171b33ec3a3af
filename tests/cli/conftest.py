"""Commands in this process, with a cache folder of their own but for kernels and conversions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.runner import Benchmark, InProcess
from platformdirs import user_cache_path

from placewright.profiling.machine_costs import VERSION
from placewright.profiling.store import CostStore

KERNELS = user_cache_path("placewright") / "kernels"
_machine: dict[str, str] = {}  # costs of this machine, measured once for all tests


@pytest.fixture
def cli(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    converted: Path,
) -> Iterator[InProcess]:
    """Call it as ``cli("place", "model.onnx", cwd=folder)``.

    Processes that a test starts beside it have the same cache; each would compile for a minute, and
    convert a model for seconds.
    """
    cache = tmp_path_factory.mktemp("cache")
    KERNELS.mkdir(parents=True, exist_ok=True)
    (cache / "placewright").mkdir()
    (cache / "placewright" / "kernels").symlink_to(KERNELS)
    (cache / "placewright" / "models").symlink_to(converted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    store = CostStore(cache / "placewright" / "costs.sqlite")
    for key, value in _machine.items():
        store.put_fact(key, value)
    yield InProcess(capfd, monkeypatch)
    with sqlite3.connect(store.path) as connection:
        rows = connection.execute("SELECT key, value FROM facts").fetchall()
    _machine.update({key: value for key, value in rows if VERSION in key})


@pytest.fixture
def benchmark(cli: InProcess, capfd: pytest.CaptureFixture[str], monkeypatch: object) -> Benchmark:
    """Call it as ``benchmark("kernel", "--sizes", 100, cwd=folder)``, with the cache of `cli`."""
    assert isinstance(monkeypatch, pytest.MonkeyPatch)
    return Benchmark(capfd, monkeypatch)
