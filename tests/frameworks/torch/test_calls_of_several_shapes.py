"""Several shapes per plan: a prompt and the tokens after it, one placement under one memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import placewright as pw
from benchmarks.own_decoders import (
    Decoding,
    Sizes,
    Step,
    llama_decoder,
    own_decoder,
    tokens_of,
)
from placewright.core.placement import Placement
from placewright.core.plan import Plan
from placewright.core.source import calls_of
from placewright.errors import FieldError, InfeasibleError, InputError, UnknownNameError
from placewright.execution.placements import LoadsBeside, placement_segments
from placewright.frameworks.torch.decoders import cached_decoder
from placewright.frameworks.torch.running.runtime import TorchModel
from placewright.session import problems
from placewright.session.call_mix import LoadedCalls, models_of_calls
from placewright.session.measuring import Extent, Measured
from placewright.session.models import runtime_named
from placewright.session.plans import searched_plan, with_placement
from placewright.simulation.model import Simulator

PROMPT, AFTER = 16, 50
ONE = {"token": (1, 1), "position": (1,)}
QUICK: dict[str, Any] = {"quick": True, "calibrate": False, "placer": "round-robin"}


def examples(decoding: Decoding) -> tuple[Any, ...]:
    """Example inputs of a prompt."""
    return (
        torch.zeros(1, PROMPT, dtype=torch.long),
        torch.arange(PROMPT),
        *decoding.example_inputs[2:],
    )


def placed(decoding: Decoding, **said: Any) -> Plan:
    """A plan for a prompt and 50 calls of one token."""
    return pw.place(
        decoding.module,
        example_inputs=examples(decoding),
        state=decoding.state,
        calls=[(1, {}), (AFTER, ONE)],
        devices="cpu:0,cpu:1",
        **{**QUICK, **said},
    )


@cache
def placed_example(make: Callable[[Sizes], Decoding]) -> tuple[Decoding, Plan]:
    """A decoder of two layers with its plan."""
    decoding = make(Sizes(layers=2))
    return decoding, placed(decoding)


def tokens(step: Step, prompt: list[int], *, whole: bool, after: int = AFTER) -> list[int]:
    """Greedy decoding behind a prompt, which goes in as a whole or token by token."""
    found = list(prompt)
    steps = [range(len(prompt))] if whole else [range(at, at + 1) for at in range(len(prompt))]
    for rows in steps:
        scores = step(torch.tensor([[found[at] for at in rows]]), torch.tensor(list(rows)))
    for _ in range(after):
        found.append(int(scores[0, -1].argmax()))
        at = len(found) - 1
        scores = step(torch.tensor([[found[at]]]), torch.tensor([at]))
    return found


@pytest.mark.parametrize("make", [own_decoder, llama_decoder])
def test_tokens_of_a_prompt_and_fifty_steps_are_the_unsplit_model_s(
    make: Callable[[Sizes], Decoding],
) -> None:
    decoding, plan = placed_example(make)
    prompt = np.random.default_rng(0).integers(100, size=PROMPT).tolist()
    expected = tokens(decoding.plain(), prompt, whole=False)
    assert len(set(expected[PROMPT:])) > 3, "the same token again and again shows nothing"
    assert plan.problem.n_units > 8
    classes = plan.problem.colocation
    for devices in ([0], [0, 1]):
        of_class = np.resize(devices, classes.n_groups)
        chosen = with_placement(plan, Placement.of(of_class[classes.group_of]))
        with pw.load(chosen) as step:
            assert isinstance(step, LoadedCalls)
            for after in (AFTER, 10):  # and again from the start
                found = tokens(
                    lambda *given: step(*given)["scores"], prompt, whole=True, after=after
                )
                assert found == expected[: PROMPT + after]
                step.reset()


def test_a_fixed_value_is_that_of_every_call() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
            return x * by

    plan = pw.place(
        Scaled(),
        example_inputs=(torch.ones(3, 4), torch.ones(1)),
        values={"by": (5.0,)},
        calls=[(1, {}), (9, {"x": (1, 4)})],
        devices="cpu:0",
        **QUICK,
    )
    with pw.load(plan) as model:
        for rows in (3, 1):
            assert float(model(x=torch.ones(rows, 4))[0, 0]) == 5.0


def test_a_limit_on_profiling_is_that_of_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call had all its seconds again."""
    left, real = list[float](), problems.measure_model

    def noted(*given: Any, extent: Extent, **more: Any) -> Measured:
        left.append(extent.limit.seconds_left)
        return real(*given, extent=extent, **more)

    monkeypatch.setattr(problems, "measure_model", noted)
    pw.profile(
        torch.nn.Linear(4, 2),
        example_inputs=torch.ones(3, 4),
        calls=[(1, {}), (9, {"input": (1, 4)})],
        devices="cpu:0",
        quick=True,
        calibrate=False,
        profiling=60,
    )
    assert len(left) == 2
    assert left[0] <= 30  # half
    assert left[1] <= 60  # what is left


def test_a_call_of_many_shapes_is_exported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module, count = torch.nn.Linear(4, 2), itertools.count()
    calls = [(1, {}), *((1, {"input": (rows, 4)}) for rows in (2, 3, 4))]
    plan = pw.place(
        module, example_inputs=torch.ones(1, 4), calls=calls, devices="cpu:0", check=False, **QUICK
    )
    export = torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *given: (next(count), export(*given))[1])
    for _ in range(2):
        assert pw.run(plan, [torch.ones(3, 4)]).shape == (3, 2)
    assert next(count) == 0


def test_attention_reads_as_much_of_the_cache_as_a_call_reaches() -> None:
    """Buckets of 16 and 64 positions over one cache of 64; tokens are the unsplit model's."""
    buckets, count = (16, 64), 55
    decoding = llama_decoder(Sizes(layers=2, context=64))
    module, example, state = cached_decoder(decoding.module.model, 64, read=64)
    plan = pw.place(
        module,
        example_inputs=example,
        state=state,
        calls=[(39, {}), (16, {"reach": (16,)})],
        devices="cpu:0,cpu:1",
        **QUICK,
    )
    classes = plan.problem.colocation
    split = np.resize([0, 1], classes.n_groups)[classes.group_of]
    plan = with_placement(plan, Placement.of(split))
    caches = 4 * 2 * 2 * decoding.example_inputs[2][0].numel()
    weights = sum(value.numel() * 4 for value in decoding.module.parameters())
    assert plan.problem.kept.total == pytest.approx(weights + caches, abs=2**13)
    expected = tokens_of(decoding.plain(), count)
    assert len(set(expected)) > 3, "the same token again and again shows nothing"
    with pw.load(plan) as step:

        def call(token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            bucket = next(size for size in buckets if int(position[-1]) < size)
            return torch.as_tensor(step(token, position, torch.arange(bucket))["scores"])

        assert tokens_of(call, count) == expected
        with pytest.raises(InputError, match=r"reach \[17\]"):
            step(torch.tensor([[1]]), torch.tensor([0]), torch.arange(17))
    for read in (0, 65):
        with pytest.raises(InputError, match=f"tokens <= read <= context; got .*read {read}"):
            cached_decoder(decoding.module.model, 64, read=read)


def test_weights_and_state_are_there_once_and_no_call_takes_more_than_predicted() -> None:
    decoding, plan = placed_example(own_decoder)
    plan = searched_plan(plan)
    weights = sum(value.numel() * 4 for value in decoding.module.parameters())
    caches = 2 * len(decoding.example_inputs[2]) * decoding.example_inputs[2][0].numel() * 4
    held: dict[int, int] = {}
    with LoadedCalls(plan) as step:
        step(*examples(decoding)[:2])
        step(torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long))
        for loaded in step._loaded:
            with loaded.in_use() as model:
                assert isinstance(model, TorchModel)
                assert model._shared is not None
                copies = [value for one in model._shared.values() for value in one.values()]
                constants = [
                    value
                    for name, value in model.nodes.constants.items()
                    if name in model.program.state and name not in model.program.updates
                ]
                for value in (*copies, *constants):
                    held[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
    assert sum(held.values()) == pytest.approx(weights + caches, abs=2**13)
    predicted = np.array(list(plan.memory.values()))
    assert predicted.sum() < 1.5 * (weights + caches), "counted for each call"
    for one, model in models_of_calls(plan):
        assert isinstance(model, TorchModel)
        segments = placement_segments(one.problem, one.placement)
        measured = model.memory_peaks(segments, one.problem.cluster.devices)
        assert (measured <= 1.01 * predicted[: len(measured)]).all()


def test_the_value_is_the_mean_of_the_calls() -> None:
    """By hand: the costs of each unit are weighted by how often its call is made."""
    decoding = own_decoder(Sizes(layers=2))
    session = pw.Session(
        decoding.module,
        example_inputs=examples(decoding),
        state=decoding.state,
        calls=[(1, {}), (AFTER, ONE)],
        devices="cpu:0,cpu:1",
        **QUICK,
    )
    mean = session.profile()
    assert session._measured is not None
    prompt, one = session._measured.parts
    expected = (prompt.costs.seconds + AFTER * one.costs.seconds) / (1 + AFTER)
    np.testing.assert_allclose(mean.costs.seconds, expected)
    assert (mean.graph.tensor_bytes == prompt.graph.tensor_bytes).all()
    assert (one.graph.tensor_bytes <= prompt.graph.tensor_bytes).all()
    np.testing.assert_array_equal(mean.graph.weight_bytes, one.graph.weight_bytes)
    sent = prompt.graph.tensor_bytes + AFTER * one.graph.tensor_bytes
    part = sent.sum() / (1 + AFTER) / prompt.graph.tensor_bytes.sum()
    slow, fast = prompt.cluster.links[0], mean.cluster.links[0]
    assert fast.bandwidth == pytest.approx(slow.bandwidth / part)
    alone = pw.Placement.of(np.zeros(mean.n_units, dtype=np.int64))
    values = [Simulator(one).value(alone) for one in (mean, prompt, one)]
    assert values[0] == pytest.approx((values[1] + AFTER * values[2]) / (1 + AFTER))


def test_a_plan_file_holds_the_calls(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 600), nn.Linear(600, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.relu(self.first(x)))

    net, rows = Net().eval(), torch.export.Dim("rows", min=1, max=64)
    file = tmp_path / "net.pt2"
    open_program = torch.export.export(net, (torch.ones(7, 8),), dynamic_shapes={"x": {0: rows}})
    torch.export.save(open_program, file)
    plan = pw.place(
        file, runtime="torch", calls=["1:x=32,8", "20:x=5,8"], devices="cpu:0,cpu:1", **QUICK
    )
    pw.write_plan(tmp_path / "plan.json", plan)
    read = pw.read_plan(tmp_path / "plan.json")
    assert [str(call) for call in calls_of(read.problem.source)] == [
        "1 x x [32, 8]",
        "20 x x [5, 8]",
    ]
    assert "mean call of 1 x x [32, 8]; 20 x x [5, 8]" in str(read)
    with pw.load(tmp_path / "plan.json") as loaded:
        for count in (5, 32, 5):
            x = torch.randn(count, 8)
            torch.testing.assert_close(loaded(x), net(x))
        known = r"inputs x \[6, 8\]; it has x \[32, 8\] or x \[5, 8\]"
        with pytest.raises(InputError, match=known):
            loaded(torch.ones(6, 8))
        with pytest.raises(InputError, match="1 input"):
            loaded()
    x = np.ones((5, 8), np.float32)
    np.testing.assert_allclose(pw.run(read, [x])[0], net(torch.ones(5, 8)).detach(), rtol=1e-4)
    for refused in (lambda: pw.Session(read).measure(read), lambda: list(pw.stream(read, []))):
        with pytest.raises(InputError, match="for calls of several shapes"):
            refused()


def test_a_limit_holds_for_every_call() -> None:
    decoding, plan = placed_example(own_decoder)
    whole = max(plan.memory.values())
    limit = {"cpu:0": 0.7 * whole, "cpu:1": 0.7 * whole}
    bounded = placed(decoding, memory=limit, placer="expert")
    assert len(np.unique(bounded.placement.device_of)) == 2
    with pytest.raises(InfeasibleError):
        placed(decoding, memory=dict.fromkeys(limit, 0.2 * whole), placer="expert")
    with pw.load(bounded) as step:
        assert step(*examples(decoding)[:2])["scores"].shape[1] == PROMPT


class Branching(nn.Module):
    """Computes something else for one row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == 1 else torch.relu(x) + 1


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"calls": ["x=1,3"]}, r"calls: expects TIMES or TIMES:NAME=1,3,224,224:\.\.\., with"),
        ({"calls": [(0, {})]}, r"a number of times > 0, got \(0, {}\)"),
        ({"calls": ["2:x=a"]}, "calls: '2:x=a': expects NAME=1,3,224,224, with numbers >= 0"),
        ({"calls": [(1, {}), (2, {"y": (1, 3)})]}, "unknown model input 'y'"),
        ({"calls": [(1, {}), (2, {})]}, "calls: 1 and 2 have the same shapes; add up their times"),
        ({"calls": [(1, {}), (9, {"x": (1, 3)})]}, r"9 x x \[1, 3\]: op '\w+' runs with some of"),
        ({"calls": [(1, {})], "objective": "throughput"}, "objective is latency, not throughput"),
        ({"calls": [(1, {})], "limits": "latency=1s"}, "is of one sample, and calls of several"),
        ({"calls": [(1, {})], "evaluator": "measured"}, "leave out argument `evaluator`"),
        ({"calls": [(1, {})], "devices": "catalogue:2gpu"}, "a catalogue has one shape"),
    ],
)
def test_wrong_calls_are_refused_in_one_line(said: dict[str, Any], message: str) -> None:
    asked = {"devices": "cpu:0,cpu:1", **QUICK, **said}
    with pytest.raises((FieldError, UnknownNameError), match=message):
        pw.place(Branching().eval(), example_inputs=(torch.ones(4, 3),), **asked)


class Remembering(nn.Module):
    """It adds up its inputs, whose rows it remembers."""

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> dict[str, torch.Tensor]:
        h = torch.tanh(x + h)
        return {"y": h * 2, "new_h": h}


def test_state_of_several_shapes_is_refused() -> None:
    """Each shape would have a state of its own, and a call would forget those before it."""
    with pytest.raises(FieldError, match="calls: give state 'h' several shapes, but all calls"):
        pw.place(
            Remembering(),
            example_inputs=(torch.ones(3, 4), torch.zeros(3, 4)),
            state={"new_h": "h"},
            calls=[(1, {}), (9, {"x": (1, 4), "h": (1, 4)})],
            devices="cpu:0",
            **QUICK,
        )


def test_a_program_of_another_state_is_not_loaded_beside_the_first() -> None:
    """A plan of an earlier version may have such calls."""
    module = Remembering()
    first, other = (
        pw.read(
            module,
            (torch.ones(rows, 4), torch.zeros(rows, 4)),
            runtime="torch",
            state={"new_h": "h"},
        )
        for rows in (3, 1)
    )
    assert first.source is not None
    assert other.source is not None
    runtime = runtime_named("torch")
    assert isinstance(runtime, LoadsBeside)
    loaded = runtime.load(first.source, first.graph)
    with pytest.raises(InputError, match=r"state 'h' is torch.float32 \[3, 4\] in the first call"):
        runtime.load_beside(other.source, other.graph, loaded)


def test_a_runtime_that_loads_one_shape_refuses_several() -> None:
    plan = replace(placed_example(own_decoder)[1], runtime="onnxruntime")
    with pytest.raises(InputError, match="loads one shape of a model; place these calls for torch"):
        models_of_calls(plan)


def test_calls_without_a_timeline_are_placed_and_not_compared() -> None:
    """The comparison of outputs was refused after the search, and nothing was written."""
    plan = pw.place(
        nn.Linear(4, 2),
        example_inputs=(torch.ones(3, 4),),
        calls=[(1, {}), (9, {"input": (1, 4)})],
        devices="cpu:0",
        placer="single",
        calibrate=False,
        execution_model="sequential",
    )
    assert any("nor were outputs compared" in clause for clause in plan.left_out)


class TiedModel(nn.Module):
    """An embedding that is also the head, with a parameter of more than a thousand elements."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.words = nn.Embedding(64, 64)
        self.middle = nn.Linear(64, 64)
        self.head = nn.Linear(64, 64, bias=False)
        self.head.weight = self.words.weight

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.middle(self.words(token))))


def test_calls_of_a_model_whose_tied_modules_stay_together() -> None:
    """Module granularity adds a class to the graph, which the model that is read again lacks."""
    module, prompt = TiedModel().eval(), torch.arange(16)[None]
    plan = pw.place(
        module,
        example_inputs=(prompt,),
        calls=[(1, {}), (9, {"token": (1, 1)})],
        devices="cpu:0,cpu:1",
        granularity="module",
        check=False,
        **QUICK,
    )
    modules = plan.problem.graph.op_modules
    at = dict(zip(modules, plan.problem.device_of_ops(plan.placement.device_of), strict=True))
    assert at["words"] == at["head"]
    with pw.load(plan) as step, torch.no_grad():
        for token in (prompt, prompt[:, :1]):
            torch.testing.assert_close(torch.as_tensor(step(token)), module(token))
