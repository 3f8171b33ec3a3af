"""Modules in memory as people have them: half precision, gradients, one input, the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.training_loops import Gpt, batches, made, plan_of_step

import placewright as pw
from placewright.errors import InputError
from placewright.frameworks.torch.running import runtime

QUICK: dict[str, Any] = {
    "devices": "cpu:0", "runtime": "torch", "check": False, "calibrate": False,
    "placer": "single", "evaluations": 2,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_module_takes_its_own_tensors(dtype: torch.dtype) -> None:
    """One example input stands alone, and inputs may have a gradient."""
    module = torch.nn.Linear(8, 4).to(dtype)
    x = torch.randn(3, 8, dtype=dtype, requires_grad=True)
    plan = pw.place(module, example_inputs=x, **QUICK)
    with pw.load(plan) as model:
        found = torch.from_numpy(model(x)[0])
        wrong = torch.float32 if dtype == torch.bfloat16 else torch.bfloat16
        if dtype != torch.bfloat16:  # whose arrays are float32
            with pytest.raises(InputError, match="input 'input'"):
                model(x.to(wrong))
    torch.testing.assert_close(found, module(x).detach().to(found.dtype), rtol=2e-2, atol=2e-2)


def test_a_module_on_the_meta_device_is_read_and_not_run() -> None:
    with torch.device("meta"):
        module = torch.nn.Linear(8, 4)
    assert pw.read(module, torch.randn(3, 8)).graph.weight_bytes.sum() == 4 * (8 * 4 + 4)
    with pytest.raises(InputError, match="is on the meta device and has no values"):
        pw.place(module, example_inputs=torch.randn(3, 8), **QUICK)


def test_calls_of_run_generate_the_code_of_segments_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made_modules: list[object] = []
    original = runtime.segment_module

    def counted(*given: Any) -> Any:
        made_modules.append(given)
        return original(*given)

    monkeypatch.setattr(runtime, "segment_module", counted)
    batch = next(batches(Gpt, 1))
    plan = plan_of_step(made(Gpt), batch, seed=1)
    first = pw.run(plan, list(batch))
    count = len(made_modules)
    assert count > 1
    assert pw.run(plan, list(batch)) == first  # each call starts from the module's values
    assert len(made_modules) == count
