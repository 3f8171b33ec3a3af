"""llama.cpp on this machine: small models that it loads, and servers that are its devices."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import platformdirs
from gguf import GGUFWriter

FOLDER = "PLACEWRIGHT_LLAMA_CPP"  # environment variable: the folder of its programs
EXPERTS, HIDDEN, HEADS, PAIRS, WIDTH, FEED, VOCABULARY = 8, 64, 4, 2, 16, 128, 256
LETTERS_AND_BYTES = 3 + 256 + 27


def program(name: str) -> Path | None:
    """A program of llama.cpp, in the folder that the environment names or on the path."""
    folder = os.environ.get(FOLDER)
    found = shutil.which(name, path=folder) if folder else shutil.which(name)
    return None if found is None else Path(found)


NO_ENGINE = f"llama.cpp is not here: set {FOLDER} to the folder of its programs"


def has_engine() -> bool:
    """Whether all programs that Placewright calls are here."""
    names = ("llama-bench", "llama-completion", "llama-fit-params", "ggml-rpc-server")
    return all(program(name) is not None for name in names)


def free_port() -> int:
    """A port of this machine that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def cache_of_kernels(folder: Path) -> Path:
    """A cache folder of a test's own, with the kernels of the usual one."""
    usual, own = Path(platformdirs.user_cache_dir("placewright")), folder / "cache" / "placewright"
    own.mkdir(parents=True)
    (own / "kernels").symlink_to(usual / "kernels")
    return own.parent


@contextmanager
def servers(count: int) -> Iterator[list[str]]:
    """Addresses of servers on the loopback interface, which are devices of llama.cpp."""
    started, addresses = [], []
    server = program("ggml-rpc-server")
    assert server is not None
    try:
        for _ in range(count):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            words = [str(server), "-H", "127.0.0.1", "-p", str(port), "-t", "1"]
            started.append(subprocess.Popen(words, stdout=-3, stderr=-3))
            addresses.append(f"127.0.0.1:{port}")
        for address in addresses:
            _wait_for(int(address.rpartition(":")[2]))
        yield addresses
    finally:
        for one in started:
            one.kill()
            one.wait()


def _wait_for(port: int) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"no server on port {port}")


def engine_gguf(
    path: Path, layers: int, *, has_experts: bool, seed: int = 0, has_tokens: bool = False
) -> Path:
    """Write a model in f16 with random weights.

    Args:
        path: of the file.
        layers: number.
        has_experts: a mixture of experts.
        seed: of the weights.
        has_tokens: with a vocabulary of letters and bytes, so that it reads text.
    """
    name = "qwen3moe" if has_experts else "llama"
    writer = GGUFWriter(str(path), name)
    numbers = {
        "block_count": layers,
        "context_length": 2048,
        "embedding_length": HIDDEN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": PAIRS,
        "attention.key_length": WIDTH,
        "attention.value_length": WIDTH,
        "feed_forward_length": FEED,
        "rope.dimension_count": WIDTH,
        "vocab_size": LETTERS_AND_BYTES if has_tokens else VOCABULARY,
    }
    if has_experts:
        numbers |= {
            "expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": FEED
        }  # fmt: skip
    for key, value in numbers.items():
        writer.add_uint32(f"{name}.{key}", value)
    writer.add_float32(f"{name}.attention.layer_norm_rms_epsilon", 1e-5)
    if has_tokens:
        add_letters(writer)
    else:
        writer.add_string("tokenizer.ggml.model", "no_vocab")
    rng = np.random.default_rng(seed)
    vocabulary = LETTERS_AND_BYTES if has_tokens else VOCABULARY
    for tensor, shape in _tensors(layers, vocabulary, has_experts=has_experts).items():
        kind = np.float32 if len(shape) == 1 or "gate_inp" in tensor else np.float16
        writer.add_tensor(f"{tensor}.weight", rng.normal(0, 0.05, shape).astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_letters(writer: GGUFWriter) -> None:
    """Add a vocabulary of letters and bytes, as SentencePiece has it."""
    letters = ["\u2581", *"abcdefghijklmnopqrstuvwxyz"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), *letters]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(letters)]  # unknown, control, byte, normal
    writer.add_string("tokenizer.ggml.model", "llama")
    writer.add_array("tokenizer.ggml.tokens", tokens)
    writer.add_array("tokenizer.ggml.scores", [0.0] * len(tokens))
    writer.add_array("tokenizer.ggml.token_type", kinds)
    writer.add_uint32("tokenizer.ggml.bos_token_id", 1)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)


def _tensors(layers: int, vocabulary: int, *, has_experts: bool) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "token_embd": (vocabulary, HIDDEN),
        "output_norm": (HIDDEN,),
        "output": (vocabulary, HIDDEN),
    }
    own: dict[str, tuple[int, ...]] = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HEADS * WIDTH, HIDDEN),
        "attn_k": (PAIRS * WIDTH, HIDDEN),
        "attn_v": (PAIRS * WIDTH, HIDDEN),
        "attn_output": (HIDDEN, HEADS * WIDTH),
        "ffn_norm": (HIDDEN,),
    }
    dense: dict[str, tuple[int, ...]] = {
        "ffn_gate": (FEED, HIDDEN), "ffn_up": (FEED, HIDDEN), "ffn_down": (HIDDEN, FEED)
    }  # fmt: skip
    routed: dict[str, tuple[int, ...]] = {
        "attn_q_norm": (WIDTH,),
        "attn_k_norm": (WIDTH,),
        "ffn_gate_inp": (EXPERTS, HIDDEN),
        **{f"{key}_exps": (EXPERTS, *shape) for key, shape in dense.items()},
    }
    own |= routed if has_experts else dense
    return found | {f"blk.{n}.{key}": shape for n in range(layers) for key, shape in own.items()}
