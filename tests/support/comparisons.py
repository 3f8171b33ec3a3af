"""Comparisons of placements of language models, as published ones are written."""

from __future__ import annotations

from typing import Any

DENSE: dict[str, Any] = {
    "hidden": 1024, "layers": 4, "heads": 8, "kv_heads": 2, "head_dim": 128, "ffn": 4096,
    "vocab": 32000, "bits_per_weight": 4.5,
}  # fmt: skip
SPARSE = {**DENSE, "ffn": None, "experts": 16, "experts_per_token": 2, "expert_ffn": 512}


def device(
    name: str, kind: str = "gpu", bandwidth: float = 900, memory: float = 24
) -> dict[str, Any]:
    return {
        "id": name, "kind": kind, "memory_GB": memory, "bandwidth_GBps": bandwidth,
        "peak_fp16_TFLOPs": 1000,
    }  # fmt: skip


def part(name: str, at: str, **more: Any) -> dict[str, Any]:
    return {"part": name, "layers": "all", "experts": None, "device": at, **more}


def comparison(parts: dict[str, list[dict[str, Any]]], **more: Any) -> dict[str, Any]:
    """A comparison whose options have these parts; the first is measured fastest."""
    return {
        "id": "a", "source": "somebody", "engine": "llama.cpp b1", "phase": "decode",
        "model": {"config": DENSE}, "context_tokens": 100, "batch": 1, "unit": "tok/s",
        "higher_is_better": True, "usable": True,
        "devices": [device("gpu0"), device("gpu1", bandwidth=400), device("cpu0", "cpu", 80, 64)],
        "links": [
            {"a": "cpu0", "b": "gpu0", "GBps": 32, "latency_us": 10, "kind": "PCIe"},
            {"a": "cpu0", "b": "gpu1", "GBps": 32, "latency_us": 10, "kind": "PCIe"},
        ],
        "options": [
            {"key": key, "measured": 100.0 / (1 + at), "plan": {"parts": own}}
            for at, (key, own) in enumerate(parts.items())
        ],
        **more,
    }  # fmt: skip


SPLIT = {
    "A": [part("all", "gpu0")],
    "B": [
        part("embedding", "cpu0"),
        part("all", "gpu0", layers=[0, 1]),
        part("all", "gpu1", layers=[2, 3]),
        part("head", "gpu1"),
    ],
    "C": [part("attention", "gpu0"), part("ffn", "cpu0"), part("head", "gpu0")],
    "D": [part("all", "gpu0", share=0.5), part("all", "gpu1", share=0.5)],
}
