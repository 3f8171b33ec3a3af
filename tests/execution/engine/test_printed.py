"""The engine's log and session, read."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from placewright.errors import RuntimeFailure
from placewright.execution.engine.printed import (
    printed_cards,
    printed_devices,
    printed_places,
    session_tokens,
)

LOG = r"""
0.00.1 D load_tensors: layer   0 assigned to device CPU, is_swa = 0
load_tensors: layer   1 assigned to device RPC0, is_swa = 0
tensor blk.1.ffn_up_exps.weight (12 MiB q4_K) buffer type overridden to RPC0[127.0.0.1:7]
tensor blk.1.ffn_gate_exps.weight (1 MiB q8_0) buffer type overridden to CUDA_Host
load_tensors:   CPU_Mapped model buffer size =     2.00 MiB
load_tensors:    CUDA_Host model buffer size =     1.00 MiB
load_tensors: RPC0[127.0.0.1:7] model buffer size =     1.25 MiB
llama_kv_cache: RPC0[127.0.0.1:7] KV buffer size =     0.50 MiB
llama_kv_cache: RPC0[127.0.0.1:7] KV buffer size =     0.25 MiB
llama_memory_recurrent:  CPU RS buffer size =     3.00 MiB
sched_reserve: RPC0[127.0.0.1:7] compute buffer size =     9.00 MiB
sched_reserve: RPC0[127.0.0.1:7] compute buffer size =     4.00 MiB
~llama_context: RPC0[127.0.0.1:7] compute buffer size is   4.0000 MiB, matches expectation
"""
MIB, SERVED = 2.0**20, "RPC0[127.0.0.1:7]"


def test_sizes_are_summed_and_those_of_compute_replaced() -> None:
    printed = printed_places(LOG)
    assert printed.layers == {0: "CPU", 1: "RPC0"}
    assert printed.moved == {
        "blk.1.ffn_up_exps.weight": SERVED,
        "blk.1.ffn_gate_exps.weight": "CPU",  # pinned by the backend of a GPU
    }
    assert printed.weights == {"CPU": 3 * MIB, SERVED: 1.25 * MIB}
    assert printed.caches == {SERVED: 0.75 * MIB, "CPU": 3 * MIB}
    assert printed.compute == {SERVED: 4 * MIB}
    assert printed.lines["KV", SERVED] == 2
    assert printed.lines["model", "CPU"] == 2


def test_tokens_of_a_session(tmp_path: Path) -> None:
    path = tmp_path / "session"
    path.write_bytes(b"nsgg" + struct.pack("<II3i", 10, 3, 1, 260, 7) + b"state")
    assert session_tokens(path) == [1, 260, 7]


@pytest.mark.parametrize("data", [b"", b"nsgg", b"abcd" + bytes(8), b"nsgg" + b"\xff" * 12])
def test_damaged_sessions_are_one_error(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "session"
    path.write_bytes(data)
    with pytest.raises(RuntimeFailure, match="session"):
        session_tokens(path)


def test_devices_have_their_free_bytes() -> None:
    printed = """ggml_cuda_init: found 1 CUDA devices (Total VRAM: 81079 MiB):
  Device 0: NVIDIA H100 80GB HBM3, compute capability 9.0, VMM: yes, VRAM: 81079 MiB
Available devices:
  CUDA0: NVIDIA H100 80GB HBM3 (81079 MiB, 80552 MiB free)
"""
    assert printed_devices(printed) == {"CUDA0": 80552 * MIB}
    assert printed_devices("Available devices:\n") == {}
    assert printed_cards(printed).keys() == {"CUDA0"}
    assert printed_cards(printed)["CUDA0"].endswith(" MiB")
    assert "80552" not in printed_cards(printed)["CUDA0"]  # what is free is no hardware


def test_a_session_of_another_format_is_called_so(tmp_path: Path) -> None:
    path = tmp_path / "session"
    path.write_bytes(b"abcd" + b"\xff" * 12)
    with pytest.raises(RuntimeFailure, match="unknown format b'abcd'"):
        session_tokens(path)
