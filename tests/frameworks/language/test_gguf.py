"""Reading GGUF files: what they hold, and what is refused."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.runner import InProcess, the_line
from gguf import GGUFReader
from support.gguf_files import (
    ABSORBED,
    ATTENTION,
    DENSE,
    EXPERTS,
    FUSED,
    HIDDEN,
    MADE,
    VOCABULARY,
    Shape,
    write_gguf,
)

from placewright.errors import FileFormatError, InputError
from placewright.frameworks.language.gguf_model import read_gguf
from placewright.frameworks.language.modules import Cache
from placewright.frameworks.registry import companions_of_model
from placewright.session.models import Model, load_model

SMALL = 64  # entries of a small vocabulary


def written(folder: Path, name: str = "dense", **changed: Any) -> Path:
    made = replace(MADE[name], **changed)
    return write_gguf(folder / "m.gguf", made, np.random.default_rng(0), vocabulary=SMALL)


def read(path: Path, **sizes: int) -> Model:
    return load_model(str(path), shapes={name: (size,) for name, size in sizes.items()})


# Bytes of f16 caches of all layers after 4096 tokens, and of recurrent states. Two heads of keys
# and values with 64 elements are 256 elements a token, that is 512 bytes in each layer.
CACHES = {
    "dense": (3 * 512 * 4096, 0),
    "tied": (2 * 512 * 4096, 0),
    "half": (2 * 512 * 4096, 0),
    "fused": (2 * 512 * 4096, 0),
    "windows": (512 * (6 * 512 + 4096), 0),  # the sixth layer of seven looks back to the start
    "alternating": (512 * (128 + 4096), 0),
    "experts": (2 * 512 * 4096, 0),
    "latent": (2 * 2 * 288 * 4096, 0),  # rank 256 and 32 elements for positions
    "expanded": (2 * 2 * 4 * (96 + 64) * 4096, 0),  # four heads with keys and values of their own
    # three layers keep 512 x 64 numbers of four bytes, and three inputs of a convolution
    "hybrid": (512 * 4096, 3 * 4 * (512 * 64 + 3 * (512 + 2 * 4 * 64))),
}


@pytest.mark.parametrize("name", sorted(MADE))
def test_parameters_and_bytes_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    size = VOCABULARY if name == "dense" else SMALL  # the library reads a large one for a second
    path = write_gguf(tmp_path / "m.gguf", MADE[name], np.random.default_rng(0), vocabulary=size)
    of_library = GGUFReader(path).tensors
    found = load_model(str(path))
    assert found.facts["parameters"] == sum(int(each.n_elements) for each in of_library)
    n_bytes = sum(int(each.n_bytes) for each in of_library)
    assert found.facts["model_bytes"] == n_bytes
    cache, state = CACHES[name]
    assert found.facts["cache_bytes"] == cache + state
    assert found.facts["state_bytes"] == state
    assert found.graph.weight_bytes.sum() == n_bytes + cache + state
    assert found.facts["vocabulary"] == size


def test_a_dense_model_is_a_chain_of_modules(tmp_path: Path) -> None:
    """Flops: two for each weight of a matrix, one for each of a norm, and those of attention."""
    graph = read(written(tmp_path), context=100).graph
    assert graph.op_names == (
        "embedding",
        *(f"layers.{n}.{part}" for n in range(3) for part in ("attention", "feed-forward")),
        "head",
    )
    assert graph.n_edges == 7
    flops = dict(zip(graph.op_names, graph.op_flops.tolist(), strict=True))
    matrices = 256 * (256 + 128 + 128 + 256)
    scores = 100 * 2 * 4 * (64 + 64)  # two multiply-adds of four heads for each token looked at
    assert flops["layers.0.attention"] == 2 * matrices + HIDDEN + scores
    assert flops["layers.0.feed-forward"] == 2 * 3 * 256 * 512 + HIDDEN
    assert flops["head"] == 2 * SMALL * 256  # the norm of the head multiplies nothing
    assert graph.tensor_bytes[1] == 4 * HIDDEN


def test_a_token_adds_to_the_caches_of_layers_without_a_window(tmp_path: Path) -> None:
    """256 elements in one layer of seven; the others forget a token for each new one."""
    line = read(written(tmp_path, "windows")).lines[-1]
    assert line.startswith("each token adds 512 B as f16, 272 B as q8_0, 144 B as q4_0 to the")


def test_several_tokens_look_at_what_is_before_them(tmp_path: Path) -> None:
    one = read(written(tmp_path), tokens=1, context=100).graph
    many = read(written(tmp_path), tokens=30, context=100).graph
    at = one.op_index["layers.0.feed-forward"]
    assert many.op_flops[at] == 30 * one.op_flops[at]
    for window in (0, 7, 80, 90, 200):
        for tokens in (1, 5, 30, 100):
            looked = sum(min(n, window or n) for n in range(100 - tokens + 1, 101))
            assert Cache(1, window).looked_at(tokens, 100) == looked


def test_experts_are_one_module_and_a_token_passes_some(tmp_path: Path) -> None:
    found = read(written(tmp_path, "latent"), context=10)
    graph = found.graph
    assert graph.op_names[4:7] == ("layers.1.router", "layers.1.experts", "layers.1.shared-experts")
    at = graph.op_index["layers.1.experts"]
    assert graph.op_flops[at] == 2 * 3 * 256 * 256 * 2  # two of eight
    head = graph.op_index["head"]
    assert set(graph.predecessors.row(head).tolist()) == {at, at + 1}
    resting = 8 * 3 * 256 * 256
    assert found.facts["active_parameters"] == found.facts["parameters"] - resting * 6 / 8


def test_a_tied_head_keeps_the_weight_of_the_embedding(tmp_path: Path) -> None:
    graph = read(written(tmp_path, "tied")).graph
    embedding, head = graph.op_index["embedding"], graph.op_index["head"]
    shared = set(graph.op_weights.row(embedding)) & set(graph.op_weights.row(head))
    assert len(shared) == 1
    assert graph.op_flops[head] == 2 * SMALL * HIDDEN


def test_layers_may_differ_in_their_heads(tmp_path: Path) -> None:
    """Keys and values of the second layer are half as wide."""
    narrow = {**ATTENTION, "attn_k": (64, HIDDEN), "attn_v": (64, HIDDEN)}
    layers = ({**ATTENTION, **DENSE}, {**narrow, **DENSE})
    found = read(written(tmp_path, layers=layers), context=10)
    assert found.facts["cache_bytes_per_token_f16"] == 2 * (128 + 128 + 64 + 64)
    assert found.facts["cache_bytes_per_token_q8_0"] == 384 * 34 / 32


def test_parts_of_a_file_are_read_together(tmp_path: Path) -> None:
    whole, _ = read_gguf(written(tmp_path))
    first = MADE["dense"].layers[:2]
    rest = {f"blk.2.{name}": shape for name, shape in MADE["dense"].layers[2].items()}
    numbers = {"block_count": 3}
    made = replace(MADE["dense"], layers=first, numbers=numbers, tied=True)
    one = parts_file(tmp_path / "m-00001-of-00002.gguf", made, 2)
    other = replace(made, layers=(), others=rest | {"output": (SMALL, HIDDEN)})
    with pytest.raises(InputError, match=r"00002-of-00002\.gguf' does not exist"):
        read_gguf(one)
    parts_file(tmp_path / "m-00002-of-00002.gguf", other, 2, has_ends=False)
    model, _ = read_gguf(one)
    assert model.n_parameters == whole.n_parameters
    assert model.layers[2].keys() == whole.layers[2].keys()
    twice = replace(other, others=rest | {"blk.0.attn_q": (HIDDEN, HIDDEN)})
    parts_file(tmp_path / "m-00002-of-00002.gguf", twice, 2, has_ends=False)
    with pytest.raises(FileFormatError, match=r"holds the tensor 'blk\.0\.attn_q.* again"):
        read_gguf(one)
    shutil.copy(one, tmp_path / "m-00002-of-00002.gguf")
    with pytest.raises(FileFormatError, match=r"says that it is part 0 of 2, .* not 1 of 2"):
        read_gguf(one)
    renamed = one.rename(tmp_path / "first.gguf")
    with pytest.raises(FileFormatError, match="one of 2 parts; give the one whose name ends with"):
        read_gguf(renamed)


@pytest.mark.parametrize("window", [0, 1, 5, 8, 9, 100])
def test_tokens_kept_at_the_end_of_each_pass_are_summed_in_one_step(window: int) -> None:
    cache = Cache(window=window)
    for size, passes in ((1, 9), (4, 0), (4, 1), (4, 7), (9, 3)):
        expected = sum(cache.tokens(number * size) for number in range(1, passes + 1))
        assert cache.kept_at_ends(size, passes) == expected


def test_no_part_of_a_file_is_written_over(tmp_path: Path, cli: InProcess) -> None:
    names = [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    made = MADE["dense"]
    parts_file(tmp_path / names[0], replace(made, layers=made.layers[:1], tied=True), 3)
    for name in names[1:]:
        parts_file(tmp_path / name, replace(made, layers=()), 3, has_ends=False)
    before = [(tmp_path / name).read_bytes() for name in names]
    for name in names:
        done = cli("graph", names[0], "-o", name, cwd=tmp_path)
        assert f"'{name}'" in (line := the_line(done, 2))
        assert "overwritten" in line
    assert [(tmp_path / name).read_bytes() for name in names] == before


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("m.gguf", []),
        ("m-00001-of-00001.gguf", []),
        ("m-00002-of-00003.gguf", []),
        ("m-00001-of-00003.gguf", ["m-00002-of-00003.gguf", "m-00003-of-00003.gguf"]),
    ],
)
def test_the_name_of_the_first_part_tells_the_others(name: str, parts: list[str]) -> None:
    found = companions_of_model(Path("models") / name)
    assert found == tuple(Path("models") / part for part in parts)


def parts_file(path: Path, made: Any, count: int, *, has_ends: bool = True) -> Path:
    return write_gguf(
        path, made, np.random.default_rng(0), vocabulary=SMALL, parts=count, has_ends=has_ends
    )


PATTERN = "attention.sliding_window_pattern"


@pytest.mark.parametrize(
    ("architecture", "stated", "with_window"),
    [
        ("gemma2", {}, [0]),  # 4096 tokens unless stated
        ("gemma3n", {"attention.sliding_window": 9}, [0, 1, 2, 3, 5]),
        ("olmo2", {"attention.sliding_window": 9}, [0, 1, 2, 4, 5]),
        ("cohere2moe", {"attention.sliding_window": 9}, [1, 2, 3, 5]),
        ("gemma3", {"attention.sliding_window": 9, PATTERN: 0}, [0, 1, 2, 3, 4, 5]),
        ("gemma3", {"attention.sliding_window": 9, PATTERN: 1}, []),
        ("exaone4", {"attention.sliding_window": 9}, []),  # only the size of 64 layers has them
        ("exaone4", {"attention.sliding_window": 9, PATTERN: [True] * 5 + [False]}, []),
        ("phi3", {"attention.sliding_window": 9}, []),
        ("phi3", {"attention.sliding_window": 9, PATTERN: 2}, []),
        ("deepseek4", {"attention.sliding_window": 9}, [0, 1, 2, 3, 4, 5]),
        ("lfm2", {"attention.sliding_window": 9}, [0, 1, 2, 3, 4, 5]),
        ("lfm2moe", {"attention.sliding_window": 9}, []),
        ("lfm2moe", {"attention.sliding_window": 9, PATTERN: 4}, []),
    ],
)
def test_windows_are_in_the_layers_where_the_engine_has_them(
    architecture: str, stated: dict[str, Any], with_window: list[int], tmp_path: Path
) -> None:
    """The layers are those of src/models of llama.cpp, worked out by hand."""
    n_layers = 2 if architecture == "gemma2" else 6
    layers = ({**ATTENTION, **DENSE},) * n_layers
    path = written(tmp_path, architecture=architecture, layers=layers, numbers=stated)
    model, _ = read_gguf(path)
    found = [number for number, cache in enumerate(model.caches) if cache.window]
    assert found == with_window
    assert {cache.window for cache in model.caches} <= {0, 9, 4096}


@pytest.mark.parametrize(
    ("architecture", "stated", "windows"),
    [
        ("smallthinker", 9, {0, 4096}),
        ("smallthinker", 0, {0}),
        ("llama4", 9, {0, 8192}),
        ("llama4", 0, {0}),
        ("gemma3", 9, {0, 9}),
    ],
)
def test_an_engine_has_windows_of_its_own(
    architecture: str, stated: int, windows: set[int], tmp_path: Path
) -> None:
    """By function `load_arch_hparams` of src/models; a stated 0 means none."""
    layers = ({**ATTENTION, **DENSE},) * 6
    numbers = {"attention.sliding_window": stated}
    path = written(tmp_path, architecture=architecture, layers=layers, numbers=numbers)
    model, _ = read_gguf(path)
    assert {cache.window for cache in model.caches} == windows


def test_heads_of_layers_with_a_window_may_have_lengths_of_their_own(tmp_path: Path) -> None:
    """As those of Gemma 4: four heads, whose keys and values have 64 elements, or 128."""
    layers = ({**ATTENTION, **DENSE},) * 2
    numbers = {
        "attention.sliding_window": 9,
        PATTERN: [True, False],
        "attention.key_length": 128,
        "attention.value_length": 128,
        "attention.key_length_swa": 64,
        "attention.value_length_swa": 64,
    }
    path = written(tmp_path, architecture="gemma4", layers=layers, numbers=numbers)
    short, long = read_gguf(path)[0].caches
    assert (short.window, short.head, short.score_flops) == (9, 64, 2 * 4 * (64 + 64))
    assert (long.window, long.head, long.score_flops) == (0, 128, 2 * 4 * (128 + 128))


def test_latents_of_layers_with_a_window_are_kept_for_the_window(tmp_path: Path) -> None:
    """As those of dots3note, whose latents there have a rank of their own, by dots3note.cpp."""
    short_latent = {"attn_kv_a_mqa": (160, HIDDEN), "attn_kv_a_norm": (128,)}
    numbers = {
        "attention.sliding_window": 9,
        PATTERN: [True, False],
        "attention.kv_lora_rank": 256,
        "attention.kv_lora_rank_swa": 128,
    }
    layers = ({**ABSORBED, **short_latent, **DENSE}, {**ABSORBED, **DENSE})
    path = written(tmp_path, architecture="dots3note", layers=layers, numbers=numbers)
    short, long = read_gguf(path)[0].caches
    assert (short.window, short.elements_per_token) == (9, 160)
    assert short.score_flops == 2 * 4 * (160 + 128)
    assert (long.window, long.elements_per_token) == (0, 288)
    assert long.score_flops == 2 * 4 * (288 + 256)


STATE = 4 * 4 * 64  # bytes of a number of a state, times four heads of 64 elements
KEPT = {  # tensors of a layer, numbers -> elements of a token, and bytes of the state
    "rwkv7": (
        {"attn_norm": (HIDDEN,), "time_mix_output": (HIDDEN, HIDDEN)},
        {"wkv.head_size": 64, "token_shift_count": 2},
        (0, 4 * HIDDEN * (2 + 64)),
    ),
    "kimi-linear": (
        {**ATTENTION, "ssm_norm": (64,)},
        {"kda.head_dim": 64, "ssm.conv_kernel": 4},
        (0, STATE * (64 + 3 * 3)),
    ),
    "minimax-01": (
        {**FUSED, "attn_qkv": (768, HIDDEN)},
        {"attention.key_length": 64},
        (0, STATE * 64),
    ),
    "deepseek32": (
        {**ABSORBED, "indexer.attn_k": (128, HIDDEN)},
        {"attention.kv_lora_rank": 256, "attention.indexer.key_length": 128},
        (288 + 128, 0),
    ),
    "deci": ({"attn_output": (HIDDEN, HIDDEN)}, {"attention.head_count_kv": 0}, (0, 0)),
}


@pytest.mark.parametrize("architecture", sorted(KEPT))
def test_layers_keep_what_the_engine_keeps_for_them(architecture: str, tmp_path: Path) -> None:
    """By hand after `n_embd_r` and `n_embd_s` of llama-hparams.cpp, and llama-kv-cache-dsa.cpp."""
    tensors, numbers, expected = KEPT[architecture]
    layers = ({**tensors, **DENSE},)
    model, _ = read_gguf(
        written(tmp_path, architecture=architecture, layers=layers, numbers=numbers)
    )
    assert (model.caches[0].elements_per_token, model.caches[0].state_bytes) == expected


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    """llama.cpp skips their tensors (`TENSOR_SKIP` in src/models/glm4-moe.cpp)."""
    predicting = {**ATTENTION, **DENSE, "nextn.eh_proj": (HIDDEN, 2 * HIDDEN)}
    whole = ({**ATTENTION, **DENSE},) * 2
    said = {"architecture": "glm4moe", "numbers": {"nextn_predict_layers": 1, "block_count": 3}}
    plain, _ = read_gguf(written(tmp_path, architecture="glm4moe", layers=whole))
    for layers in (whole, (*whole, predicting)):
        model, _ = read_gguf(written(tmp_path, layers=layers, **said))
        assert replace(model, predicting=0) == plain
        assert model.predicting == 1
    source = load_model(str(tmp_path / "m.gguf")).source
    assert source is not None
    assert source.options["predicting_layers"] == "1"


def test_experts_of_a_token_may_be_stated_for_each_layer(tmp_path: Path) -> None:
    """As llama.cpp reads `expert_used_count`; a layer without experts has none."""
    layers = ({**ATTENTION, **DENSE}, {**ATTENTION, **EXPERTS})
    for stated, expected in (([0, 2], 2), ([1, 2], 2)):
        numbers = {"expert_count": 8, "expert_used_count": stated}
        model, _ = read_gguf(written(tmp_path, "experts", layers=layers, numbers=numbers))
        assert model.experts_used == expected
    numbers = {"expert_count": 8, "expert_used_count": [1, 2]}
    both = ({**ATTENTION, **EXPERTS},) * 2
    with pytest.raises(FileFormatError, match="pass 1 and 2 experts for a token, not one number"):
        read_gguf(written(tmp_path, "experts", layers=both, numbers=numbers))


def test_a_factor_of_a_matrix_is_not_taken_for_it(tmp_path: Path) -> None:
    """The table may list `attn_k.scale`, of one element, before `attn_k`."""
    model, _ = read_gguf(written(tmp_path, others={"blk.0.attn_k.scale": (1,)}))
    assert model.caches[0].elements_per_token == 256


def test_tensors_beside_layers_lie_where_the_engine_has_them(tmp_path: Path) -> None:
    """Those of gemma3n, as `LLM_TENSOR_INFOS` of llama-arch.cpp sorts them."""
    others = {
        "per_layer_token_embd": (SMALL, 256),
        "per_layer_model_proj": (256, HIDDEN),
        "altup_proj": (3, HIDDEN, HIDDEN),
    }
    path = written(tmp_path, architecture="gemma3n", others=others, tied=True)
    model, _ = read_gguf(path)
    plain, _ = read_gguf(written(tmp_path, architecture="gemma3n", tied=True))
    added = [
        sum(weight.n_elements for weight in weights) - sum(weight.n_elements for weight in before)
        for weights, before in (
            (model.embedding, plain.embedding),
            (model.layers[0]["attention"], plain.layers[0]["attention"]),
            (model.head, plain.head),
        )
    ]
    assert added == [SMALL * 256, 256 * HIDDEN, 3 * HIDDEN * HIDDEN]


# ---- files of strangers ----


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def entry(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


def row(name: str | bytes, shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def file_of(
    rows: list[bytes], entries: list[bytes] | None = None, *, n_tensors: int = -1, data: int = 4096
) -> bytes:
    entries = entries or []
    count = len(rows) if n_tensors < 0 else n_tensors
    head = b"GGUF" + struct.pack("<IQQ", 3, count, len(entries))
    return b"".join([head, *entries, *rows]) + bytes(data)


ARRAY = text("a") + struct.pack("<I", 9)
HOSTILE = {
    "empty": (b"", "ends inside its first word"),
    "another format": (b"PK\3\4" + bytes(40), "first word is not 'GGUF'"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "its version is 50331648"),
    "many tensors": (file_of([], n_tensors=10**9), "states 1000000000 tensors; at most 200000"),
    "more than bytes": (file_of([], n_tensors=199_999), "199999 tensors, and 4096 bytes are left"),
    "long name": (file_of([struct.pack("<Q", 1 << 62)]), "a text of 4611686018427387904 bytes"),
    "no UTF-8": (file_of([row(b"\xff\xfe")]), "the name of a tensor is not UTF-8"),
    "unprintable": (file_of([row("a\x1b[2J")]), r"tensor 'a\\x1b\[2J' has a name that cannot"),
    "dimensions": (file_of([row("a", (1,) * 9)]), "has 9 dimensions; 1 to 4"),
    "no elements": (file_of([row("a", (0, 4))]), "of 0 x 4 elements cannot have format f32"),
    "too many": (file_of([row("a", (1 << 40,) * 4)]), "elements cannot have format f32"),
    "no block": (file_of([row("a", (31,), 8)]), "of 31 elements cannot have format q8_0"),
    "unknown format": (file_of([row("a", kind=999)]), "unknown format 999"),
    "crooked": (file_of([row("a", offset=7)]), "begins at offset 7, no multiple of 32"),
    "behind the end": (file_of([row("a", (4096,))]), "bytes behind the file"),
    "far behind": (file_of([row("a", offset=1 << 63)]), "bytes behind the file"),
    "twice": (file_of([row("a"), row("a", offset=128)]), "tensor 'a' is there twice"),
    "overlap": (file_of([row("a", (64,)), row("b", offset=128)]), "'b' lies inside tensor 'a'"),
    "key twice": (file_of([], [entry("k", 1), entry("k", 2)]), "metadata 'k' is there twice"),
    "type": (file_of([], [text("k") + struct.pack("<I", 77)]), "type 77, which GGUF does not"),
    "nested": (file_of([], [ARRAY + struct.pack("<IQ", 9, 1)]), "an array of type 9"),
    "numbers": (file_of([], [ARRAY + struct.pack("<IQ", 4, 1 << 60)]), "more than the file"),
    "texts": (file_of([], [ARRAY + struct.pack("<IQ", 8, 1 << 60)]), "more than the file"),
    "alignment": (file_of([], [entry("general.alignment", 3)]), "must be a power of two, got 3"),
    "no decoder": (file_of([row("a")]), "it holds no decoder"),
}


@pytest.mark.parametrize("what", sorted(HOSTILE))
def test_a_hostile_file_is_refused_in_one_line(what: str, tmp_path: Path) -> None:
    content, reason = HOSTILE[what]
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(FileFormatError, match=reason) as refused:
        read(tmp_path / "m.gguf")
    assert "m.gguf" in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    whole = written(tmp_path, layers=MADE["dense"].layers[:1], tied=True).read_bytes()
    rng = np.random.default_rng(1)
    for size in (*rng.integers(0, len(whole), 40).tolist(), len(whole) - 40_000):
        (tmp_path / "short.gguf").write_bytes(whole[:size])
        with pytest.raises(FileFormatError, match=r"ends|bytes behind|are left|more than"):
            read(tmp_path / "short.gguf")


def without(tensors: Mapping[str, Shape], name: str) -> dict[str, Shape]:
    return {each: shape for each, shape in tensors.items() if each != name}


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "layers": ({"numbers": {"block_count": 4}}, "3 layers have tensors, 4 are stated"),
    "experts": ({"numbers": {"expert_count": 8}}, "no experts, metadata 8"),
    "chosen": (
        {
            "layers": ({**ATTENTION, **EXPERTS},),
            "numbers": {"expert_count": 8, "expert_used_count": 9},
        },
        "metadata 8 of which a token passes 9",
    ),
    "router": (
        {
            "layers": (ATTENTION | without(EXPERTS, "ffn_gate_inp"),),
            "numbers": {"expert_count": 8, "expert_used_count": 2},
        },
        "experts and no router",
    ),
    "output": (
        {"layers": (without(ATTENTION, "attn_output") | DENSE,)},
        "layer 0 has 'attn_q' and no 'attn_output'; tensors are missing",
    ),
    "down": ({"layers": (ATTENTION | without(DENSE, "ffn_down"),)}, "no 'ffn_down'"),
    "up": ({"layers": (ATTENTION | without(DENSE, "ffn_up"),)}, "no 'ffn_up'"),
    "experts' down": (
        {
            "layers": (ATTENTION | without(EXPERTS, "ffn_down_exps"),),
            "numbers": {"expert_count": 8, "expert_used_count": 2},
        },
        "no 'ffn_down_exps'",
    ),
    "encoder": ({"architecture": "bert"}, "'bert' generates no token after token: it is an enc"),
    "at once": ({"numbers": {"attention.causal": False}}, "'llama' generates no token after token"),
    "draft": (
        {"numbers": {"nextn_predict_layers": 3}},
        "all of its 3 layers predict further tokens; give the file of the whole",
    ),
    "cache": (
        {"layers": ({**without(ATTENTION, "attn_k"), **DENSE},)},
        "layer 0 attends, and what it keeps for a token is not known",
    ),
    "another part": ({"others": {"v.patch_embd": (256, 256)}}, "'v.patch_embd.weight' belongs to"),
}


@pytest.mark.parametrize("what", sorted(CONTRADICTIONS))
def test_a_file_that_contradicts_itself_is_refused(what: str, tmp_path: Path) -> None:
    changed, reason = CONTRADICTIONS[what]
    with pytest.raises(FileFormatError, match=reason):
        read(written(tmp_path, **changed))


WRONG_SIZES: list[tuple[dict[str, int], str]] = [
    ({"context": 8193}, "a context of 8193 tokens is beyond the 8192 of the model"),
    ({"tokens": 50, "context": 49}, "50 tokens do not fit into a context of 49"),
    ({"batch": 2}, "sizes 'tokens' and 'context', not 'batch'"),
    ({"tokens": 0}, "must be one number from 1 to"),
]


@pytest.mark.parametrize(("sizes", "reason"), WRONG_SIZES)
def test_wrong_sizes_are_refused(sizes: dict[str, int], reason: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=reason):
        read(written(tmp_path), **sizes)


def test_commands_show_modules_and_refuse_in_one_line(tmp_path: Path, cli: InProcess) -> None:
    written(tmp_path, "experts")
    shown = cli("graph", "m.gguf", "--shape", "context=100", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "architecture qwen3moe: 2 layers, 2 of 8 experts" in shown.stdout
    assert "100.00 KiB for 100 tokens as f16" in shown.stdout
    data = json.loads(cli("graph", "m.gguf", "--json", cwd=tmp_path).stdout)
    assert data["facts"]["experts_used"] == 2
    assert data["kinds"] == {
        "Attention": 2, "Router": 2, "Experts": 2, "Embedding": 1, "Head": 1
    }  # fmt: skip
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    line = the_line(cli("graph", "m.gguf", cwd=tmp_path), 2)
    assert "file 'm.gguf' is no usable GGUF: it ends inside the version" in line
