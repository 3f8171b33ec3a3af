"""Forms for other devices compute what the processor's kernels compute."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import training_loops

from placewright.execution.runtime import whole_segment
from placewright.frameworks.torch.running.runtime import TorchModel, TorchRuntime
from placewright.frameworks.torch.running.script import compiled_script, script_text
from placewright.frameworks.torch.running.segments import StateWrites, portable, segment_module
from placewright.session.models import loaded_model

_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


@pytest.mark.parametrize(("is_causal", "masked"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_attention_and_its_gradients(
    is_causal: bool, masked: bool, scale: float | None, kind: torch.dtype
) -> None:
    """Either form may be on the way forward and the other on the way back.

    The kernel refuses a mask where a query sees only the keys before it.
    """
    generator = torch.Generator().manual_seed(0)
    query, key, value, grad = (
        torch.randn(2, 3, length, 8, generator=generator, dtype=torch.float32).to(kind)
        for length in (5, 7, 7, 5)
    )
    mask = torch.randn(2, 1, 5, 7, generator=generator).to(kind) if masked else None
    said = {"attn_mask": mask, "scale": scale}
    expected = _FORWARD(query, key, value, 0.0, is_causal, **said)
    found = portable(_FORWARD)(query, key, value, 0.0, is_causal, **said)
    rough = kind is torch.bfloat16
    close = {"rtol": 2e-2, "atol": 2e-2} if rough else {"rtol": 1e-4, "atol": 1e-5}
    for mine, other in zip(found, expected, strict=True):
        assert mine.dtype == other.dtype
        torch.testing.assert_close(mine, other, **close)
    back = [
        form(grad, query, key, value, *forward, 0.0, is_causal, **said)
        for form in (_BACKWARD, portable(_BACKWARD))
        for forward in (expected, found)
    ]
    for grads in back[1:]:
        for mine, other in zip(grads, back[0], strict=True):
            torch.testing.assert_close(mine, other, **close)


def test_a_query_that_sees_nothing_gets_zeros() -> None:
    """Padding masks have such rows."""
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, 1, 4, 8, generator=generator) for _ in range(3))
    mask = torch.zeros(4, 4)
    mask[1] = float("-inf")
    for form in (_FORWARD, portable(_FORWARD)):
        out, sums = form(query, key, value, 0.0, False, attn_mask=mask)
        assert out[0, 0, 1].abs().max() == 0
        assert sums[0, 0, 1] == 0
        grads = portable(_BACKWARD)(query, query, key, value, out, sums, 0.0, False, attn_mask=mask)
        assert all(torch.isfinite(grad).all() for grad in grads)


def test_a_view_of_other_strides() -> None:
    x = torch.arange(6.0).reshape(2, 3).t()
    assert portable(torch.ops.aten.view.default)(x, [6]).tolist() == [0, 3, 1, 4, 2, 5]
    assert portable(torch.ops.aten.relu.default) is torch.ops.aten.relu.default


def test_a_step_for_an_accelerator_computes_the_same() -> None:
    """The segment is made for a GPU, with the forms of this file, and its calls run here."""
    plan = training_loops.plan_of_step(
        training_loops.made(training_loops.Gpt),
        next(training_loops.batches(training_loops.Gpt, 1)),
        seed=None,
    )
    model = loaded_model(plan.problem, "torch")
    assert isinstance(model, TorchModel)
    nodes, whole = model.nodes, whole_segment(plan.problem.graph)
    inputs = model.signature.ascending(model.random_inputs(np.random.default_rng(0)))
    found = []
    for device in ("cpu", "cuda"):
        part = segment_module(nodes, whole, torch.device(device), StateWrites())
        text = script_text(part.module, part.n_inputs)
        assert ("placewright.attention_backward(" in text) == (device == "cuda")
        state = [nodes.constants[name] for name in part.state]
        values = [model.from_host(value) for value in inputs]
        found.append(compiled_script(text)(torch._C.ScriptList(values), torch._C.ScriptList(state)))
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


class Library:
    """A library with two accelerators, of which the second is integrated."""

    @staticmethod
    def get_device_properties(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(
            name="a GPU", total_memory=(device.index + 1) * 2**30, is_integrated=device.index
        )


@pytest.mark.parametrize(("kind", "pools"), [("cuda", [None, "ram"]), ("mps", ["ram", "ram"])])
def test_an_integrated_accelerator_has_the_memory_of_the_machine(
    kind: str, pools: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator = torch.device(kind)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: accelerator)
    monkeypatch.setattr(torch, "get_device_module", lambda device: Library)
    found = [device for device in TorchRuntime().discover() if device.kind == "gpu"]
    assert [device.name for device in found] == [f"{kind}:0", f"{kind}:1"]
    assert [device.pool for device in found] == pools
    assert [device.memory_bytes for device in found] == [2**30, 2 * 2**30]
