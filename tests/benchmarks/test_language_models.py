"""Models for the engine: no two tokens have the same score by construction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf")

from gguf import GGUFReader

from benchmarks.language_models import FORMAT, Probe, write_model


def test_rows_of_tokens_differ(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", Probe(1, 2048, 1024, FORMAT, vocabulary=1500))
    tensors = {tensor.name: tensor.data for tensor in GGUFReader(tmp_path / "m.gguf").tensors}
    for name in ("output.weight", "token_embd.weight"):
        assert len(np.unique(tensors[name], axis=0)) == 1500
    assert len(np.unique(tensors["blk.0.ffn_up.weight"], axis=0)) < 1024  # quick to write
