"""Commands in this process, with a cache folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.runner import InProcess


@pytest.fixture
def cli(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: object
) -> InProcess:
    """Call it as ``cli("place", "model.onnx", cwd=folder)``."""
    assert isinstance(tmp_path_factory, pytest.TempPathFactory)
    cache: Path = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return InProcess(capfd, monkeypatch)
