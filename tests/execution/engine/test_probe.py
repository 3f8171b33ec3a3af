"""Weights of probes are numbers, and no page of them is like another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf")

import gguf

from placewright.execution.engine.probe import Probe, write_probe

_PAGE = 4096


@pytest.mark.parametrize(
    "kind", ["f32", "f16", "bf16", "q4_0", "q8_0", "q4_k", "q6_k", "iq4_xs", "mxfp4"]
)
@pytest.mark.parametrize("has_experts", [False, True])
def test_weights_are_finite_and_pages_differ(kind: str, has_experts: bool, tmp_path: Path) -> None:
    write_probe(tmp_path / "probe.gguf", Probe(1, 256, 512, kind, has_experts))
    tensors = gguf.GGUFReader(tmp_path / "probe.gguf").tensors
    for tensor in tensors:
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.isfinite(numbers).all(), tensor.name
        assert np.abs(numbers).max() < 2, tensor.name
        if len(tensor.shape) > 1:
            data = np.ascontiguousarray(tensor.data).view(np.uint8).reshape(-1)
            pages = data[: len(data) // _PAGE * _PAGE].reshape(-1, _PAGE)
            assert len(np.unique(pages, axis=0)) == len(pages), tensor.name
