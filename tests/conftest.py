"""Hypothesis profiles, Ctrl-C, commands in this process, and the path to what tests share.

Conversions of models, and what a cut costs on this machine, take seconds and are the same for all
tests: the workers of a run share them.
"""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from platformdirs import user_cache_path

sys.path.insert(0, str(Path(__file__).parent))

from cli.runner import Benchmark, InProcess

from placewright.profiling.machine_costs import VERSION
from placewright.profiling.store import CostStore

KERNELS = user_cache_path("placewright") / "kernels"

settings.register_profile(
    "fast", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fast")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started by a shell in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave all that was imported and collected out of later collections of garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what a whole run makes once, shared by its workers."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the run's; each worker has one of its own in it
    folder = folder / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def converted(shared: Path) -> Path:
    """The folder of converted models."""
    folder = shared / "converted"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def cli(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    shared: Path,
    converted: Path,
) -> Iterator[InProcess]:
    """Call it as ``cli("place", "model.onnx", cwd=folder)``.

    The cache folder is the test's own, but for kernels, conversions and what a cut costs on this
    machine. Processes that a test starts beside it have the same cache.
    """
    cache = tmp_path_factory.mktemp("cache")
    KERNELS.mkdir(parents=True, exist_ok=True)
    (cache / "placewright").mkdir()
    (cache / "placewright" / "kernels").symlink_to(KERNELS)
    (cache / "placewright" / "models").symlink_to(converted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    store = CostStore(cache / "placewright" / "costs.sqlite")
    machine = CostStore(shared / "machine.sqlite")
    known = _machine_costs(machine)
    for key, value in known.items():
        store.put_fact(key, value)
    yield InProcess(capfd, monkeypatch)
    for key, value in _machine_costs(store).items():
        if known.get(key) != value:
            machine.put_fact(key, value)


def _machine_costs(store: CostStore) -> dict[str, str]:
    """What cuts cost on the devices of this machine, as far as a store has it."""
    with closing(sqlite3.connect(store.path)) as connection:
        rows = connection.execute("SELECT key, value FROM facts").fetchall()
    return {key: value for key, value in rows if VERSION in key}


@pytest.fixture
def benchmark(
    cli: InProcess, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Benchmark:
    """Call it as ``benchmark("kernel", "--sizes", 100, cwd=folder)``, with the cache of `cli`."""
    return Benchmark(capfd, monkeypatch)
