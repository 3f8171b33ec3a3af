"""A cache that cannot be written to is one warning, and a temporary folder takes its place."""

from __future__ import annotations

import logging
import resource
from pathlib import Path

import pytest

from placewright.io import scratch
from placewright.profiling.store import CostStore


def test_a_store_that_cannot_be_written_to_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Samples are read from it all the same, and new ones last as long as the process."""
    (tmp_path / "placewright").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(scratch, "_warned", [])
    scratch.folder_instead.cache_clear()
    CostStore().put_samples({"a": [1.0]}, complete=True)
    store = CostStore()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with caplog.at_level(logging.WARNING):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            assert store.samples(["a"]) == {"a": ([1.0], True)}
            with pytest.raises(Exception, match="cannot be used"):
                store.put_samples({"b": [2.0]}, complete=True)  # nor is there room for a copy
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        scratch.folder_instead.cache_clear()
        other = CostStore()
        other.put_samples({"c": [3.0]}, complete=True)
        assert CostStore().samples(["c"]) == {"c": ([3.0], True)}
    assert len(caplog.records) == 1
    scratch.folder_instead.cache_clear()
