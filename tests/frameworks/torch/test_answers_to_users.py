"""What PyTorch users ran into: pins within a unit, streams of training, maps of torn modules."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from support.ordinary_nets import problem_of_net
from support.training_loops import Residual, batches, made, plan_of_step
from torch import nn

import placewright as pw
from placewright.core.arrays import frozen_floats
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import FieldError, InexpressibleError, InputError
from placewright.frameworks.torch.training.step import read_training
from placewright.profiling.units import light_ops_joined, with_granularity
from placewright.session.models import load_model
from placewright.session.plans import plan_of
from placewright.session.problems import constrained
from placewright.simulation.bounds.feasibility import prove_infeasible
from placewright.writers.device_map import device_map


def alternating(problem: Problem) -> Plan:
    """Pairs of units on one device and the other in turn."""
    found = Solution(Placement.of(np.arange(problem.n_units) // 2 % 2), 1.0, "feasible", 0.0)
    return plan_of(problem, found, PlacerRecord("manual", "0", 0, 0, 0.0), "torch")


def test_a_map_of_single_ops_names_the_torn_module_and_one_of_modules_does_not() -> None:
    fine = problem_of_net("residual")
    with pytest.raises(InexpressibleError, match=r"module 'blocks\.\d' is split: its op 'add"):
        device_map(alternating(fine))
    mapped = device_map(alternating(with_granularity(fine, "module")))
    assert {mapped[f"blocks.{block}"] for block in range(4)} == {"cuda:0", "cpu"}


def test_pins_on_two_devices_within_a_unit_name_its_ops() -> None:
    """Ops of two layers take two pins."""
    problem = problem_of_net("transformer")
    apart = constrained(problem, {}, {"layers.0": "cuda:0", "layers.1": "cpu"})
    assert len(apart.pins) > 10
    unit = next(u for u in range(problem.n_units) if len(problem.units.members.row(u)) > 1)
    first, second = (problem.graph.op_names[op] for op in problem.units.members.row(unit)[:2])
    with pytest.raises(InputError, match=rf"op '{second}' is pinned to 'cpu'.*moves as one: "):
        constrained(problem, {}, {first: "cuda:0", second: "cpu"})


def test_a_training_step_has_no_stream() -> None:
    plan = plan_of_step(made(Residual), next(batches(Residual, 1)), seed=None)
    with pytest.raises(InputError, match="a plan for training has no stream; place for throughput"):
        list(pw.stream(plan, []))


@pytest.mark.parametrize(
    ("word", "message"),
    [("modul", "got 'modul'; did you mean module?"), ("", "is op, module or layer, got ''")],
)
def test_a_granularity_that_does_not_exist(word: str, message: str) -> None:
    with pytest.raises(FieldError, match=message):
        pw.Request(model="m.onnx", granularity=word)


class Named(torch.nn.Module):
    """An argument that goes by name only, and one that has a default."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(4, 2)

    def forward(
        self, x: torch.Tensor, scale: torch.Tensor | None = None, *, shift: torch.Tensor
    ) -> torch.Tensor:
        x = x if scale is None else x * scale
        return self.head(x + shift).square().mean()


def test_example_inputs_by_name() -> None:
    """In whatever order they are given; an argument with a default may be missing."""
    x, shift, scale = torch.randn(3, 4), torch.randn(3, 4), torch.randn(3, 4)
    module, quick = Named(), {"devices": "cpu:0", "check": False, "calibrate": False}
    for said in ({"shift": shift, "x": x}, {"shift": shift, "scale": scale, "x": x}):
        plan = pw.place(module, example_inputs=said, runtime="torch", placer="single", **quick)
        expected = module(**said).detach()
        with pw.load(plan) as loaded:
            assert [port.name for port in loaded.inputs] == [n for n in ("x", "scale", "shift")
                                                             if n in said]  # fmt: skip
            torch.testing.assert_close(loaded(**said), expected)
            torch.testing.assert_close(loaded(said), expected)
    step = plan_of_step(module, {"shift": shift, "x": x}, seed=None)
    with pw.load(step) as trained:
        assert trained(shift=shift, x=x) == pytest.approx(
            float(module(x, shift=shift).detach()), rel=1e-5
        )
    with pytest.raises(InputError, match="example_inputs: Named has no argument 'y'; it has x, sc"):
        pw.read(module, {"x": x, "y": x})


def test_what_is_no_module_is_told_how_to_become_one() -> None:
    program = torch.export.export(torch.nn.Linear(4, 2), (torch.randn(3, 4),))
    for objective in ("latency", "training"):
        with pytest.raises(InputError, match="ExportedProgram is no module; pass a torch"):
            pw.read(program, torch.randn(3, 4), runtime="torch", objective=objective)


def test_a_cache_that_a_model_returns_is_named_with_two_ways_out() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.arange(4)[None]
    with pytest.raises(InputError, match=r"use_cache = False.*decoders.cached_decoder"):
        pw.read(model, tokens, runtime="torch")
    model.config.use_cache = False
    read = pw.read(model, {"input_ids": tokens}, runtime="torch")
    assert read.source is not None
    assert read.source.signature is not None
    assert [port.name for port in read.source.signature.inputs] == ["input_ids"]


def test_a_model_that_reads_and_writes_runs_without_the_cache_that_it_returns() -> None:
    """T5's decoder has a configuration of its own, so that only the argument leaves the cache out.

    The call of the plan may repeat the argument.
    """
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    tokens = {"input_ids": torch.arange(4)[None], "decoder_input_ids": torch.arange(2)[None]}
    with pytest.raises(InputError, match=r"'use_cache': False` among example inputs"):
        pw.read(model, tokens, runtime="torch")
    given = {**tokens, "use_cache": False}
    plan = pw.place(model, example_inputs=given, devices="cpu:0", runtime="torch", quick=True)
    expected = model(**given).logits
    with pw.load(plan) as loaded:
        for said in (tokens, given):
            result = loaded(**said)
            assert type(result) is type(model(**given))
            torch.testing.assert_close(result.logits, expected)


def test_inference_in_training_mode_has_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout())
    pw.read(module.eval(), torch.ones(2, 4), runtime="torch")
    assert "training mode" not in caplog.text
    pw.read(module.train(), torch.ones(2, 4), runtime="torch")
    assert "part '1' of module Sequential is in training mode" in caplog.text


def test_a_single_input_may_stand_alone_in_a_run() -> None:
    x, module = torch.randn(3, 8), torch.nn.Linear(8, 4)
    plan = pw.place(
        module, example_inputs=x, devices="cpu:0", runtime="torch", check=False, calibrate=False,
        placer="single",
    )  # fmt: skip
    torch.testing.assert_close(pw.run(plan, x), module(x).detach())
    assert "only one placement exists" in str(plan)
    assert "gap" not in str(plan)


def test_the_threads_of_the_user_stay() -> None:
    """MKL has one number of threads for the process, and workers set it to that of a core."""

    def threads() -> list[str]:
        return re.findall(r"get_max_threads\(\) : (\d+)", torch.__config__.parallel_info())

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        expected, x = threads(), torch.randn(3, 8)
        plan = pw.place(
            torch.nn.Linear(8, 4), example_inputs=x, devices="cpu:0,cpu:1", runtime="torch",
            check=False, calibrate=False, placer="single",
        )  # fmt: skip
        assert threads() == expected
        pw.run(plan, x)
        assert threads() == expected
        with pw.load(plan_of_step(made(Residual), next(batches(Residual, 1)), seed=1)) as step:
            step(*next(batches(Residual, 1)))
            assert threads() == expected
    finally:
        torch.set_num_threads(before)


def test_a_module_without_example_inputs_is_told_to_bring_them() -> None:
    with pytest.raises(InputError, match="; give `example_inputs`, one for each"):
        pw.read(made(Residual))


class Encoder(nn.Module):
    """Two layers of an encoder; the loss is the mean of what they make."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 1, 32, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x).mean()


def test_layers_can_be_pinned_apart_when_gradients_are_clipped() -> None:
    """The norm of each gradient stays with its parameter, and only the norm of all is shared."""
    step = read_training(Encoder(), (torch.ones(2, 3, 8),), optimizer="adamw:clip=1")
    units = light_ops_joined(step.graph)
    devices = (Device("a"), Device("b"))
    links = (Link("a", "b"), Link("b", "a"))
    seconds = CostTable(frozen_floats(np.ones((units.n_groups, 2))))
    problem = Problem(
        step.graph, Cluster(devices, links, "a"), seconds, units, objective="training"
    )
    apart = constrained(problem, {}, {"encoder.layers.0": "a", "encoder.layers.1": "b"})
    assert {problem.cluster.device_names[at] for at in apart.pins.values()} == {"a", "b"}
    assert prove_infeasible(apart) is None


class Paired(torch.nn.Module):
    def forward(self, pair: tuple[torch.Tensor, torch.Tensor], scale: float) -> torch.Tensor:
        return pair[0] + (pair[1] if scale != scale else scale * pair[1])


@pytest.mark.parametrize("scale", [2.0, float("nan")])
def test_inputs_one_by_one_may_leave_out_what_is_fixed(scale: float) -> None:
    values = torch.ones(2), torch.arange(2.0)
    plan = pw.place(
        Paired(), example_inputs=(values, scale), devices="cpu:0", runtime="torch", check=False,
        calibrate=False, placer="single",
    )  # fmt: skip
    expected = Paired()(values, scale)
    with pw.load(plan) as loaded:
        for given in (values, (values, scale), (values,)):
            torch.testing.assert_close(loaded(*given), expected)


def test_a_number_that_changes_is_no_input(tmp_path: Path) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
            return x * n

    program = torch.export.export(
        Scaled(), (torch.ones(2), 3), dynamic_shapes=(None, torch.export.Dim.DYNAMIC)
    )
    torch.export.save(program, tmp_path / "m.pt2")
    with pytest.raises(InputError, match="input 'n' is a number that changes"):
        load_model(str(tmp_path / "m.pt2"), runtime="torch")


def test_an_optimizer_is_of_no_model_of_the_zoo() -> None:
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    with pytest.raises(InputError, match="expects a text such as"):
        pw.place("zoo:bert_base/tiny", objective="training", optimizer=optimizer, runtime="torch")
