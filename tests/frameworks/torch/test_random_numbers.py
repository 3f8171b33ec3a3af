"""Random operators: one draw per request or step, whatever else runs, and the user's state kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_programs import inference_program

import placewright as pw
from placewright.execution.direct import DirectRunner, whole_copies
from placewright.execution.requests import numbered
from placewright.execution.runner import ConcurrentRunner
from placewright.frameworks.torch import draws
from placewright.frameworks.torch.reading.calls import draws_random_numbers
from placewright.frameworks.torch.running.functions import SteppedFunction, segment_function
from placewright.frameworks.torch.running.runtime import TorchModel, TorchRuntime
from placewright.frameworks.torch.running.segments import SegmentModule
from placewright.session.loaded.kept import LIMIT_VARIABLE
from placewright.testing.framework_contract import random_segments

aten = torch.ops.aten
X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
QUICK: dict[str, Any] = {
    "devices": "cpu:0", "runtime": "torch", "check": False, "calibrate": False,
    "placer": "single", "evaluations": 2,
}  # fmt: skip


class Noisy(nn.Module):
    """Two branches that each draw, one of them by dropout that is never off."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dropped = nn.functional.dropout(x, 0.5, training=True)
        return torch.cat([dropped, (x + torch.randn_like(x)).tanh()])


@pytest.fixture
def unloaded() -> Iterator[None]:
    """No plan is loaded, before and after."""
    pw.unload()
    yield
    pw.unload()


@pytest.fixture(scope="module")
def plan() -> Any:
    return pw.place(Noisy(), example_inputs=torch.tensor(X), **QUICK)


def in_turn(plan: Any, count: int) -> list[Any]:
    return [pw.run(plan, [X])[0] for _ in range(count)]


def require_equal(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def n_distinct(outputs: list[Any]) -> int:
    return len({value.tobytes() for value in outputs})


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize("in_flight", [1, 3, 4])
def test_a_stream_draws_as_calls_one_after_the_other(plan: Any, in_flight: int) -> None:
    streamed = [found[0] for found in pw.stream(plan, [[X]] * 8, in_flight=in_flight)]
    assert n_distinct(streamed) == 8
    pw.unload()
    require_equal(streamed, in_turn(plan, 8))


@pytest.mark.usefixtures("unloaded")
def test_a_plan_that_is_not_kept_goes_on_counting(
    plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = in_turn(plan, 3)
    pw.unload()
    monkeypatch.setenv(LIMIT_VARIABLE, "0")
    require_equal(in_turn(plan, 3), kept)
    assert n_distinct(kept) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("unloaded")
def test_calls_of_several_shapes_count_together() -> None:
    """`pw.run` loads such a plan for each call."""
    shapes = [(1, {}), (1, {"x": (1, 8)})]
    plan = pw.place(Noisy(), example_inputs=torch.tensor(X), calls=shapes, **QUICK)
    found = [pw.run(plan, [X[:rows]])[0] for rows in (2, 1, 1)]
    with pw.load(plan) as model:
        require_equal(found, [model(X[:rows])[0] for rows in (2, 1, 1)])
    assert n_distinct(found) == 3


def test_callers_of_one_plan_get_different_draws(plan: Any) -> None:
    with pw.load(plan) as model:
        wanted = [model(X)[0] for _ in range(12)]
    with pw.load(plan) as model, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: model(X)[0], range(12)))
    assert {value.tobytes() for value in found} == {value.tobytes() for value in wanted}
    assert n_distinct(wanted) == 12


def loaded() -> TorchModel:
    program, graph, source = inference_program(Noisy(), (torch.tensor(X),))
    return TorchRuntime(lambda _: program).load(source, graph)


def test_splits_and_runners_draw_the_same_numbers() -> None:
    """Also copies on several devices, between which nothing tells whose turn it is."""
    model = loaded()
    devices = [device for device in TorchRuntime().discover() if ":" in device.name][:2]
    split = random_segments(model.graph, len(devices), np.random.default_rng(2), ops=1)
    with ConcurrentRunner(model, split, devices) as runner:
        wanted = [done.outputs[0] for done in runner.run_many([[X]] * 6)]
    assert n_distinct(wanted) == 6
    with ConcurrentRunner(model, split, devices, in_flight=3) as runner:
        require_equal([done.outputs[0] for done in runner.run_many([[X]] * 6)], wanted)
    with numbered(iter(range(6))):
        copies = DirectRunner(model, whole_copies(model, devices), at_once=2)
    require_equal([copies.run([X]).outputs[0] for _ in range(6)], wanted)


def test_placing_leaves_the_random_state_of_the_user() -> None:
    """Although the check calls the module itself, whose draws differ from call to call."""
    model, before = loaded(), torch.get_rng_state()
    pw.place(Noisy(), example_inputs=torch.tensor(X), **QUICK | {"check": True})
    plain = model.plain(TorchRuntime().discover()[0])
    assert n_distinct([plain([X])[0] for _ in range(3)]) == 3
    assert torch.equal(torch.get_rng_state(), before)


x = torch.tensor(X)
DRAWING: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "randn_like": (aten.randn_like.default, (x,)),
    "rand": (aten.rand.default, ([3, 4],)),
    "randint": (aten.randint.low, (2, 90, [5])),
    "randperm": (aten.randperm.default, (9,)),
    "bernoulli": (aten.bernoulli.p, (x, 0.3)),
    "poisson": (aten.poisson.default, (x.abs(),)),
    "dropout": (aten.dropout.default, (x, 0.4, True)),
    "all dropped": (aten.dropout.default, (x, 1.0, True)),
}
BY_DEFAULT = {
    "alpha_dropout": (aten.alpha_dropout.default, (x, 0.4, True)),
    "attention": (aten.scaled_dot_product_attention.default, (x, x, x, None, 0.4)),
}


@pytest.mark.parametrize("name", [*DRAWING, *BY_DEFAULT])
def test_an_operator_draws_as_after_a_seed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, args = (DRAWING | BY_DEFAULT)[name]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(7)
        wanted = target(*args)
    before = torch.get_rng_state()
    if name in DRAWING:  # other threads of the user may draw from the default generator meanwhile
        monkeypatch.setattr(draws, "_default_generators", None)
    assert torch.equal(draws.drawn(target, args, {}, 7), wanted)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_users_seed_is_not_one_of_ours() -> None:
    """While a draw has seeded the default generator, other workers wait for the user's seed."""
    seed, found = torch.initial_seed(), list[int]()
    asking = threading.Thread(target=lambda: found.append(draws.users_seed()))
    with draws.PrivateDraws().entered():
        assert torch.initial_seed() != seed
        asking.start()
        asking.join(0.05)
        assert not found
    asking.join()
    assert found == [seed]


@pytest.mark.parametrize(
    ("operator", "arguments", "is_random"),
    [
        (aten.dropout.default, (0.5, True), True),
        (aten.dropout.default, (0.0, True), False),
        (aten.dropout.default, (0.5, False), False),
        (aten.alpha_dropout.default, (0.0, True), False),
        (aten.native_dropout.default, (0.0, True), True),
    ],
)
def test_what_draws_is_what_changes_the_generator(
    operator: Any, arguments: tuple[Any, ...], is_random: bool
) -> None:
    """PyTorch's own generator is the independent side."""
    graph = torch.fx.Graph()
    node = graph.call_function(operator, (graph.placeholder("x"), *arguments))
    with torch.random.fork_rng():
        before = torch.random.get_rng_state()
        operator(torch.ones(4, 4), *arguments)
        is_drawn = not torch.equal(before, torch.random.get_rng_state())
    assert draws_random_numbers(node) is is_drawn is is_random


def test_a_segment_that_draws_is_not_compiled() -> None:
    """Compiled code would draw from the default generator, whatever the seed of the plan."""
    graph = torch.fx.Graph()
    noise = graph.call_function(aten.bernoulli.p, (graph.placeholder("x"), 0.5))
    graph.output([noise])
    segment = SegmentModule(torch.fx.GraphModule({}, graph), n_inputs=1, state=())
    assert isinstance(segment_function(segment, "inductor"), SteppedFunction)
