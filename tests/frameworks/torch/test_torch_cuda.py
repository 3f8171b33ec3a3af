"""PyTorch on a real GPU: the same contract, equal steps, memory from the device's allocator."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from support import decoders, training_loops
from torch_programs import branches, inference_program, step_program

import placewright as pw
from benchmarks.own_decoders import Decoding, llama_decoder, own_decoder, tokens_of
from placewright.core.cluster import Device
from placewright.errors import RuntimeFailure
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import segments_of_ops
from placewright.frameworks.torch.running.runtime import TorchRuntime
from placewright.testing.framework_contract import check_runtime

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device here"),
]


def devices() -> list:
    found = {device.name: device for device in TorchRuntime().discover()}
    return [found["cuda:0"], found["cpu"]]


def test_the_runtime_keeps_the_contract_on_a_gpu_and_the_processor() -> None:
    program, graph, source = branches()
    check_runtime(TorchRuntime(lambda _: program), source, graph, devices())


def test_discovery_tells_memory_and_driver() -> None:
    device = devices()[0]
    assert device.memory_bytes == torch.cuda.get_device_properties(0).total_memory
    assert torch.cuda.get_device_name(0) in device.fingerprint
    assert "driver" in device.fingerprint


def test_a_training_step_changes_state_on_a_gpu_as_on_the_processor() -> None:
    program, graph, source = step_program()
    model = TorchRuntime(lambda _: program).load(source, graph)
    inputs = model.random_inputs(np.random.default_rng(0))
    order = graph.topological_order.tolist()
    states = []
    for device in (0, 1):
        with ConcurrentRunner(
            model, segments_of_ops(graph, [(device, order)]), devices()
        ) as runner:
            for _ in range(3):
                runner.run(inputs)
            states.append(runner.state_values())
    for name, value in states[1].items():
        np.testing.assert_allclose(states[0][name], value, rtol=1e-3, atol=1e-5)


def test_a_training_step_split_over_a_gpu_and_the_processor() -> None:
    """The first layer on the GPU, the second and the loss on the processor, as the unsplit step."""
    program, graph, source = step_program()
    model = TorchRuntime(lambda _: program).load(source, graph)
    inputs = model.random_inputs(np.random.default_rng(0))
    order = graph.topological_order.tolist()
    w1, _, m1, _ = program.state
    first = {op for name in (w1, m1) for op in model.nodes.direct_readers([name])[name]}
    first |= {int(graph.tensor_producers[model.nodes.updates[name]]) for name in (w1, m1)}
    split = segments_of_ops(graph, [(0 if op in first else 1, [op]) for op in order])
    whole = segments_of_ops(graph, [(1, order)])
    found = []
    for segments in (split, whole):
        with ConcurrentRunner(model, segments, devices()) as runner:
            losses = [float(runner.run(inputs).outputs[0]) for _ in range(3)]
            found.append((losses, runner.state_values()))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4)
    for name, value in found[1][1].items():
        np.testing.assert_allclose(found[0][1][name], value, rtol=1e-3, atol=1e-5)


class Huge(torch.nn.Module):
    """One op needs eight tebibytes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(x).expand(1 << 21, 1 << 20) + 1).sum()


def test_a_gpu_that_runs_out_of_memory_is_told_in_one_line() -> None:
    program, graph, source = inference_program(Huge(), [torch.zeros(1, 1)])
    model = TorchRuntime(lambda _: program).load(source, graph)
    segments = segments_of_ops(graph, [(0, graph.topological_order.tolist())])
    with pytest.raises(RuntimeFailure, match="op 'add': out of memory") as caught:
        ConcurrentRunner(model, segments, devices()).run([np.zeros((1, 1), np.float32)])
    assert "\n" not in str(caught.value)


def test_arriving_copies_count_in_both_memories() -> None:
    """Four megabytes go from the processor to the GPU and come back as another tensor."""

    class ThereAndBack(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(torch.exp(torch.tanh(x)))

    size = 4 * 1024 * 1024
    program, graph, source = inference_program(ThereAndBack(), [torch.zeros(1024, 1024)])
    model = TorchRuntime(lambda _: program).load(source, graph)
    tanh, exp, sin = graph.topological_order.tolist()
    segments = segments_of_ops(graph, [(1, [tanh]), (0, [exp]), (1, [sin])])
    peaks = model.memory_peaks(segments, devices())
    assert peaks.tolist() == pytest.approx([2 * size, 2 * size], rel=0.01)


def test_the_same_step_twice_gives_the_same_loss() -> None:
    program, graph, source = step_program()
    model = TorchRuntime(lambda _: program).load(source, graph)
    inputs = model.random_inputs(np.random.default_rng(0))
    segments = segments_of_ops(graph, [(0, graph.topological_order.tolist())])
    losses = []
    for _ in range(2):
        with ConcurrentRunner(model, segments, devices()) as runner:
            losses.append([float(runner.run(inputs).outputs[0]) for _ in range(3)])
    assert losses[0] == losses[1]


def test_memory_is_read_from_the_allocator_of_the_gpu() -> None:
    program, graph, source = step_program()
    model = TorchRuntime(lambda _: program).load(source, graph)
    segments = segments_of_ops(graph, [(0, graph.topological_order.tolist())])
    peaks = model.memory_peaks(segments, devices())
    state = sum(value.nbytes for value in program.state.values())
    assert peaks[0] >= state
    assert peaks[1] == 0


def test_transfers_take_time_and_larger_ones_more() -> None:
    gpu, processor = devices()
    runtime = TorchRuntime()
    small = runtime.transfer_seconds(processor, gpu, 1024)
    large = runtime.transfer_seconds(processor, gpu, 64 * 1024 * 1024)
    assert 0 < small < large
    assert runtime.transfer_seconds(processor, processor, 1024) == 0


def on_the_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that other tests make for two cores are for the GPU and the processor."""

    def found(count: int, runtime: object = None) -> tuple[Device, ...]:
        del runtime
        return tuple(replace(device, pool=None) for device in devices()[:count])

    monkeypatch.setattr(training_loops, "cores_of", found)
    monkeypatch.setattr(decoders, "cores_of", found)


@pytest.mark.parametrize("kind", [training_loops.Residual, training_loops.Gpt])
@pytest.mark.parametrize("seed", [None, 1])
def test_a_loaded_plan_trains_as_a_plain_loop(
    kind: type[torch.nn.Module], seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_the_gpu_too(monkeypatch)
    module = training_loops.made(kind)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    with training_loops.loaded(kind, seed=seed, optimizer="adamw") as step:
        for batch in training_loops.batches(kind, 30):
            optimizer.zero_grad()
            loss = module(*batch)
            loss.backward()
            optimizer.step()
            assert step(*batch) == pytest.approx(float(loss.detach()), rel=1e-2)
        state = step.state_dict()
    assert {value.device.type for value in state.values()} == {"cpu"}


@pytest.mark.parametrize("make", [own_decoder, llama_decoder])
@pytest.mark.parametrize("seed", [None, 1])
def test_tokens_with_a_cache_that_stays_on_the_gpu(
    make: Callable[[], Decoding], seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_the_gpu_too(monkeypatch)
    decoding = make()
    expected = tokens_of(decoding.plain(), 50)
    with pw.load(decoders.plan_on_cores(decoding, seed)) as step:
        found = tokens_of(lambda *given: torch.as_tensor(step(*given)["scores"]), 50)
    assert found == expected


class Wide(torch.nn.Module):
    """Eight layers of 16 MiB each; a product may ask for 32 MiB of working space on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2048, 2048) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x
        return x


@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_that_does_not_fit_on_the_gpu_is_split_and_served(compiled: bool) -> None:
    """Outputs of single calls, of threads and of a stream are the module's own."""
    torch.manual_seed(0)
    module = Wide().eval()
    x = torch.randn(16, 2048)
    plan = pw.place(
        module, example_inputs=(x,), devices="cuda:0,cpu", memory={"cuda:0": 120e6, "cpu": 120e6},
        budget=2.0, compiled=compiled, quick=True,
    )  # fmt: skip
    names = {plan.problem.cluster.device_names[at] for at in plan.placement.device_of.tolist()}
    assert names == {"cuda:0", "cpu"}
    samples = [torch.randn(16, 2048) for _ in range(6)]
    with torch.no_grad():
        expected = [module(sample) for sample in samples]
    with pw.load(plan) as model, ThreadPoolExecutor(3) as pool:
        called = list(pool.map(model, samples))
        streamed = list(model.stream(samples))
    for outputs in (called, streamed):
        for found, value in zip(outputs, expected, strict=True):
            torch.testing.assert_close(torch.as_tensor(found), value, rtol=1e-3, atol=1e-3)


def test_a_stream_over_the_gpu_and_the_processor() -> None:
    torch.manual_seed(0)
    module = Wide().eval()
    plan = pw.place(
        module, example_inputs=(torch.randn(16, 2048),), devices="cuda:0,cpu", budget=2.0,
        objective="throughput", memory={"cuda:0": 120e6}, quick=True,
    )  # fmt: skip
    samples = [torch.randn(16, 2048) for _ in range(12)]
    with torch.no_grad():
        expected = [module(sample) for sample in samples]
    for found, value in zip(pw.stream(plan, samples), expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(found), value, rtol=1e-3, atol=1e-3)
