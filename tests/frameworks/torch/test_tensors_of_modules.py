"""Modules in memory as people have them: half precision, gradients, one input, the meta device."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.training_loops import Gpt, batches, made, plan_of_step

import placewright as pw
from placewright.core.source import Port
from placewright.errors import InputError
from placewright.frameworks.torch.reading.arguments import Arguments
from placewright.frameworks.torch.reading.fx_program import inference_program
from placewright.frameworks.torch.running import runtime
from placewright.frameworks.torch.training.step import read_training

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
        found = model(x)
        assert found.dtype == dtype
        wrong = torch.float32 if dtype == torch.bfloat16 else torch.bfloat16
        if dtype != torch.bfloat16:  # whose arrays are float32
            with pytest.raises(InputError, match="input 'input'"):
                model(x.to(wrong))
    torch.testing.assert_close(found, module(x).detach().to(found.dtype), rtol=2e-2, atol=2e-2)


def test_an_array_reversed_along_a_dimension_of_one_is_taken() -> None:
    """NumPy calls it contiguous, and PyTorch refuses its negative stride."""
    module = torch.nn.Linear(8, 4)
    x = np.ones((1, 8), np.float32)[::-1]
    assert x.flags.c_contiguous
    assert x.strides[0] < 0
    with pw.load(pw.place(module, example_inputs=torch.ones(1, 8), **QUICK)) as model:
        found = model(x)[0]
    np.testing.assert_allclose(found, module(torch.ones(1, 8)).detach(), rtol=1e-5)


def test_autocast_of_the_caller_changes_no_call() -> None:
    """A plan computes in the model's own types, in whichever thread."""
    module, x = torch.nn.Linear(64, 64), torch.randn(3, 64)
    expected = module(x).detach()
    with (
        pw.load(pw.place(module, example_inputs=x, **QUICK)) as model,
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        assert module(x).dtype == torch.bfloat16
        torch.testing.assert_close(model(x), expected)
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (torch.randn(3, 8, device="meta"), "no data"),
        (torch.randn(3, 8).to_sparse(), "to_dense"),
    ],
)
def test_tensors_without_an_array_are_refused_by_name(x: torch.Tensor, reason: str) -> None:
    plan = pw.place(torch.nn.Linear(8, 4), example_inputs=torch.randn(3, 8), **QUICK)
    with pw.load(plan) as model, pytest.raises(InputError, match=f"input 'input' .*{reason}"):
        model(x)


def test_a_module_on_the_meta_device_is_read_and_not_run() -> None:
    with torch.device("meta"):
        module = torch.nn.Linear(8, 4)
    assert pw.read(module, torch.randn(3, 8)).graph.weight_bytes.sum() == 4 * (8 * 4 + 4)
    with pytest.raises(InputError, match="is on the meta device and has no values"):
        pw.place(module, example_inputs=torch.randn(3, 8), **QUICK)


class _TwoWeights(torch.nn.Module):
    """Two products with a loss; the weights are apart, one parameter, or two of one memory."""

    def __init__(self, weights: str, device: str) -> None:
        super().__init__()
        self.a, self.b = (torch.nn.Linear(4, 4, bias=False, device=device) for _ in range(2))
        if weights == "tied":
            self.b.weight = self.a.weight
        if weights == "views":
            self.b.weight = torch.nn.Parameter(self.a.weight.detach().view(4, 4))
        if weights == "transposed":
            self.b.weight = torch.nn.Parameter(self.a.weight.detach().T)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x))).pow(2).mean()


@pytest.mark.parametrize("optimizer", ["sgd:clip=1,accumulate=2", "adam", "adamw:accumulate=2"])
@pytest.mark.parametrize("weights", ["apart", "tied"])
def test_a_step_on_the_meta_device_is_read_as_on_the_processor(
    weights: str, optimizer: str
) -> None:
    """A weight without memory that is read twice is trained once."""
    read = [
        read_training(
            _TwoWeights(weights, device), (torch.ones(2, 4, device=device),), optimizer=optimizer
        )
        for device in ("cpu", "meta")
    ]
    on_cpu, on_meta = (list(each.program.state) for each in read)
    assert on_meta == on_cpu
    assert on_meta.count("p_b_weight") == (weights == "apart")
    assert read[1].graph.n_ops == read[0].graph.n_ops
    assert read[1].graph.weight_bytes.tolist() == read[0].graph.weight_bytes.tolist()


@pytest.mark.parametrize(("weights", "count"), [("apart", 2), ("views", 1), ("transposed", 2)])
def test_equal_views_of_one_memory_are_one_weight(weights: str, count: int) -> None:
    exported = torch.export.export(_TwoWeights(weights, "cpu"), (torch.ones(2, 4),))
    assert len({id(value) for value in inference_program(exported).state.values()}) == count


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


@dataclasses.dataclass
class Scored:
    """What a module of Hugging Face's kind returns: fields, some of them None or nested."""

    scores: torch.Tensor
    cache: torch.Tensor | None
    pair: tuple[torch.Tensor, dict[str, torch.Tensor]]

    def __post_init__(self) -> None:
        assert self.scores is not None


class OfAll(torch.nn.Module):
    """Nested inputs of several types, and a result of several containers."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4).to(dtype)
        self.dtype = dtype

    def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]) -> Any:
        small, words = state
        y = self.layer(x) + words.to(self.dtype).sum()
        return Scored(y, None, (small + 1, {"a": y.argmax(-1), "b": y > 0}))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_tensors_give_the_result_of_the_module_itself(dtype: torch.dtype) -> None:
    """Types, classes, names and nesting are the module's own; arrays still give arrays."""
    module = OfAll(dtype)
    given = (
        torch.randn(3, 8).to(dtype),
        (torch.randint(-100, 100, (5,), dtype=torch.int8), torch.arange(4)),
    )
    plan = pw.place(module, example_inputs=given, **QUICK)
    expected = module(*given)
    with pw.load(plan) as model:
        called = model(*given)
        streamed = list(model.stream([given, given]))
        arrays = [value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()
                  for value in (given[0], *given[1])]  # fmt: skip
        assert [type(value) for value in model(arrays)] == [np.ndarray] * 4
        assert [info.name for info in model.outputs] == ["scores", "pair_0", "pair_1_a", "pair_1_b"]
    for found in (called, *streamed, pw.run(plan, given)):
        assert type(found) is Scored
        assert found.cache is None
        assert type(found.pair) is tuple
        assert list(found.pair[1]) == ["a", "b"]
        assert found.scores.dtype == dtype
        assert found.pair[0].dtype == torch.int8
        assert found.pair[1]["b"].dtype == torch.bool
        torch.testing.assert_close(found.scores, expected.scores.detach(), rtol=2e-2, atol=2e-2)
        assert torch.equal(found.pair[0], expected.pair[0])


def test_one_tensor_and_a_list_stay_what_they_are() -> None:
    x = torch.randn(3, 8)
    plan = pw.place(torch.nn.Linear(8, 4), example_inputs=x, **QUICK)
    found = pw.run(plan, [x])
    assert isinstance(found, torch.Tensor)
    assert found.shape == (3, 4)
    by_name = pw.run(plan, {"input": x})
    assert torch.equal(by_name, found)


class OfBatch(torch.nn.Module):
    """Its only argument is a dictionary, as a tokenizer returns it."""

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        a, (b, c) = batch["a"], batch["rest"]
        return a + 10 * b + 100 * c


class Batch(UserDict[str, Any]):
    """A mapping that is no dictionary."""


def test_dictionaries_are_matched_by_their_keys(tmp_path: Path) -> None:
    a, b, c = (torch.full((2,), float(value)) for value in (1, 2, 3))
    example = {"a": torch.zeros(2), "rest": (torch.zeros(2), torch.zeros(2))}
    plan = pw.place(OfBatch(), example_inputs=(example,), **QUICK)
    torch.export.save(torch.export.export(OfBatch(), (example,)), tmp_path / "m.pt2")
    of_file = pw.place(str(tmp_path / "m.pt2"), **QUICK)
    other_order = {"rest": (b, c), "a": a}
    for placed in (plan, of_file):
        with pw.load(placed) as model:
            for found in (
                model([other_order]),
                model(other_order),
                model(Batch(other_order)),
                model(batch=other_order),
                model(batch=Batch(other_order)),
                model(a, b, c),
                model(batch_rest_1=c, batch_rest_0=b, batch_a=a),
                model({"a": a.numpy(), "rest": [b.numpy(), c.numpy()]})[0],
                *model.stream([other_order, [other_order]]),
            ):
                np.testing.assert_array_equal(found, np.full(2, 321.0))
            for wrong, message in (
                ({"a": a, "rest": (b, c), "z": a}, "got 'a', 'rest', 'z'"),
                ({"a": a}, "argument batch has the keys 'a', 'rest', got 'a'"),
                ({"a": a, "rest": (b, c, a)}, r"argument batch\['rest'\] has 2 entries, got 3"),
                ([a, {"x": b}], "the model has 3 inputs"),
            ):
                with pytest.raises(InputError, match=message):
                    model(wrong)


@dataclasses.dataclass
class Held:
    """A class that PyTorch knows, with a dictionary in it."""

    first: torch.Tensor
    rest: dict[str, torch.Tensor]


class OfHeld(torch.nn.Module):
    def forward(self, x: torch.Tensor, held: Held) -> torch.Tensor:
        return x + held.first + 10 * held.rest["a"] + 100 * held.rest["b"]


def test_entries_of_a_class_are_matched_by_their_keys() -> None:
    torch.export.register_dataclass(Held, serialized_type_name="nowhere.Held")
    one, two, three, four = (torch.full((2,), float(value)) for value in range(1, 5))
    example = (torch.ones(2), Held(torch.ones(2), {"a": torch.ones(2), "b": torch.ones(2)}))
    arguments = Arguments.of(torch.export.export(OfHeld(), example))
    ports = [Port(name, (2,), "f32", at) for at, name in enumerate("xfab")]
    other_order = {"b": four, "a": three}
    for held in (Held(two, other_order), {"rest": other_order, "first": two}):
        found, _ = arguments.flattened((one, held), ports)
        assert [float(value[0]) for value in found] == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(InputError, match="argument held has the keys 'first', 'rest', got 'a'"):
        arguments.flattened((one, {"a": two, "rest": other_order}), ports)


class OfTwo(torch.nn.Module):
    """A loss of an array and a dictionary; a number among its arguments is part of the plan."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, power: int, *, batch: dict[str, Any]) -> torch.Tensor:
        return (self.layer(x) * batch["one"] ** power - batch["two"]).sum()


def test_a_dictionary_beside_other_inputs_of_inference_and_of_a_step() -> None:
    module, x = OfTwo(), torch.ones(3, 2)
    batch = {"two": torch.full((3, 2), 2.0), "one": torch.ones(3, 2)}
    said = {"x": x, "power": 2, "batch": {"one": torch.zeros(3, 2), "two": torch.zeros(3, 2)}}
    expected = float(module(x, 2, batch=batch).detach())
    for objective in ("latency", "training"):
        plan = pw.place(module, example_inputs=said, objective=objective, **QUICK)
        with pw.load(plan) as model:
            assert float(model(x=x, batch=batch)) == pytest.approx(expected, rel=1e-5)
        with pw.load(plan) as model:
            assert float(model(x, batch)) == pytest.approx(expected, rel=1e-5)
        fixed = pw.place(module, example_inputs=said, values={"x": (1.0,)}, **QUICK)
        with pw.load(fixed) as model:
            assert float(model([batch])) == pytest.approx(expected, rel=1e-5)
        with pw.load(plan) as model, pytest.raises(InputError, match=r"'one', 'two', got 'one'$"):
            model(x, {"one": x})


class Scaled(torch.nn.Module):
    """Arguments that are no tensors become constants of the program."""

    def forward(
        self,
        x: torch.Tensor,
        times: int,
        batch: dict[str, Any],
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        scaled = x * times + batch["y"] * batch["power"]
        return scaled if mask is None else scaled * mask


def test_numbers_among_the_arguments_are_the_examples() -> None:
    module, x = Scaled(), torch.randn(2, 3)
    batch = {"y": torch.randn(2, 3), "power": 2.0}
    plan = pw.place(module, example_inputs=(x, 3, batch), **QUICK)
    expected = module(x, 3, batch)
    with pw.load(plan) as model:
        torch.testing.assert_close(model(x, 3, batch), expected)
        torch.testing.assert_close(model(x, batch), expected)
        torch.testing.assert_close(model(x=x, times=3, batch=batch), expected)
        torch.testing.assert_close(model(x, times=3, batch=batch), expected)
        with pytest.raises(InputError, match=r"argument times always is 3 here.*; got 4: place"):
            model(x, 4, batch)
        with pytest.raises(InputError, match="argument times always is 3"):
            model(x=x, times=torch.arange(3), batch=batch)
        with pytest.raises(InputError, match=r"argument batch\['power'\] always is 2.0.*got 3.0"):
            model(x, batch | {"power": 3.0})


def test_an_argument_that_was_none_takes_no_tensor() -> None:
    module, x = Scaled(), torch.randn(2, 3)
    batch = {"y": torch.randn(2, 3), "power": 2.0}
    plan = pw.place(module, example_inputs=(x, 3, batch, None), **QUICK)
    with pw.load(plan) as model:
        torch.testing.assert_close(model(x, 3, batch), module(x, 3, batch))
        torch.testing.assert_close(model(x, 3, batch, None), module(x, 3, batch))
        with pytest.raises(InputError, match=r"argument mask always is None here.* a Tensor"):
            model(x, 3, batch, torch.ones(2, 3))


def test_lazy_conjugates_and_negatives_are_computed() -> None:
    """NumPy has no bits for them."""

    class Spectrum(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            found = torch.fft.rfft(x).conj()
            return found + y, torch.fft.rfft(x).conj().imag

    module, x = Spectrum(), torch.randn(3, 8)
    given = (x, torch.fft.rfft(torch.randn(3, 8)).conj())
    plan = pw.place(module, example_inputs=given, **QUICK | {"check": True})
    for found, expected in zip(pw.run(plan, given), module(*given), strict=True):
        torch.testing.assert_close(found, expected.resolve_conj().resolve_neg())


class Centred(torch.nn.Module):
    """It changes its input, and does nothing more to one that is changed already."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.sub_(x.mean())
        return self.layer(torch.relu_(x)).square().mean()


@pytest.mark.parametrize("objective", ["latency", "training"])
def test_a_module_that_changes_its_input_leaves_the_callers(objective: str) -> None:
    module, x = Centred().eval(), torch.randn(3, 8).numpy()
    before, example = x.copy(), torch.relu(torch.randn(3, 8))
    session = pw.Session(module, example_inputs=example, objective=objective, **QUICK)
    plan = session.place()
    expected = float(module(torch.tensor(x)).detach())
    assert float(pw.run(plan, [x])[0]) == pytest.approx(expected, rel=1e-5)
    assert session.measure(plan, inputs=[x], runs=1).equal
    np.testing.assert_array_equal(x, before)


def test_files_of_one_model_have_one_hash(tmp_path: Path) -> None:
    """Written again it is the same model; other weights, or another shape, make another one."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))

    def written(rows: int, **said: Any) -> str:
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.pt2"
        torch.export.save(torch.export.export(module, (torch.randn(rows, 8),)), file)
        source = pw.read(file, runtime="torch", **said).source
        assert source is not None
        return source.sha256

    first, step = written(3), written(3, objective="training")
    assert written(3) == first
    assert written(4) != first
    with torch.no_grad():
        module[0].weight[0, 0] += 1
    assert written(3) != first
    assert written(3, objective="training") == step, "training changes the values itself"
