"""The zoo's models: published sizes, and repeatable weights."""

from __future__ import annotations

import importlib.util
import threading
from typing import Any

import pytest
import torch

from placewright import zoo
from placewright.errors import MissingExtraError, UnknownNameError
from placewright.zoo.model import seeded, training_of

# Parameters that the publications (or the reference implementations) state.
PUBLISHED = {
    "inception_v3": 23_834_568,  # torchvision's inception_v3 without its auxiliary head
    "resnet50": 25_557_032,  # torchvision's resnet50
    "nasnet_a": 5_289_978,  # NASNet-A mobile with 1,000 classes
    "bert_base": 109_482_240,  # bert-base-uncased with its pooler
    "gpt2": 124_439_808,  # gpt2, embedding and head tied
}


def test_names_and_variants() -> None:
    expected = ["inception_v3", "resnet50", "bert_base", "gpt2", "gnmt", "rnnlm", "nasnet_a", "moe"]
    assert list(zoo.names()) == expected
    assert zoo.variants("rnnlm") == ("default", "tiny", "wide", "enlarged")


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(UnknownNameError, match=r"'vgg16'; .*available: inception_v3, resnet50"):
        zoo.build("vgg16")
    with pytest.raises(UnknownNameError, match=r"variant of zoo model gpt2 'huge'"):
        zoo.build("gpt2", variant="huge")


@pytest.mark.parametrize("name", ["bert_base", "gpt2", "moe"])
def test_a_missing_package_is_named_with_its_extra(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "transformers" else find(name)
    )
    with pytest.raises(MissingExtraError, match=r"transformers.*placewright\[zoo\]"):
        zoo.build(name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(name: str) -> None:
    with torch.device("meta"):  # without values
        module = zoo.build(name).module
    assert sum(parameter.numel() for parameter in module.parameters()) == PUBLISHED[name]


@pytest.mark.parametrize("name", zoo.names())
def test_models_are_repeatable(name: str) -> None:
    """That they export is tested with the readers."""
    model, again = zoo.build(name, variant="tiny"), zoo.build(name, variant="tiny")
    assert len(model.input_names) == len(model.example_inputs)
    assert not model.module.training
    with torch.no_grad():
        outputs = _every(model.module(*model.example_inputs))
        repeated = _every(again.module(*again.example_inputs))
    for output, other in zip(outputs, repeated, strict=True):
        assert torch.isfinite(output).all()
        assert output.std() > 1e-3  # a vanished signal would make every comparison of outputs pass
        assert torch.equal(output, other)


@pytest.mark.parametrize("name", ["gnmt", "moe", "bert_base"])
def test_the_loss_reaches_every_weight(name: str) -> None:
    model = zoo.build(name, variant="tiny")
    step = training_of(model)
    loss = step.module(*step.example_inputs)
    assert loss.shape == ()
    loss.backward()
    without = [key for key, value in model.module.named_parameters() if value.grad is None]
    assert without == []


def test_building_leaves_the_callers_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    zoo.build("rnnlm", variant="tiny")
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_mixture_uses_two_experts_per_token() -> None:
    model = zoo.build("moe", variant="tiny")
    mixture = model.module.blocks[0].experts
    seen: list[object] = []
    for expert in mixture.experts:
        expert[2].register_forward_hook(lambda _m, _i, output: seen.append(output))
    x = torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(1))
    mixed = mixture(x)
    scores = torch.softmax(mixture.gate(x), 2)
    best, chosen = torch.topk(scores, 2, dim=2)
    stacked = torch.stack(seen, 2)  # (batch, sequence, experts, hidden)
    picked = torch.gather(stacked, 2, chosen[..., None].expand(-1, -1, -1, 32))
    expected = (picked * (best / best.sum(2, keepdim=True))[..., None]).sum(2)
    torch.testing.assert_close(mixed, expected, rtol=1e-5, atol=1e-5)


def _every(outputs: object) -> Any:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def test_two_threads_that_build_models_do_not_share_draws() -> None:
    """The other thread draws between the seed and the weights of the first, if nothing waits."""
    entered, done = threading.Event(), threading.Event()

    def slow() -> torch.nn.Module:
        layer = torch.nn.Linear(3, 3)
        entered.set()
        done.wait(60.0)
        return layer

    other = threading.Thread(target=seeded, args=(slow,))

    def first() -> torch.nn.Module:
        other.start()
        entered.wait(0.2)
        return torch.nn.Linear(3, 3)

    expected = seeded(lambda: torch.nn.Linear(3, 3))
    try:
        found = seeded(first)
    finally:
        done.set()
        other.join()
    for name, value in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], value)
