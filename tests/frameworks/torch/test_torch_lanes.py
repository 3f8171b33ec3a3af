"""Queues of an accelerator, with one made of this process: what waits for what, and where.

Its streams run at once, but its events know what was recorded before them, so that a value which is
read without having been waited for is found.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch_programs import branches, step_program

from placewright.core.cluster import Device
from placewright.errors import RuntimeFailure
from placewright.execution.direct import DirectRunner, split_copy
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import segments_of_ops
from placewright.frameworks.torch.running import instances as torch_lanes
from placewright.frameworks.torch.running import profile as torch_profile
from placewright.frameworks.torch.running.devices import SAME_KERNELS
from placewright.frameworks.torch.running.instances import Arriving, Lane, TorchInstance
from placewright.frameworks.torch.running.runtime import TorchModel, TorchRuntime
from placewright.frameworks.torch.training.step import read_training
from placewright.testing.framework_contract import random_segments


class FakeStream:
    """Runs at once; keeps the events that it waited for."""

    def __init__(self, device: Any = None) -> None:
        self.waited: list[Any] = []

    def wait_event(self, event: Any) -> None:
        assert event.at is not None, "an event must be recorded before somebody waits for it"
        self.waited.append(event)

    def synchronize(self) -> None:
        """Everything has run."""


class FakeEvent:
    """A point in time."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.timed, self.at = enable_timing, None

    def record(self, stream: FakeStream) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        assert self.at is not None

    def elapsed_time(self, other: FakeEvent) -> float:
        assert self.timed
        assert other.timed
        return (other.at - self.at) * 1e3


class FakeModule:
    """What PyTorch's module of a device kind offers."""

    Stream, Event = FakeStream, FakeEvent

    def __init__(self) -> None:
        self.active: list[FakeStream] = []
        self.synchronized: list[Any] = []
        self.held = 0

    def synchronize(self, device: Any) -> None:
        self.synchronized.append(device)

    def _sleep(self, cycles: int) -> None:
        self.held += 1

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.active.append(stream)
        yield
        self.active.pop()


@pytest.fixture(autouse=True)
def plain_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an accelerator no memory can be pinned."""
    monkeypatch.setattr(torch_lanes, "pinned_copy", lambda tensor: tensor.clone())
    monkeypatch.setattr(torch_lanes, "pinned_like", torch.empty_like)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)


class FakeAccelerators(TorchModel):
    """Devices called ``fake:N`` have lanes; the others are the processor."""

    def lane_of(self, device: Device | None) -> Lane | None:
        if device is None or not device.name.startswith("fake"):
            return None
        lanes = self.__dict__.setdefault("fakes", {})
        return lanes.setdefault(device.name, Lane(torch.device("cpu"), FakeModule()))


def loaded(made: tuple) -> FakeAccelerators:
    program, graph, source = made
    model = TorchRuntime(lambda _: program).load(source, graph)
    return FakeAccelerators(model.program, model.graph, model.nodes, model.signature)


DEVICES = [
    Device("fake:0", "gpu", options={"device": "cpu"}),
    Device("cpu", options={"device": "cpu"}),
    Device("fake:1", "gpu", options={"device": "cpu"}),
]


def test_a_split_over_processor_and_accelerators_gives_the_unsplit_outputs() -> None:
    model = loaded(branches())
    inputs = model.random_inputs(np.random.default_rng(0))
    order = model.graph.topological_order.tolist()
    whole = segments_of_ops(model.graph, [(1, order)])
    with ConcurrentRunner(model, whole, DEVICES) as runner:
        expected = runner.run(inputs).outputs
    for seed in range(4):
        segments = random_segments(model.graph, 3, np.random.default_rng(seed), ops=2)
        with ConcurrentRunner(model, segments, DEVICES) as runner:
            first = runner.run(inputs)
            seconds = runner.time(3)
            again = runner.run(inputs, keep_tensors=True)
        for one in (first, again):
            for mine, other in zip(one.outputs, expected, strict=True):
                np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
        assert all(0 <= begin <= end <= first.seconds for begin, end in first.spans)
        assert min(seconds) > 0


def test_a_failure_that_only_the_end_shows_names_a_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CUDA tells of a failed kernel when somebody waits; each request then ends in one line."""

    def failed(lane: Lane, pairs: Any) -> Any:
        raise RuntimeError("CUDA error: device-side assert triggered\nCompile with TORCH_USE_DSA")

    model = loaded(branches())
    inputs = model.random_inputs(np.random.default_rng(0))
    order = model.graph.topological_order.tolist()
    parts = segments_of_ops(model.graph, [(1, order[:1]), (0, order[1:])])
    told = r"^segment 1 on 'fake:0' \[.*\], or a later one there, failed: CUDA error: device.*ed$"
    with ConcurrentRunner(model, parts, DEVICES) as runner:
        monkeypatch.setattr(Lane, "settled", failed)
        with pytest.raises(RuntimeFailure, match=told):
            runner.run(inputs)
        answers = list(runner.outcomes([inputs] * 2))
        assert [type(answer) for answer in answers] == [RuntimeFailure] * 2
        copy = split_copy(model, parts, DEVICES)
        with pytest.raises(RuntimeFailure, match=told):
            DirectRunner(model, [copy], at_once=1).run(inputs)
        monkeypatch.undo()


def test_a_copy_waits_for_the_operators_and_its_reader_for_the_copy() -> None:
    lane, other = (Lane(torch.device("cpu"), FakeModule()) for _ in range(2))
    value = torch.ones(3)
    copy = torch_lanes.moved(value, lane, other)
    assert isinstance(copy, Arriving)
    assert len(lane.outward.waited) == 1, "the copy waits for what is queued"
    assert other.compute.waited == []
    received = other.received(copy)
    assert other.compute.waited == [copy.event], "the reader waits for the copy"
    assert received is copy.tensor
    home = torch_lanes.moved(received, other, None)
    assert torch.equal(torch_lanes.on_host(home), value)
    assert torch_lanes.moved(value, None, None) is value, "one memory needs no copy"


def test_a_training_step_on_an_accelerator_writes_its_state() -> None:
    model = loaded(step_program())
    inputs = model.random_inputs(np.random.default_rng(0))
    order = model.graph.topological_order.tolist()
    found = []
    for device in (0, 1):
        segments = segments_of_ops(model.graph, [(device, order)])
        with ConcurrentRunner(model, segments, DEVICES) as runner:
            losses = [float(runner.run(inputs).outputs[0]) for _ in range(3)]
            found.append((losses, runner.state_values()))
    assert found[0][0] == found[1][0]
    for name, value in found[0][1].items():
        np.testing.assert_array_equal(value, found[1][1][name])


def test_state_is_there_before_the_queues_of_an_accelerator_start() -> None:
    """It is copied on the default queue, which other queues do not wait for."""
    model = loaded(step_program())
    order = model.graph.topological_order.tolist()
    model.compile(segments_of_ops(model.graph, [(0, order)]), DEVICES)
    lane = model.lane_of(DEVICES[0])
    assert lane is not None
    assert lane.module.synchronized == [lane.device]


def test_state_is_written_in_the_queue_of_the_operators_that_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else an operator of the step before could read a number of the next one."""
    read = read_training(torch.nn.Linear(4, 2), (torch.ones(3, 4),), optimizer="adamw")
    model = loaded((read.program, read.graph, read.source))
    lane = model.lane_of(DEVICES[0])
    assert lane is not None
    model._lanes[lane.device] = lane
    active: list[list[Any]] = []
    order = model.graph.topological_order.tolist()
    with model.step_state(0) as state:
        whole = model.compile(segments_of_ops(model.graph, [(0, order)]), DEVICES)[0]
    for name, own in (("fill_", torch.Tensor.fill_), ("copy_", torch.Tensor.copy_)):

        def noted(tensor: Any, value: Any, write: Any = own) -> Any:
            active.append(list(lane.module.active))
            return write(tensor, value)

        monkeypatch.setattr(torch.Tensor, name, noted)
    for write in (
        state.begin,
        lambda: state.load_state_dict(state.state_dict()),
        whole.instance().reset_state,  # type: ignore[attr-defined]
    ):
        active.clear()
        write()
        assert active
        assert all(streams == [lane.compute] for streams in active)


def test_the_user_has_the_settings_of_cudnn_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn = torch.backends.cudnn
    monkeypatch.setattr(cudnn, "benchmark", True)
    monkeypatch.setattr(cudnn, "deterministic", False)
    whole, seen = TorchInstance._call, list[Any]()

    def noted(instance: TorchInstance, entering: list[torch.Tensor]) -> Any:
        seen.append((cudnn.benchmark, cudnn.deterministic))
        return whole(instance, entering)

    monkeypatch.setattr(TorchInstance, "_call", noted)
    model = loaded(branches())
    inputs = model.random_inputs(np.random.default_rng(0))
    order = model.graph.topological_order.tolist()
    with ConcurrentRunner(model, segments_of_ops(model.graph, [(0, order)]), DEVICES) as runner:
        runner.run(inputs)
        assert seen == [(False, True)]
        assert (cudnn.benchmark, cudnn.deterministic) == (True, False)
    with SAME_KERNELS:
        with SAME_KERNELS:  # as another thread
            pass
        assert (cudnn.benchmark, cudnn.deterministic) == (False, True)
    assert (cudnn.benchmark, cudnn.deterministic) == (True, False)


def test_ops_are_timed_in_groups_that_the_host_queues_ahead(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch_profile, "_OPS_AHEAD", 4)
    model = loaded(step_program())
    lane = model.lane_of(DEVICES[0])
    assert lane is not None
    seconds = model.profiler(DEVICES[0])()
    assert seconds.shape == (model.graph.n_ops,)
    assert seconds.min() > 0
    assert lane.module.held == -(-model.graph.n_ops // 4)
