"""State that stays: a decoder's cache is changed where it lies, from call to call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.decoders import plan_on_cores
from torch import nn
from transformers import (
    BartConfig,
    BartForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

import placewright as pw
from benchmarks.own_decoders import Decoding, Sizes, llama_decoder, own_decoder, tokens_of
from placewright.errors import FieldError, InputError, RuntimeFailure, UnknownNameError
from placewright.execution.placements import placement_segments
from placewright.execution.runtime import MeasuresMemory
from placewright.frameworks.torch.decoders import STATE, cached_decoder
from placewright.frameworks.torch.programs import program_file
from placewright.frameworks.torch.reading.fx_program import plain_call
from placewright.frameworks.torch.reading.state import changes_in_place
from placewright.frameworks.torch.running.instances import TorchInstance
from placewright.session.models import loaded_model
from placewright.simulation.model import Simulator


@pytest.mark.parametrize(
    ("make", "runtime", "seed", "share"),
    [
        (own_decoder, "torch", None, 0.0),
        (own_decoder, "torch", 1, 0.0),
        (llama_decoder, "torch", None, 0.7),
        (own_decoder, "openvino", None, 0.0),
        (own_decoder, "openvino", None, 0.7),
        (llama_decoder, "openvino", 5, 0.0),
        (own_decoder, "onnxruntime", None, 0.7),
        (llama_decoder, "onnxruntime", 5, 0.0),
    ],
)
def test_two_hundred_tokens_are_those_of_the_unsplit_model(
    make: Callable[[Sizes], Decoding], runtime: str, seed: int | None, share: float, folder: Path
) -> None:
    decoding, expected = unsplit_tokens(make)
    assert len(set(expected)) > 3, "the same token again and again shows nothing"
    file = None if runtime == "torch" else folder / f"{make.__name__}.pt2"
    plan = plan_on_cores(decoding, seed, file, share, runtime)
    with pw.load(plan) as step:
        assert [port.name for port in step.inputs] == ["token", "position"]
        assert [port.name for port in step.outputs] == ["scores"]
        for count in (200, 50):  # and again from the start
            found = tokens_of(lambda *given: torch.as_tensor(call(step, *given)), count)
            assert found == expected[: len(expected) - 200 + count]  # the prompt goes first
            step.reset()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of exported decoders, each of which is exported once."""
    return tmp_path_factory.mktemp("decoders")


@cache
def unsplit_tokens(make: Callable[[Sizes], Decoding]) -> tuple[Decoding, list[int]]:
    decoding = make(Sizes(layers=2))
    return decoding, tokens_of(decoding.plain(), 200)


def call(step: Any, *given: torch.Tensor) -> Any:
    """Arrays in, tensors for PyTorch."""
    is_torch = step.plan.runtime == "torch"
    return step(*(given if is_torch else [value.numpy() for value in given]))["scores"]


def test_the_cache_counts_once_and_nothing_of_it_is_sent() -> None:
    decoding = own_decoder()
    plan = plan_on_cores(decoding, 1)
    graph, unit_graph = plan.problem.graph, plan.problem.unit_graph
    n_bytes = 4 * 2 * decoding.example_inputs[2][0].numel() * 4
    weights = sum(value.numel() * 4 for value in decoding.module.parameters())
    assert graph.weight_bytes.sum() == pytest.approx(weights + n_bytes, abs=2**13)
    assert graph.tensor_bytes.max() < n_bytes / 8, "a tensor of the size of a cache"
    assert unit_graph.tensor_bytes[unit_graph.tensor_is_output].sum() == Sizes().words * 4
    kinds = np.array(graph.op_kinds)
    for layer in range(4):
        mine = [f"layers.{layer}" in path for path in graph.op_modules]
        of_cache = mine & np.isin(kinds, ["index_copy", "scaled_dot_product_attention"])
        assert of_cache.sum() == 3
        assert len(set(graph.op_colocation[of_cache])) == 1
    assert plan.problem.colocation.n_groups < plan.problem.n_units
    assert np.isfinite(Simulator(plan.problem).value(plan.placement))


def test_the_allocator_shows_no_second_cache() -> None:
    """One cache of a layer is a tenth of the peak; beside tensors, operators take a few KiB."""
    plan = plan_on_cores(own_decoder(), 1)
    problem = replace(plan.problem, inner_tensors=True)
    model = loaded_model(problem, "torch")
    assert isinstance(model, MeasuresMemory)
    segments = placement_segments(problem, plan.placement)
    measured = model.memory_peaks(segments, problem.cluster.devices)
    predicted = Simulator(problem).memory_peaks(plan.placement)
    assert (predicted[: len(measured)] >= 0.99 * measured).all()
    assert (predicted[: len(measured)] <= 1.02 * measured).all()


def test_buffers_that_a_module_changes_are_state() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sums", torch.zeros(3))
            self.head = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before = self.head(self.sums)
            self.sums.add_(x)
            return before + self.sums

    module = Counting().eval()
    x = torch.arange(3.0)
    with torch.no_grad():
        expected = [module(x * k).clone() for k in range(4)]
        module.sums.zero_()
    plan = plan_on_cores(Decoding(module, (x,), {}, lambda: lambda *_: x), 0)
    with pw.load(plan) as step:
        found = [step(x * k) for k in range(4)]
        step.reset()
        again = [step(x * k) for k in range(4)]
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(again, expected)
    with torch.inference_mode():
        step = pw.load(plan)
        found = [step(x * k) for k in range(4)]
    step.reset()  # outside
    again = [step(x * k) for k in range(4)]
    step.close()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(again, expected)
    assert not module.sums.any(), "the module's own buffer has changed"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"old_keys_0": "keys_0"}, "model output 'old_keys_0'"),
        ({"new_keys_0": "key_0"}, "model input 'key_0'"),
        ({"new_keys_*": "keys_0"}, r"expects one \* on both sides or none"),
        ({"new_keys_0": "keys_0", "new_keys_1": "keys_0"}, "'keys_0' twice"),
        ({"new_keys_0": "keys_0", "new_*eys_0": "*eys_1"}, "'new_keys_0' twice"),
        ({"scores": "keys_0"}, r"f32 \[1, 1, 101\], but input 'keys_0' f32 \[1, 4, 256, 16\]"),
    ],
)
def test_wrong_state_is_refused_by_name(state: dict[str, str], message: str) -> None:
    decoding = own_decoder(Sizes(layers=2))
    with pytest.raises((FieldError, UnknownNameError), match=message):
        pw.read(decoding.module, decoding.example_inputs, runtime="torch", state=state)


def test_state_is_of_inference_and_of_single_requests() -> None:
    decoding = own_decoder(Sizes(layers=2))
    with pytest.raises(FieldError, match="a training step keeps its own state"):
        pw.read(decoding.module, decoding.example_inputs, objective="training", state=STATE)
    with pytest.raises(FieldError, match="a call waits for the one before; use latency"):
        pw.place(
            decoding.module, example_inputs=decoding.example_inputs, state=STATE,
            objective="throughput", devices="cpu:0,cpu:1",
        )  # fmt: skip


def test_a_call_that_fails_leaves_no_half_state() -> None:
    decoding = own_decoder(Sizes(layers=2))
    with pw.load(plan_on_cores(decoding, None)) as step:
        expected = tokens_of(decoding.plain(), 9)
        with pytest.raises(RuntimeFailure, match="index"):
            step(torch.zeros(1, 1, dtype=torch.long), torch.tensor([9999]))
        with pytest.raises(RuntimeFailure, match=r"state is that of no call; reset\(\)"):
            step(torch.zeros(1, 1, dtype=torch.long), torch.tensor([0]))
        step.reset()
        assert tokens_of(lambda *given: step(*given)["scores"], 9) == expected


def test_a_call_that_is_interrupted_leaves_no_half_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes after the caches have changed."""
    decoding = own_decoder(Sizes(layers=2))
    with pw.load(plan_on_cores(decoding, None)) as step:
        expected = tokens_of(decoding.plain(), 9)
        whole = TorchInstance._call

        def interrupted(instance: TorchInstance, entering: list[torch.Tensor]) -> Any:
            whole(instance, entering)
            raise KeyboardInterrupt

        monkeypatch.setattr(TorchInstance, "_call", interrupted)
        given = torch.zeros(1, 1, dtype=torch.long), torch.tensor([0])
        with pytest.raises(KeyboardInterrupt):
            step(*given)
        monkeypatch.undo()
        with pytest.raises(RuntimeFailure, match=r"KeyboardInterrupt.*reset\(\)"):
            step(*given)
        step.reset()
        assert tokens_of(lambda *given: step(*given)["scores"], 9) == expected


class Delayed(nn.Module):
    """What came in two calls before: each state takes the value of the one before it."""

    def forward(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": a + 2 * x, "new_a": b.view(3, 1).view(3), "new_b": x}


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime", "torch"])
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_the_old_value_is_read_if_the_new_one_is_an_input(
    runtime: str, seed: int | None, tmp_path: Path
) -> None:
    """OpenVINO's compiled models do so only if they copy the input before they assign it."""
    given = torch.ones(3), torch.zeros(3), torch.zeros(3)
    decoding = Decoding(Delayed(), given, {"new_*": "*"}, lambda: lambda *_: _[0])
    with pw.load(plan_on_cores(decoding, seed, tmp_path / "d.pt2", 0.0, runtime)) as step:
        found = [float(step(np.full(3, k, np.float32))["y"][0]) for k in (1, 2, 3, 4)]
    assert found == [2.0, 4.0, 1 + 6.0, 2 + 8.0]


class Line(nn.Module):
    """A delay line; its first entry leaves as it was before the call."""

    def forward(self, x: torch.Tensor, line: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": line[:, 0], "new": torch.cat([line[:, 1:], x[:, None]], dim=1)}


# OpenVINO 2026.4 itself returns a part of the new state in f32, compiled as a whole, too.
@pytest.mark.parametrize("runtime", ["onnxruntime", "torch"])
def test_a_part_of_the_old_state_leaves_as_it_was(runtime: str, tmp_path: Path) -> None:
    decoding = Decoding(
        Line(), (torch.ones(1), torch.zeros(1, 4)), {"new": "line"}, lambda: lambda *_: _[0]
    )
    with pw.load(plan_on_cores(decoding, None, tmp_path / "l.pt2", 0.0, runtime)) as step:
        found = [float(step(np.full(1, k, np.float32))["y"][0]) for k in (1, 2, 3, 4, 5, 6)]
    assert found == [0.0, 0.0, 0.0, 0.0, 1.0, 2.0]


@pytest.mark.parametrize("seed", [None, 1])
def test_state_may_leave_as_it_was_and_an_input_may_become_state(seed: int | None) -> None:
    class Before(nn.Module):
        def forward(self, x: torch.Tensor, old: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"new": old + x, "before": old}

    class Last(nn.Module):
        def forward(self, x: torch.Tensor, prev: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + prev, x

    given = torch.ones(2), torch.zeros(2)
    for module, state, expected in (
        (Before(), {"new": "old"}, [0.0, 1.0, 3.0]),
        (Last(), {"output_1": "prev"}, [1.0, 3.0, 5.0]),
    ):
        plan = plan_on_cores(Decoding(module, given, state, lambda: lambda *_: _[0]), seed)
        with pw.load(plan) as step:
            found = [float(step(np.full(2, k, np.float32))[0][0]) for k in (1, 2, 3)]
            assert found == expected


@pytest.mark.parametrize(
    "shown",
    [
        lambda old, x: old.type_as(x),
        lambda old, x: old.sum_to_size(1, 2),
        lambda old, x: torch.einsum("ij->ji", old),
        lambda old, x: torch.broadcast_tensors(old, x)[0],
        lambda old, x: torch.meshgrid(old[0], x[0], indexing="ij")[0],
        lambda old, x: torch.atleast_2d(old),
    ],
)
def test_old_state_leaves_as_it_was_through_calls_that_may_return_it(
    shown: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    """The schemas of these calls do not say that results may lie in the memory of arguments."""

    class Shown(nn.Module):
        def forward(self, x: torch.Tensor, old: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"new": old + x, "before": shown(old, x)}

    given = torch.ones(1, 2), torch.zeros(1, 2)
    plan = plan_on_cores(Decoding(Shown(), given, {"new": "old"}, lambda: lambda *_: _[0]), None)
    with pw.load(plan) as step:
        found = [float(np.ravel(step(np.full((1, 2), k, np.float32))[0])[0]) for k in (1, 2, 3)]
    assert found == [0.0, 1.0, 3.0]


def exported(module: nn.Module, folder: Path) -> Path:
    torch.export.save(torch.export.export(module, (torch.ones(4, 3),)), folder / "m.pt2")
    return folder / "m.pt2"


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
@pytest.mark.parametrize("kind", ["buffer", "parameter"])
def test_a_file_whose_state_changes_is_not_converted(
    kind: str, runtime: str, tmp_path: Path
) -> None:
    """The converters drop the new value without a word."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if kind == "buffer":
                self.register_buffer("count", torch.zeros(1))
            else:
                self.count = nn.Parameter(torch.zeros(1), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x * self.count

    path = exported(Counting(), tmp_path)
    with pytest.raises(InputError, match=r"m\.pt2' changes 'count' in each call.*`runtime` torch"):
        pw.read(path, runtime=runtime)
    assert pw.read(path, runtime="torch").graph.n_ops > 0


@pytest.mark.parametrize("trains", [False, True])
def test_a_file_whose_outputs_need_no_old_value_may_be_converted(
    trains: bool, tmp_path: Path
) -> None:
    """It counts its calls, empties a buffer, has batch norm, and changes its input in place."""

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)
            self.register_buffer("calls", torch.zeros(1))
            self.register_buffer("sums", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            self.sums.zero_()
            self.sums.add_(x[0])
            found: torch.Tensor = self.norm(x.mul_(2)) + self.sums
            return found

    path = exported(Watching().train(trains), tmp_path)
    _, interface = program_file(path).load(path)
    assert len(interface.inputs) == len(interface.outputs) == 1


def test_buffers_stay_if_the_plain_call_fails() -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sums", torch.zeros(3))

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            self.sums.add_(x)
            return self.sums[at]

    module = Failing()
    run = plain_call(torch.export.export(module, (torch.ones(3), torch.tensor([0]))))
    writes = module.sums._version
    assert run([torch.ones(3), torch.tensor([1])])[0].tolist() == [1.0]
    with pytest.raises(IndexError):
        run([torch.ones(3), torch.tensor([9])])
    assert not module.sums.any()
    assert module.sums._version == writes


@pytest.mark.parametrize("seed", [None, 1])
def test_a_parameter_that_the_model_changes_is_state(seed: int | None) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = nn.Parameter(torch.zeros(2), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1.0)
            return x * self.count

    module = Counting()
    counting = Decoding(module, (torch.ones(2),), {}, lambda: lambda *_: _[0])
    writes = module.count._version
    with pw.load(plan_on_cores(counting, seed)) as step:
        assert [float(step(torch.ones(2))[0]) for _ in range(3)] == [1.0, 2.0, 3.0]
    assert not module.count.any()
    assert module.count._version == writes


@pytest.mark.parametrize("seed", [None, 1])
def test_a_stream_goes_on_from_the_state_of_the_calls(seed: int | None) -> None:
    class Summing(nn.Module):
        def forward(self, x: torch.Tensor, held: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"y": held + x, "new_held": held + x}

    decoding = Decoding(
        Summing(), (torch.ones(2), torch.zeros(2)), {"new_held": "held"}, lambda: lambda *_: _[0]
    )
    one = [torch.ones(2)]
    with pw.load(plan_on_cores(decoding, seed)) as step:

        def streamed(count: int) -> list[float]:
            return [float(made["y"][0]) for made in step.stream([one] * count)]

        assert float(step(*one)["y"][0]) == 1.0
        assert streamed(2) == [2.0, 3.0]
        assert streamed(1) == [4.0]
        step.reset()
        assert streamed(2) == [1.0, 2.0]
        with pytest.raises(InputError, match="sample 1: "):
            list(step.stream([one, [torch.ones(5)]]))


def test_a_product_with_the_old_state_is_no_update_in_place() -> None:
    """`addmm_` would overwrite the matrices that it multiplies."""

    class Squared(nn.Module):
        def forward(self, x: torch.Tensor, held: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + 1, torch.addmm(held, held, held)

    program = torch.export.export(Squared(), (torch.ones(2), torch.ones(2, 2)))
    graph = program.graph
    held = next(node for node in graph.nodes if node.op == "placeholder" and node.name == "held")
    product = next(iter(held.users))
    assert changes_in_place(graph, {"held": product.name}, []) == {}


def test_a_window_shorter_than_the_context_is_refused() -> None:
    """The mask of the caches hides no token that a window has left."""
    config = MistralConfig(
        vocab_size=9, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, sliding_window=4,
    )  # fmt: skip
    model = MistralForCausalLM(config).eval()
    with pytest.raises(InputError, match=r"look back 4 tokens.*at most 4, got 8"):
        cached_decoder(model, context=8)
    module, (_, _, *caches), _ = cached_decoder(model, context=4)
    tokens = torch.tensor([[5, 7, 3]])
    with torch.no_grad():
        found = module(tokens, torch.arange(3), *caches)["scores"]
        torch.testing.assert_close(found, model(tokens).logits)


def test_a_local_window_shorter_than_the_context_is_refused() -> None:
    """Such a layer would take the last places of the caches for the last tokens."""

    def made(kinds: list[str]) -> Any:
        config = GPTNeoConfig(
            vocab_size=9, hidden_size=32, intermediate_size=32, num_layers=2, num_heads=2,
            attention_types=[[kinds, 1]], window_size=4, max_position_embeddings=16,
        )  # fmt: skip
        return GPTNeoForCausalLM(config).eval()

    with pytest.raises(InputError, match=r"look back 4 tokens.*at most 4, got 8"):
        cached_decoder(made(["global", "local"]), context=8)
    cached_decoder(made(["global", "local"]), context=4)
    cached_decoder(made(["global", "global"]), context=8)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_that_adds_its_mask_sees_no_empty_place(attention: str) -> None:
    config = MistralConfig(
        vocab_size=9, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, attn_implementation=attention,
    )  # fmt: skip
    model = MistralForCausalLM(config).eval()
    assert model.config._attn_implementation == attention
    module, (_, _, *caches), _ = cached_decoder(model, context=16)
    tokens = torch.tensor([[5, 7, 3]])
    with torch.no_grad():
        found = module(tokens, torch.arange(3), *caches)["scores"]
        torch.testing.assert_close(found, model(tokens).logits)


def test_wrong_arguments_of_a_cached_decoder_are_told() -> None:
    config = GPT2Config(vocab_size=9, n_embd=32, n_layer=1, n_head=2, n_positions=8)
    model = GPT2LMHeadModel(config).eval()
    with pytest.raises(InputError, match=r"'transformer.wpe' .* has learned 8 positions.*got 9"):
        cached_decoder(model, context=9)
    with pytest.raises(InputError, match=r"argument `context` must be a whole number, got '8'"):
        cached_decoder(model, context="8")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"argument `tokens` must be a whole number, got 1.5"):
        cached_decoder(model, context=8, tokens=1.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="Linear is no model of transformers"):
        cached_decoder(torch.nn.Linear(2, 2), context=8)


def test_attention_that_takes_no_such_cache_is_refused() -> None:
    """The positions of BLOOM are in its mask, which it computes itself."""
    config = BloomConfig(vocab_size=9, hidden_size=32, n_layer=1, n_head=2)
    with pytest.raises(
        InputError, match=r"BloomForCausalLM does not run with keys and values of 8"
    ):
        cached_decoder(BloomForCausalLM(config).eval(), context=8)


def test_a_model_that_counts_its_own_positions_is_refused() -> None:
    """It counts from the length of the cache, so that every token would have position 0."""
    config = BartConfig(
        vocab_size=9, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
        max_position_embeddings=8,
    )  # fmt: skip
    model = BartForCausalLM(config).eval()
    with pytest.raises(InputError, match=r"BartForCausalLM takes no position_ids.*embed_positions"):
        cached_decoder(model, context=8)


def test_experts_that_call_a_kernel_of_their_own_are_named_with_the_setting() -> None:
    transformers = pytest.importorskip("transformers")
    fields = {
        "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 32, "num_local_experts": 4,
    }  # fmt: skip
    config = transformers.MixtralConfig(**fields, experts_implementation="grouped_mm")
    with pytest.raises(InputError, match="set experts_implementation='batched_mm' in its config"):
        cached_decoder(transformers.MixtralForCausalLM(config).eval(), context=16)
    config = transformers.MixtralConfig(**fields, experts_implementation="batched_mm")
    module, example, _ = cached_decoder(transformers.MixtralForCausalLM(config).eval(), context=16)
    assert module(*example)["scores"].shape == (1, 1, 50)


@pytest.mark.parametrize("kind", ["falcon", "gpt_bigcode", "deepseek_v3"])
def test_keys_and_values_have_the_shapes_that_attention_gives(kind: str) -> None:
    """Falcon and BigCode share one head under names of their own; DeepSeek's widths differ."""
    transformers = pytest.importorskip("transformers")
    fields = {"vocab_size": 20, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": None}
    fields |= {
        "falcon": {"num_attention_heads": 4, "multi_query": True},
        "gpt_bigcode": {"n_head": 4, "n_inner": 64, "n_positions": 16},
        "deepseek_v3": {
            "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 64,
            "moe_intermediate_size": 32, "q_lora_rank": 16, "kv_lora_rank": 16,
            "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
            "first_k_dense_replace": 2,
        },
    }[kind]  # fmt: skip
    config = transformers.AutoConfig.for_model(kind, **fields)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    module, (_, _, *caches), _ = cached_decoder(model, context=16)
    tokens = torch.tensor([[5, 7, 3, 2]])
    found = []
    with torch.no_grad():
        for place in range(4):
            answer = module(tokens[:, place : place + 1], torch.tensor([place]), *caches)
            found.append(answer["scores"][0, 0])
            caches = [answer["new_keys"], answer["new_values"]]
        expected = model(tokens, use_cache=False).logits[0]
    torch.testing.assert_close(torch.stack(found), expected, atol=1e-5, rtol=1e-5)
