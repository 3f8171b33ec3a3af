"""PyTorch on a real GPU: the same contract, equal steps, memory from the device's allocator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_programs import branches, inference_program, step_program

from placewright.errors import RuntimeFailure
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import segments_of_ops
from placewright.frameworks.torch.running.runtime import TorchRuntime
from placewright.testing.runtime_contract import check_runtime

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
    first = {op for name in (w1, m1) for op in model.nodes.direct_readers(name)}
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
