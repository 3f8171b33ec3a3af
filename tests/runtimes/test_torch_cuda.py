"""PyTorch on a real GPU: the same contract, equal steps, memory from the device's allocator."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_programs import branches, step_program  # noqa: E402

from placewright.runtimes.base import segments_of_ops  # noqa: E402
from placewright.runtimes.runner import ConcurrentRunner  # noqa: E402
from placewright.runtimes.torch import TorchRuntime  # noqa: E402
from placewright.testing.runtime_contract import check_runtime  # noqa: E402

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
