"""PyTorch segments: splits equal the unsplit model, also of a training step, whatever the order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch_programs import branches, inference_program, step_program

import placewright as pw
from placewright.core.cluster import Device
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import segments_of_ops
from placewright.frameworks.torch.reading.fx_program import FxProgram
from placewright.frameworks.torch.running import devices
from placewright.frameworks.torch.running.instances import DeviceState, TorchSegment
from placewright.frameworks.torch.running.runtime import TorchModel, TorchRuntime
from placewright.frameworks.torch.running.segments import StateWrites
from placewright.testing.framework_contract import check_runtime, random_segments


def loaded(made: tuple) -> TorchModel:
    program, graph, source = made
    return TorchRuntime(lambda _: program).load(source, graph)


def cores(model: TorchModel) -> list:
    return [d for d in TorchRuntime(lambda _: model.program).discover() if ":" in d.name][:2]


def test_the_runtime_keeps_the_contract() -> None:
    program, graph, source = branches()
    check_runtime(TorchRuntime(lambda _: program), source, graph)


def test_outputs_are_those_of_the_module() -> None:
    from torch_programs import Branches

    model = loaded(branches())
    inputs = model.random_inputs(np.random.default_rng(0))
    with torch.no_grad():
        expected = Branches().eval()(*[torch.from_numpy(value) for value in inputs])
    rng = np.random.default_rng(0)
    segments = random_segments(model.graph, 2, rng, ops=3)
    with ConcurrentRunner(model, segments, cores(model)) as runner:
        found = runner.run(inputs).outputs
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, other.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_plain_call_has_the_threads_of_its_device(number: int) -> None:
    """With another number its seconds beside a plan's tell nothing about the plan."""
    seen, before = [], torch.get_num_threads()

    def counting(program: FxProgram) -> FxProgram:
        def run(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            seen.append(torch.get_num_threads())
            return program.plain(values)

        return replace(program, plain=run)

    program, graph, source = branches()
    model = TorchRuntime(lambda _: counting(program)).load(source, graph)
    device = replace(cores(model)[0], options={"device": "cpu", "threads": str(number)})
    model.plain(device)(model.random_inputs(np.random.default_rng(0)))
    assert (seen, torch.get_num_threads()) == ([number], before)


def test_autocast_of_the_caller_changes_no_plain_call() -> None:
    """A plan does not follow it, and would differ from the unsplit model."""
    model = loaded(inference_program(torch.nn.Linear(64, 64), [torch.zeros(3, 64)]))
    inputs, run = model.random_inputs(np.random.default_rng(0)), model.plain(cores(model)[0])
    expected = run(inputs)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run(inputs)[0]
        assert torch.is_autocast_enabled("cpu")
    np.testing.assert_array_equal(found, expected)


class Bags(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.EmbeddingBag(50, 8, mode="sum")
        self.last = torch.nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.last(self.table(ids, offsets))


def test_offsets_of_bags_are_not_drawn() -> None:
    """PyTorch refuses offsets that do not ascend from 0."""
    ids, offsets = torch.randint(0, 50, (12,)), torch.tensor([0, 3, 4, 9])
    plan = pw.place(Bags().eval(), example_inputs=(ids, offsets), devices="cpu:0,cpu:1", quick=True)
    with pw.load(plan) as model:
        drawn = model.random_inputs()
    assert drawn[1].tolist() == offsets.tolist()
    assert sorted(drawn[0].tolist()) != drawn[0].tolist()


def test_products_in_less_precision_have_costs_of_their_own() -> None:
    """They may take half the time; their samples counted for products in whole precision, too."""
    model = loaded(branches())
    whole = [device.fingerprint for device in cores(model)]
    torch.set_float32_matmul_precision("medium")
    try:
        less = [device.fingerprint for device in cores(model)]
    finally:
        torch.set_float32_matmul_precision("highest")
    assert not set(whole) & set(less)
    assert [device.fingerprint for device in cores(model)] == whole


@pytest.mark.parametrize("kind", ["conv", "matmul"])
def test_the_newer_settings_of_precision_have_costs_of_their_own(kind: str) -> None:
    """The older interface raises RuntimeError as soon as the newer one has set products."""
    model = loaded(branches())
    usual = {device.fingerprint for device in cores(model)}
    part = getattr(torch.backends.mkldnn, kind)
    before = part.fp32_precision
    part.fp32_precision = "bf16"
    try:
        less = {device.fingerprint for device in cores(model)}
    finally:
        part.fp32_precision = before
    assert not usual & less
    assert {device.fingerprint for device in cores(model)} == usual


def test_kernels_without_onednn_have_costs_of_their_own() -> None:
    """Convolutions may take several times as long; people switch it off to avoid a fault of it."""
    model = loaded(branches())
    usual = {device.fingerprint for device in cores(model)}
    with torch.backends.mkldnn.flags(enabled=False):
        assert not usual & {device.fingerprint for device in cores(model)}


def test_convolutions_in_whole_precision_have_costs_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without TF32 they take longer on a card; only products were in its fingerprint."""
    monkeypatch.setattr(devices, "_accelerator_text", lambda device: "a card")
    card = Device("cuda:0", "gpu", options={"device": "cuda:0"})
    usual = devices._with_fingerprint(card).fingerprint
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert devices._with_fingerprint(card).fingerprint != usual


def stepped(model: TorchModel, steps: int) -> tuple[list[float], dict]:
    """Losses and state by calling the graph module itself, step by step."""
    program = model.program
    state = {name: value.clone() for name, value in program.state.items()}
    inputs = model.random_inputs(np.random.default_rng(0))
    losses = []
    for _ in range(steps):
        values = program.module(*state.values(), *[torch.from_numpy(v) for v in inputs])
        losses.append(float(values[0]))
        state = dict(zip(state, values[1:], strict=True))
    return losses, {name: value.numpy() for name, value in state.items()}


@pytest.mark.parametrize("seed", range(6))
def test_a_split_training_step_changes_state_as_the_unsplit_one(seed: int) -> None:
    model = loaded(step_program())
    losses, state = stepped(model, 3)
    assert losses[2] < losses[0]
    rng = np.random.default_rng(seed)
    # What shares a parameter stays together: all ops of one random order on random devices, but
    # readers of a parameter with its update.
    segments = colocated_segments(model, rng)
    with ConcurrentRunner(model, segments, cores(model)) as runner:
        inputs = model.random_inputs(np.random.default_rng(0))
        found = [float(runner.run(inputs).outputs[0]) for _ in range(3)]
        after = runner.state_values()
    np.testing.assert_allclose(found, losses, rtol=1e-6)
    assert sorted(after) == sorted(state)
    for name, value in state.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-5, atol=1e-7)


def colocated_segments(model: TorchModel, rng: np.random.Generator) -> tuple:
    graph = model.graph
    group = np.arange(graph.n_ops)
    for name, tensor in model.nodes.updates.items():
        readers = [*model.nodes.direct_readers([name])[name], int(graph.tensor_producers[tensor])]
        labels = group[readers]
        group[np.isin(group, labels)] = labels.min()
    device_of = rng.integers(2, size=graph.n_ops)[group]
    ready = np.array([len(graph.predecessors.row(op)) for op in range(graph.n_ops)])
    order, parts = [], []
    while len(order) < graph.n_ops:
        choices = [op for op in range(graph.n_ops) if ready[op] == 0 and op not in order]
        op = int(rng.choice(choices))
        order.append(op)
        parts.append((int(device_of[op]), [op]))
        for reader in graph.successors.row(op).tolist():
            ready[reader] -= 1
    return segments_of_ops(graph, parts)


def test_a_segment_tells_the_precision_of_bfloat16_state() -> None:
    """Its arrays are float32, whose rounding is finer."""
    initial = {"half": torch.ones(3, dtype=torch.bfloat16), "whole": torch.ones(3)}
    device = torch.device("cpu")
    state = DeviceState(device, initial, initial.__getitem__, changing=tuple(initial))
    writes = StateWrites(inside=((0, "half", 0),), after=("whole",))
    function: Any = None  # it is not run
    segment = TorchSegment(function, state, (), writes, n_outputs=0, threads=1, lane=None)
    assert {value.dtype for value in segment.state_values().values()} == {np.dtype(np.float32)}
    assert segment.state_eps() == {"half": 2.0**-7}


def test_state_starts_afresh_with_every_runner() -> None:
    model = loaded(step_program())
    inputs = model.random_inputs(np.random.default_rng(0))
    order = model.graph.topological_order.tolist()
    segments = segments_of_ops(model.graph, [(0, order)])
    losses = []
    for _ in range(2):
        with ConcurrentRunner(model, segments, cores(model)) as runner:
            losses.append(float(runner.run(inputs).outputs[0]))
    assert losses[0] == losses[1]


def test_plans_that_take_turns_change_one_state() -> None:
    model = loaded(step_program())
    inputs = model.random_inputs(np.random.default_rng(0))
    order = model.graph.topological_order.tolist()
    segments = segments_of_ops(model.graph, [(0, order)])
    losses, state = stepped(model, 2)
    with model.one_state():
        one = ConcurrentRunner(model, segments, cores(model))
        other = ConcurrentRunner(model, segments, cores(model))
    apart = ConcurrentRunner(model, segments, cores(model))
    with one, other, apart:
        found = [float(runner.run(inputs).outputs[0]) for runner in (one, other, apart)]
        after = one.state_values()
        for name, value in other.state_values().items():
            np.testing.assert_array_equal(after[name], value)
    np.testing.assert_allclose(found, [*losses, losses[0]], rtol=1e-6)
    for name, value in state.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-5, atol=1e-7)


class Chain(torch.nn.Module):
    """Four element-wise ops on a million numbers; the first result is read again at the end."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.tanh(x)
        return (torch.exp(torch.sin(first)) + first).sum()


def test_memory_peaks_count_live_tensors_of_each_device() -> None:
    million = 4_000_000  # bytes of one tensor
    model = loaded(inference_program(Chain(), [torch.zeros(1000, 1000)]))
    kinds = model.graph.op_kinds
    order = model.graph.topological_order.tolist()
    assert [kinds[op] for op in order] == ["tanh", "sin", "exp", "add", "sum"]
    devices = cores(model)
    one = segments_of_ops(model.graph, [(0, order)])
    # While sin runs: first and its own result, the input has been dropped; exp and add likewise
    # hold first, what they read and what they make.
    assert model.memory_peaks(one, devices) == pytest.approx([3 * million, 0], rel=1e-3)
    # exp elsewhere: it holds what arrived and what it makes; the first device keeps only first,
    # and at the end what came back and the sum of both.
    split = segments_of_ops(model.graph, [(0, order[:2]), (1, order[2:3]), (0, order[3:])])
    assert model.memory_peaks(split, devices) == pytest.approx([3 * million, 2 * million], rel=1e-3)


class Products(torch.nn.Module):
    """A sum of products, as the gradient of a weight that many steps share."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x @ x
        for number in range(8):
            total = total + (x + number) @ x
        return total


def test_memory_peaks_are_those_of_workers_which_do_not_merge_products() -> None:
    size = 4 * 500 * 500
    model = loaded(inference_program(Products(), [torch.zeros(500, 500)]))
    order = model.graph.topological_order.tolist()
    # In order of depth: what the products read and make is there before the sums.
    adds = [op for op in order if model.graph.op_kinds[op] == "add"]
    sums = [op for op in adds if len(model.graph.predecessors.row(op)) == 2]
    first = [op for op in order if op not in sums]
    segments = segments_of_ops(model.graph, [(0, first + sums)])
    counted = model.memory_peaks(segments, cores(model))[0]
    # x, nine products and the first sum.
    assert counted == pytest.approx(11 * size, rel=0.02)
    assert torch._C._get_graph_executor_optimize()


def test_memory_peaks_count_state_once() -> None:
    model = loaded(step_program())
    order = model.graph.topological_order.tolist()
    segments = segments_of_ops(model.graph, [(0, order)])
    state = 4 * 2 * (6 * 8 + 8 * 4)
    peak = model.memory_peaks(segments, cores(model))
    assert state < peak[0] < state + 4 * 6 * 6 * 8 * 4
    assert peak[1] == 0


def test_floats_that_are_all_zero_are_no_flags() -> None:
    """Outputs of zeros alone are equal whatever a split computes."""
    zeros = loaded(inference_program(torch.nn.Linear(8, 4, bias=False), [torch.zeros(3, 8)]))
    (drawn,) = zeros.random_inputs(np.random.default_rng(0))
    assert len(np.unique(drawn)) > 2
    assert (drawn >= 0).all(), "as indices, and under a root"
    assert (drawn <= 1).all()
    mask = torch.tensor([[0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0]])
    flags = loaded(inference_program(torch.nn.Linear(8, 4, bias=False), [mask]))
    (drawn,) = flags.random_inputs(np.random.default_rng(0))
    assert set(drawn.ravel().tolist()) <= {0.0, 1.0}


class ScoresOfClasses(torch.nn.Module):
    """Its last operator has a negative argument, and its result leaves."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(x @ x.T, -1)


@pytest.mark.parametrize(
    "made", [step_program, lambda: inference_program(ScoresOfClasses(), [torch.zeros(8, 4)])]
)
def test_the_profile_calls_every_operator(made: Any) -> None:
    """Also those whose results no other takes: outputs, and new values of parameters."""
    model = loaded(made())
    measure = model.profiler(cores(model)[0])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as record:
        measure()
    called = Counter(event.name for event in record.events())
    targets = Counter(str(node.target) for node in model.nodes.node_of_op)
    for target, number in targets.items():
        namespace, name, _ = target.split(".")
        assert called[f"{namespace}::{name.removesuffix('_')}"] >= number, target
