"""Reading a `config.json`: sizes of the library, formats of llama.cpp, and what is refused."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.runner import InProcess, the_line
from gguf.constants import GGMLQuantizationType
from gguf.quants import quant_shape_to_byte_shape
from support.small_configs import FORMATS, FURTHER, SEEING, SMALL
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    StaticCache,
)

import placewright as pw
from placewright.errors import FieldError, InputError
from placewright.frameworks.language.config_model import (
    ConfigFile,
    built,
    read_config,
    tensors_with_bytes,
)
from placewright.frameworks.language.library_names import ARCHITECTURES, LibraryModel
from placewright.frameworks.language.modules import LanguageModel
from placewright.frameworks.language.quantizer import FORMATS as KNOWN
from placewright.frameworks.language.quantizer import bytes_of

DATA = Path(__file__).parents[2] / "data" / "language"
RECORDED: Mapping[str, Mapping[str, str]] = json.loads((DATA / "quantized.json").read_text())
LLAMA = {**SMALL["dense"], "model_type": "llama"}
CONTEXT = 40  # tokens; the windows are shorter


def folder_of(folder: Path, fields: Mapping[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def library_model(folder: Path, fields: Mapping[str, Any]) -> LibraryModel:
    return built(ConfigFile(folder_of(folder, fields)), tuple(ARCHITECTURES))


def test_infinity_is_read_as_the_library_writes_it(tmp_path: Path) -> None:
    """Its configurations hold floats that JSON lacks as objects."""
    config = AutoConfig.for_model("mamba2", num_hidden_layers=2, hidden_size=64, num_heads=8,
                                  head_dim=16, vocab_size=320)  # fmt: skip
    config.save_pretrained(tmp_path)
    assert "__float__" in (tmp_path / "config.json").read_text()
    module = AutoModelForCausalLM.from_config(config)
    assert read_config(tmp_path, None)[0].n_parameters == module.num_parameters()


@pytest.mark.parametrize("name", sorted(SMALL))
def test_parameters_and_caches_are_those_of_a_real_instance(name: str, tmp_path: Path) -> None:
    """The instance has weights, and its cache was allocated and filled for the whole context."""
    model, _, _ = read_config(folder_of(tmp_path, SMALL[name]), None)
    config = AutoConfig.for_model(**SMALL[name])
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    assert model.n_parameters == module.num_parameters()
    cache = StaticCache(config=config, max_cache_len=CONTEXT)
    with torch.no_grad():
        module(torch.zeros((1, CONTEXT), dtype=torch.long), past_key_values=cache, use_cache=True)
    kept = [tensor for layer in cache.layers for tensor in tensors_in(layer)]
    n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in kept)
    assert model.cache_bytes(CONTEXT, "f32") == n_bytes


def tensors_in(layer: Any) -> list[torch.Tensor]:
    """Keys, values and recurrent states of a layer's cache."""
    states = [*getattr(layer, "conv_states", {}).values()]
    states += getattr(layer, "recurrent_states", {}).values()
    states += [getattr(layer, "keys", None), getattr(layer, "values", None)]
    return [each for each in states if isinstance(each, torch.Tensor)]


SLIDING: Mapping[str, Mapping[str, Any]] = {  # types whose windows llama.cpp does not have
    "mistral": {**SMALL["dense"], "model_type": "mistral"},
    "mixtral": SMALL["eight-experts"],
    "phi3": SMALL["fused"],
    "qwen2": {**SMALL["odd-widths"], "use_sliding_window": True, "max_window_layers": 0},
}


@pytest.mark.parametrize("name", sorted(SLIDING))
def test_a_window_that_the_engine_lacks_does_not_shorten_the_cache(
    name: str, tmp_path: Path
) -> None:
    """src/models of llama.cpp sets none for llama, phi3 and qwen2: all tokens are kept."""
    fields = {**SLIDING[name], "sliding_window": 16}
    assert {cache.window for cache in library_model(tmp_path, fields).caches} == {16}
    model, _, _ = read_config(tmp_path, None)
    assert {cache.window for cache in model.caches} == {0}
    assert model.cache_bytes(CONTEXT, "f16") == 9 * 2 * 2 * 32 * 2 * CONTEXT


def test_a_window_has_the_length_that_the_engine_fixes(tmp_path: Path) -> None:
    """src/models/llama4.cpp sets 8192 tokens in three of four layers, whichever a file states."""
    fields = {
        **SMALL["dense"],
        "model_type": "llama4_text",
        "intermediate_size_mlp": 512,
        "num_local_experts": 4,
        "attention_chunk_size": 16,
    }
    stated = [cache.window for cache in library_model(tmp_path, fields).caches]
    assert stated == [16, 16, 16, 0, 16, 16, 16, 0, 16]
    model, _, _ = read_config(tmp_path, None)
    assert [cache.window for cache in model.caches] == [size and 8192 for size in stated]


def test_biases_of_experts_multiply_nothing(tmp_path: Path) -> None:
    """gpt-oss has three matrices of experts in a layer, each with a stack of biases."""
    model, _, _ = read_config(folder_of(tmp_path, SMALL["sinks"]), None)
    multiplying = [weight.multiplies for weight in model.layers[0]["experts"]]
    assert sorted(multiplying) == [False] * 3 + [True] * 3


# Tensors of a converted file that are no parameters of the library: a buffer of the router, and
# frequencies that the converter computes.
ADDED = ("exp_probs_b.bias", "rope_freqs.weight")


@pytest.mark.parametrize("name", sorted(SMALL))
def test_formats_are_those_of_llama_cpps_converter_and_quantizer(name: str, tmp_path: Path) -> None:
    """`scripts/make_quantized_facts.py` recorded what the programs wrote for random weights."""
    library = library_model(tmp_path, SMALL[name])
    expected = {key: row for key, row in RECORDED[name].items() if not key.endswith(ADDED)}
    for at, weights in enumerate(FORMATS, start=1):
        found = {each.name: each for each in tensors_with_bytes(library, weights)}
        assert sorted(found) == sorted(expected)
        for key, row in expected.items():
            shape, dtype = row.split()[0], row.split()[at]
            assert "x".join(map(str, found[key].shape)) == shape, key
            assert found[key].dtype == dtype, (key, weights)


@pytest.mark.parametrize("dtype", sorted(set(KNOWN.values())))
def test_bytes_follow_the_blocks_of_the_library(dtype: str) -> None:
    (n_bytes,) = quant_shape_to_byte_shape((1024,), GGMLQuantizationType[dtype.upper()])
    assert bytes_of(1024, dtype) == n_bytes


RESTING = 94 * 120 * 3 * 4096 * 1536  # weights of 120 of 128 experts, which a token does not pass
PUBLISHED = {  # parameters, of a token, bytes of keys and values of a token as f16
    "llama-3.3-70b": (70_553_706_496, 70_553_706_496, 2 * 80 * 8 * 128 * 2),
    "qwen3-235b-a22b": (235_093_634_560, 235_093_634_560 - RESTING, 2 * 94 * 4 * 128 * 2),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_configurations_are_read_whole(name: str) -> None:
    model = pw.read(f"hf:{DATA / name}.json", weights="q4_k_m")
    parameters, active, per_token = PUBLISHED[name]
    assert model.facts["parameters"] == parameters
    assert model.facts["active_parameters"] == active
    assert model.facts["cache_bytes_per_token_f16"] == per_token
    bits = 8 * float(model.facts["model_bytes"]) / parameters
    assert 4.5 < bits < 5.0
    plain = pw.read(f"hf:{DATA / name}.json")
    assert plain.source is not None
    assert plain.source.options["weights"] == "bf16"
    assert 2 <= float(plain.facts["model_bytes"]) / parameters < 2.001


def test_700_billion_parameters_are_read_as_their_latent(tmp_path: Path) -> None:
    """The sizes of DeepSeek-V3, which are the defaults of its type."""
    model, _, _ = read_config(folder_of(tmp_path, {"model_type": "deepseek_v3"}), "q4_k_m")
    assert model.n_parameters > 671e9
    assert (model.n_experts, model.experts_used) == (256, 8)
    assert model.cache_bytes(1000, "f16") == 61 * (512 + 64) * 2 * 1000
    assert "shared-experts" in model.layers[3]
    assert "feed-forward" in model.layers[0]


def test_part_of_a_model_that_sees_is_read_alone(tmp_path: Path) -> None:
    inner = {**SMALL["windows"], "dtype": "float16"}
    whole = {"model_type": "gemma3", "text_config": inner, "vision_config": {}}
    found, _, weights = read_config(folder_of(tmp_path, whole), None)
    alone, _, _ = read_config(folder_of(tmp_path, inner), "f16")
    assert found == replace(alone, state=())  # its parameters have other paths in the whole model
    assert weights == "f16"


def test_nothing_is_downloaded_and_no_code_of_the_folder_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "ran"
    (tmp_path / "modeling_trap.py").write_text(f"open({str(trap)!r}, 'w').write('x')\n")
    code = {
        "auto_map": {
            "AutoConfig": "modeling_trap.Trap",
            "AutoModelForCausalLM": "modeling_trap.Trap",
        },
        "attn_implementation": "kernels-community/flash-attn",
        "_attn_implementation": "modeling_trap.Trap",
        "quantization_config": {"quant_method": "bitsandbytes"},
        "num_labels": 10**9,
    }
    monkeypatch.setattr(socket.socket, "connect", refuse)
    model, _, _ = read_config(folder_of(tmp_path, {**SMALL["dense"], **code}), None)
    plain, _, _ = read_config(folder_of(tmp_path, SMALL["dense"]), None)
    assert model == plain
    assert not trap.exists()


def refuse(*arguments: Any) -> None:
    raise AssertionError(f"a connection was opened: {arguments[1:]}")


def with_(name: str, **changed: Any) -> Mapping[str, Any]:
    return {**SMALL[name], **changed}


REFUSED: Mapping[str, tuple[Any, str]] = {
    "no type": ({"hidden_size": 8}, "it has no 'model_type'; give the config.json"),
    "foreign type": (with_("dense", model_type="llamma"), "unknown model type 'llamma'"),
    "encoder": (with_("dense", model_type="bert"), "unknown model type 'bert'"),
    "code as type": (with_("dense", model_type="../../etc"), "it has no 'model_type'"),
    "two formats": (
        with_("dense", dtype="float16", torch_dtype="bfloat16"),
        "it states two formats: dtype 'float16' and torch_dtype 'bfloat16'; remove one",
    ),
    "a billion layers": (with_("dense", num_hidden_layers=10**9), "'num_hidden_layers' is 1000"),
    "a billion experts": (with_("experts", num_experts=10**9), "'num_experts' is 1000000000"),
    "wide": (with_("dense", hidden_size=10**12), "'hidden_size' is 1000000000000; at most"),
    "wide by a fraction": (with_("dense", hidden_size=1e300), "'hidden_size' is 1e+300; at most"),
    "wide in a list": (
        with_("dense", intermediate_size=[8, 1 << 62]), f"'intermediate_size' is {1 << 62}; at most"
    ),
    "text for a size": (with_("dense", hidden_size="wide"), "transformers takes no such fields"),
    "no heads": (with_("dense", num_attention_heads=0), "'num_attention_heads' is 0; at least 1"),
    "negative": (with_("dense", intermediate_size=-5), "'intermediate_size' is -5; at least 0"),
    "no context": (
        with_("dense", max_position_embeddings=-1), "'max_position_embeddings' is -1; at least 1"
    ),
    "heads of no pair": (
        with_("dense", num_key_value_heads=3),
        "'num_attention_heads' is 8, no multiple of 'num_key_value_heads', 3",
    ),
    "null": (with_("latent", v_head_dim=None), "without field 'v_head_dim', which is None, it"),
    "part": (
        {"model_type": "gemma3", "text_config": with_("windows", num_attention_heads=7)},
        "without field 'num_attention_heads', which is 7, it would",
    ),
    "layer types": (with_("convolutions", layer_types=["conv"]), "transformers "),
    "unknown activation": (with_("dense", hidden_act="os.system"), "transformers builds no"),
    "no object for the decoder": (
        {"model_type": "gemma3", "text_config": "wide"}, "transformers takes no such fields"
    ),
    "list": ([1, 2], "must hold a JSON object"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_bad_configuration_is_refused_in_a_line(name: str, tmp_path: Path) -> None:
    fields, expected = REFUSED[name]
    with pytest.raises(InputError) as caught:
        read_config(folder_of(tmp_path, fields), None)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_truncated_configuration_is_refused_at_every_length(tmp_path: Path) -> None:
    text = json.dumps(SMALL["dense"])
    for length in range(len(text)):
        (tmp_path / "config.json").write_text(text[:length])
        with pytest.raises(InputError, match=r"config\.json"):
            read_config(tmp_path, None)


def test_an_empty_folder_has_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no config"):
        read_config(tmp_path, None)
    with pytest.raises(InputError, match="does not exist"):
        pw.read(f"hf:{tmp_path / 'absent'}")


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("q4", "did you mean q4_0 or q4_1 or q4_k_s or q4_k_m\\?; available: f32, f16, "),
        ("q4_k_x", "'q4_k_x' is no format; did you mean q4_k_"),
        ("iq2_xxs", "'iq2_xxs' needs an importance matrix"),
        ("", "'' is no format"),
    ],
)
def test_an_unknown_format_of_weights_is_refused(
    weights: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(FieldError, match=expected):
        read_config(folder_of(tmp_path, SMALL["dense"]), weights)


def test_the_command_shows_it_and_refuses_in_a_line(tmp_path: Path, cli: InProcess) -> None:
    name = f"hf:{folder_of(tmp_path, SMALL['latent'])}"
    shown = cli("graph", name, "--weights", "Q4_K", "--json", cwd=tmp_path)
    facts = json.loads(shown.stdout)["facts"]
    assert facts["experts_used"] == 2
    model: LanguageModel = read_config(tmp_path, "q4_k_m")[0]
    assert facts["model_bytes"] == sum(weight.n_bytes for weight in model.all_weights())
    beyond = cli("graph", name, "--shape", "context=4096", cwd=tmp_path)
    assert "a context of 4096 tokens is beyond the 1024 of the model" in the_line(beyond, 2)


HUNYUAN = {
    "model_type": "hunyuan_v1_moe", "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 128, "num_experts": 4, "max_position_embeddings": 256,
}  # fmt: skip


def test_experts_of_a_token_may_be_stated_for_each_layer(tmp_path: Path) -> None:
    """As the published files of Hunyuan do; layers that differ, and no expert, are refused."""
    model, _, _ = read_config(folder_of(tmp_path, {**HUNYUAN, "moe_topk": [2, 2]}), None)
    assert (model.experts_used, model.n_experts) == (2, 4)
    for stated, reason in (([1, 2], "pass 1 and 2 experts"), ([0, 0], "a token passes 0")):
        with pytest.raises(InputError, match=reason):
            read_config(folder_of(tmp_path, {**HUNYUAN, "moe_topk": stated}), None)


NAMED_OTHERWISE: Mapping[str, Mapping[str, Any]] = {  # parameters that `gguf` has no names for
    "apertus": {**SMALL["fused"], "model_type": "apertus", "hidden_act": "xielu"},
    "bloom": {"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 4},
    "ernie4_5_moe": {
        **SMALL["fused"],
        "model_type": "ernie4_5_moe",
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_intermediate_size": 256,
    },
    "granitemoe": {**SMALL["fused"], "model_type": "granitemoe", "num_local_experts": 4},
    "hunyuan": HUNYUAN,
}


@pytest.mark.parametrize("name", sorted(NAMED_OTHERWISE))
def test_parameters_that_the_converter_renames_are_counted(name: str, tmp_path: Path) -> None:
    model, _, _ = read_config(folder_of(tmp_path, NAMED_OTHERWISE[name]), "q4_k_m")
    config = AutoConfig.for_model(**NAMED_OTHERWISE[name])
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config)
    assert model.n_parameters == module.num_parameters()


@pytest.mark.parametrize("name", sorted(FURTHER))
def test_parameters_of_further_types_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    fields = {"pad_token_id": 0, "model_type": name, **FURTHER[name]}
    model, _, _ = read_config(folder_of(tmp_path, fields), "q4_k_m")
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields))
    assert model.n_parameters == module.num_parameters()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", sorted(SEEING))
def test_parameters_of_a_text_part_are_those_of_the_library(
    name: str, tied: bool, tmp_path: Path
) -> None:
    """Whether the head is tied stands beside the text part, or in it."""
    fields = {"text_config": dict(SEEING[name]), "tie_word_embeddings": tied, "model_type": name}
    model, _, _ = read_config(folder_of(tmp_path, fields), "q4_k_m")
    with torch.device("meta"):
        whole = AutoModelForImageTextToText.from_config(AutoConfig.for_model(**fields))
    seeing = sum(each.numel() for path, each in whole.named_parameters() if "visual" in path)
    assert model.n_parameters == whole.num_parameters() - seeing
    assert model.tied == tied
    assert not model.state


def test_a_quantization_that_is_not_read_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder_of(tmp_path, {**SMALL["dense"], "quantization_config": {"quant_method": "awq"}})
    read_config(tmp_path, "q4_k_m")
    assert not caplog.messages
    for _ in range(2):
        read_config(tmp_path, None)
    (line,) = caplog.messages
    assert "weights are counted as bf16; argument `weights` chooses" in line
    caplog.clear()
    folder_of(tmp_path, {**SMALL["dense"], "quantization_config": None})
    read_config(tmp_path, None)
    assert not caplog.messages


def test_one_format_in_two_spellings_is_one(tmp_path: Path) -> None:
    stated = {"dtype": "float16", "torch_dtype": "torch.float16"}
    assert read_config(folder_of(tmp_path, {**SMALL["dense"], **stated}), None)[2] == "f16"


def test_objects_in_lists_name_no_code_and_no_file(tmp_path: Path) -> None:
    inner = {"auto_map": {"AutoConfig": "evil.Evil"}, "_name_or_path": "/etc", "kind": 1}
    fields = {**SMALL["dense"], "own": [inner]}
    assert ConfigFile(folder_of(tmp_path, fields)).fields["own"] == [{"kind": 1}]


def test_experts_in_mxfp4_count_as_the_engine_stores_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored = {"quantization_config": {"quant_method": "mxfp4"}}
    model, _, weights = read_config(folder_of(tmp_path, {**SMALL["sinks"], **stored}), None)
    assert weights == "mxfp4_moe"
    assert model == read_config(tmp_path, "mxfp4_moe")[0]
    assert not caplog.messages


def test_a_type_that_the_library_lacks_is_read_as_the_one_that_it_equals(tmp_path: Path) -> None:
    plain = read_config(folder_of(tmp_path, SMALL["latent"]), None)[0]
    own = {**SMALL["latent"], "model_type": "kimi_k2"}
    assert read_config(folder_of(tmp_path, own), None)[0] == plain


@pytest.mark.parametrize(
    ("lacking", "told"),
    [
        ((), ""),
        (("num_hidden_layers", "vocab_size"), "num_hidden_layers (32), vocab_size (32000)"),
        (("num_key_value_heads",), ""),  # one for each head, as llama has it
    ],
)
def test_sizes_that_the_file_lacks_are_told(
    lacking: tuple[str, ...], told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {key: value for key, value in LLAMA.items() if key not in lacking}
    library_model(tmp_path, fields)
    assert [line.partition(" lacks ")[2] for line in caplog.messages] == (
        [f"{told}: the defaults of transformers count"] if told else []
    )


def test_a_size_beside_its_part_counts_as_lacking(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The library reads sizes of the decoder inside `text_config` only."""
    inner = {key: value for key, value in SMALL["windows"].items() if key != "num_hidden_layers"}
    count = SMALL["windows"]["num_hidden_layers"] + 1
    fields = {"model_type": "gemma3", "num_hidden_layers": count, "text_config": inner}
    library_model(tmp_path, fields)
    (line,) = caplog.messages
    assert " lacks num_hidden_layers (" in line


def test_a_configuration_without_its_prefix_is_told(tmp_path: Path, cli: InProcess) -> None:
    folder = folder_of(tmp_path, SMALL["fused"])
    for name in (folder, folder / "config.json"):
        result = cli("place", name, "--devices", "rtx-4090,cpu", cwd=tmp_path)
        assert f"write hf:{name}" in the_line(result, 2)
