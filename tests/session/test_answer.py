"""The text of an answer for a language model: the source of its costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.gguf_files import MADE, write_gguf

import placewright as pw
from placewright.core.cluster import Cluster, Device
from placewright.core.data_sheet import DataSheet, TokenRates
from placewright.session.language.answer import answer_lines, token_answer

RATES = TokenRates((1.0,), {"q4_k": (1e-12,)}, (1e-12,), 0.0, 0.0, "an engine")


@pytest.mark.parametrize("rates", [RATES, None])
def test_measured_costs_tell_the_cache_of_their_attention(
    rates: TokenRates | None, tmp_path: Path
) -> None:
    """Other formats and shared keys have the same seconds, as no probe has them."""
    path = write_gguf(tmp_path / "m.gguf", MADE["dense"], np.random.default_rng(0), vocabulary=512)
    device = Device("cpu", "cpu", 2.0**33, data_sheet=DataSheet({"f32": 1e12}, 1e11, rates))
    cluster = Cluster((device,), host="cpu")
    plan = pw.place(str(path), cluster=cluster, prompt=10, generate=2, kv="q8_0")
    answer = token_answer(plan, contexts=False)
    assert answer is not None
    text = "\n".join(answer_lines(plan, answer, "m.gguf"))
    is_told = "attention was measured on a cache of f16 with keys for each head" in text
    assert is_told == (rates is not None)
