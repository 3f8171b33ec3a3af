"""Rates of engines of language models: what bounds a token on the catalogue's cards."""

from __future__ import annotations

import pytest

from placewright.profiling.catalogue import device_entry, engine_rates, is_device_name

BITS = {"q4_k": 4.5, "q8_0": 8.5}


@pytest.mark.parametrize("bits", BITS.values(), ids=BITS)
@pytest.mark.parametrize("card", ["gpu-rtx-3060", "gpu-rtx-3090", "gpu-rtx-4090", "gpu-rtx-5090"])
def test_a_token_of_llama_cpp_takes_what_the_memory_takes(card: str, bits: float) -> None:
    """A product of one row reads each weight once; consumer cards decode at the memory's pace."""
    entry, rates = device_entry(card), engine_rates("llama.cpp", "gpu")
    from_memory = bits / 8 / (entry.bandwidth * rates.bandwidth)
    computed = 2.0 / (entry.peak["f16"] * rates.share(1))
    assert computed < from_memory


@pytest.mark.parametrize("name", ["Orin", "Raspberry Pi 5 8GB"])
def test_a_name_of_devices_with_other_memory_is_no_alias(name: str) -> None:
    """CUDA calls AGX Orin, Orin NX and Orin Nano by one name; the entry of the board has 16 GB."""
    assert not is_device_name(name)
