"""Odd interfaces: nested arguments, outputs given twice, outputs that are inputs, unused inputs.

References are NumPy by hand, or the module itself, called by PyTorch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_order.models import SHAPE
from own_order.modules import Nested, Odd
from own_order.plans import split_plan
from writers.plans import plan_with

import placewright as pw
from placewright.execution.placements import call_runner
from placewright.session.models import load_model, loaded_model, runtime_named

RUNTIMES = ["openvino", "onnxruntime", "torch"]


def arrays(n: int) -> list[Any]:
    rng = np.random.default_rng(11)
    return [rng.standard_normal(SHAPE).astype(np.float32) for _ in range(n)]


def save(module: torch.nn.Module, path: Path, given: Any, named: Any = None) -> Path:
    torch.export.save(torch.export.export(module.eval(), tuple(given), named), path)
    return path


def require_close(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_nested_arguments(runtime: str, tmp_path: Path) -> None:
    z, a, left, right, scale, shift = arrays(6)
    of = torch.from_numpy
    path = save(
        Nested(),
        tmp_path / "nested.pt2",
        ({"z": of(z), "a": of(a)}, (of(left), of(right))),
        {"scale": of(scale), "shift": of(shift)},
    )
    plan = split_plan(path, runtime)
    expected = [(z - 2 * a) * scale, left - 3 * right, right + shift]
    require_close(pw.run(plan, [z, a, left, right, scale, shift]), expected)
    named = pw.run(
        plan,
        {"shift": shift, "pair_1": right, "held_a": a, "scale": scale, "pair_0": left, "held_z": z},
    )
    assert list(named) == ["first", "rest_0", "rest_1"]
    require_close(list(named.values()), expected)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_an_output_twice_an_input_as_output_and_an_unused_input(
    runtime: str, tmp_path: Path
) -> None:
    x, unused, y = arrays(3)
    path = save(Odd(), tmp_path / "odd.pt2", map(torch.from_numpy, (x, unused, y)))
    plan = split_plan(path, runtime)
    total = x - 3 * y
    expected = [total, y, total, np.tanh(total)]
    require_close(pw.run(plan, [x, unused, y]), expected)
    named = pw.run(plan, {"y": y, "unused": unused, "x": x})
    assert list(named) == ["output_0", "output_1", "output_2", "output_3"]
    require_close(list(named.values()), expected)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_distilbert_takes_ids_and_mask(runtime: str, tmp_path: Path) -> None:
    """Both are int64 of one shape: exchanged, they are valid and the outputs are others."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(5)
    config = transformers.DistilBertConfig(
        vocab_size=50, dim=32, n_layers=1, n_heads=2, hidden_dim=64, max_position_embeddings=16,
        return_dict=False,
    )  # fmt: skip
    module = transformers.DistilBertModel(config).eval()
    ids, mask = np.arange(8)[None] * 5 % 50, np.array([[1, 1, 1, 1, 1, 0, 0, 0]])
    given = [torch.from_numpy(ids), torch.from_numpy(mask)]
    plan = split_plan(save(module, tmp_path / "distilbert.pt2", given), runtime)
    with torch.no_grad():
        expected = module(*given)[0].numpy()
        exchanged = module(input_ids=given[1], attention_mask=given[0])[0].numpy()
    assert np.abs(expected - exchanged).max() > 0.1
    for found in (
        pw.run(plan, [ids, mask])[0],
        next(iter(pw.run(plan, {"attention_mask": mask, "input_ids": ids}).values())),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_tflite(tmp_path: Path) -> None:
    pytest.importorskip("tflite")
    from tflite_maker import write_tflite

    rng = np.random.default_rng(2)
    weight = rng.standard_normal((4, 3)).astype(np.float32)
    x = rng.standard_normal((1, 4)).astype(np.float32)
    write_tflite(tmp_path / "small.tflite", weight)
    plan = split_plan(tmp_path / "small.tflite", "openvino")
    expected = np.maximum(x @ weight, 0)
    require_close(pw.run(plan, [x]), [expected])
    named = pw.run(plan, {"x": x})
    assert list(named) == ["y"]
    require_close([named["y"]], [expected])


def test_a_training_step_beside_plain_pytorch(tmp_path: Path) -> None:
    """The split step's loss, every updated parameter and its momentum, beside ``loss.backward()``
    and ``torch.optim.SGD`` on the zoo's own module."""
    from placewright import zoo
    from placewright.zoo.model import training_of

    step = training_of(zoo.build("rnnlm", variant="tiny"))
    model = load_model("zoo:rnnlm/tiny", objective="training", runtime="torch")
    graph = model.graph
    cores = [d for d in runtime_named("torch").discover() if d.name.startswith("cpu:")][:2]
    cores = cores if len(cores) == 2 else cores * 2

    def device_of(op: int) -> int:  # what shares a parameter shares a device
        group = int(graph.op_colocation[op])
        return (group if group >= 0 else op) % 2

    plan = plan_with(graph, cores, device_of, model.source, "torch")
    inputs = [value.numpy() for value in step.example_inputs]
    with call_runner(plan.problem, plan.placement, loaded_model(plan.problem, "torch")) as run:
        before = run.state_values()
        (loss,) = run.run(inputs).outputs
        after = run.state_values()

    eager = torch.optim.SGD(step.module.parameters(), lr=0.01, momentum=0.9)
    expected = step.module.eval()(*step.example_inputs)
    expected.backward()
    eager.step()
    assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-5)
    compared = 0
    for path, parameter in step.module.named_parameters():
        name = f"p_{path.replace('.', '_')}"
        if parameter.grad is None or name not in after:
            continue
        change = after[name] - before[name]
        assert np.abs(change).max() > 0
        np.testing.assert_allclose(after[name], parameter.detach().numpy(), rtol=1e-5, atol=1e-7)
        momentum = eager.state[parameter]["momentum_buffer"].numpy()
        bound = 1e-4 * np.abs(momentum).max()
        np.testing.assert_allclose(after[f"{name}_momentum"], momentum, rtol=1e-3, atol=bound)
        compared += 1
    assert 2 * compared == len(after)

    require_close(pw.run(plan, inputs), [float(loss)])
    names = [port.name for port in loaded_model(plan.problem, "torch").signature.inputs]
    assert names == list(step.input_names)
    named = pw.run(plan, dict(reversed(list(zip(names, inputs, strict=True)))))
    assert list(named) == ["loss"]
    require_close([named["loss"]], [float(loss)])
