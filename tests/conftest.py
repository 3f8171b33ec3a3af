"""Hypothesis profiles, Ctrl-C, commands in this process, and the path to what tests share.

Conversions of models take seconds and are the same for all tests: the workers of a run share them.
What a cut costs on two cores was recorded once.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from platformdirs import user_cache_path

sys.path.insert(0, str(Path(__file__).parent))

from cli.runner import Benchmark, InProcess
from support.machine import take_the_record

from placewright.profiling import hardware

KERNELS = user_cache_path("placewright") / "kernels"

settings.register_profile(
    "fast", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fast")
take_the_record()

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
    converted: Path,
) -> InProcess:
    """Call it as ``cli("place", "model.onnx", cwd=folder)``.

    The cache folder is the test's own, but for kernels and conversions. Processes that a test
    starts beside it have the same cache.
    """
    cache = tmp_path_factory.mktemp("cache")
    KERNELS.mkdir(parents=True, exist_ok=True)
    (cache / "placewright").mkdir()
    (cache / "placewright" / "kernels").symlink_to(KERNELS)
    (cache / "placewright" / "models").symlink_to(converted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    # Turns of one or two requests: no test asserts the seconds that commands measure.
    monkeypatch.setattr(hardware, "WARM_SECONDS", 1e-4)
    return InProcess(capfd, monkeypatch)


@pytest.fixture
def benchmark(
    cli: InProcess, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Benchmark:
    """Call it as ``benchmark("kernel", "--sizes", 100, cwd=folder)``, with the cache of `cli`."""
    return Benchmark(capfd, monkeypatch)
