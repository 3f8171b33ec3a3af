"""Commands in this process, with a cache folder of their own but for compiled kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.runner import InProcess
from platformdirs import user_cache_path

KERNELS = user_cache_path("placewright") / "kernels"


@pytest.fixture
def cli(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: object
) -> InProcess:
    """Call it as ``cli("place", "model.onnx", cwd=folder)``.

    Processes that a test starts beside it have the same cache; each would compile for a minute.
    """
    assert isinstance(tmp_path_factory, pytest.TempPathFactory)
    cache: Path = tmp_path_factory.mktemp("cache")
    KERNELS.mkdir(parents=True, exist_ok=True)
    (cache / "placewright").mkdir()
    (cache / "placewright" / "kernels").symlink_to(KERNELS)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return InProcess(capfd, monkeypatch)
