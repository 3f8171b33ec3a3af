"""Memory of a stream: the simulator's peaks beside those of PyTorch's allocator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import placewright as pw
from placewright.core.costs import CostTable
from placewright.core.execution_models import EVENT, MaxLoad
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InfeasibleError
from placewright.execution.comparing import compare_outputs
from placewright.execution.runtime import LoadedModel
from placewright.profiling.units import common_units
from placewright.session.devices import discover
from placewright.session.models import runnable_source, runtime_named
from placewright.session.plans import plan_of
from placewright.session.streams import played_schedule, stream_memory
from placewright.simulation.model import Simulator


class Layers(torch.nn.Module):
    """Products of square matrices; what the first layer makes is read by the last, too."""

    def __init__(self) -> None:
        super().__init__()
        made = [torch.nn.Linear(256, 256, bias=False) for _ in range(8)]
        self.layers = torch.nn.ModuleList(made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.relu(self.layers[0](x))
        x = first
        for layer in self.layers[1:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x + first)


class Convolutions(torch.nn.Module):
    """3x3 convolutions: their library lays out the weights anew at each call."""

    def __init__(self) -> None:
        super().__init__()
        made = [torch.nn.Conv2d(192, 192, 3, padding=1, bias=False) for _ in range(6)]
        self.layers = torch.nn.ModuleList(made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


@pytest.fixture(scope="module")
def streamed() -> tuple[Plan, object]:
    """The middle on another core: each sample under way keeps its first tensor meanwhile."""
    return split(Layers(), torch.zeros(2048, 256))


def split(
    model: torch.nn.Module, example: torch.Tensor, n_together: int = 0
) -> tuple[Plan, LoadedModel]:
    """A plan whose first operators, if a number is given, are one unit, and others one each."""
    read = pw.read(model, (example,), runtime="torch")
    runtime = runtime_named("torch")
    assert read.source is not None
    loaded = runtime.load(runnable_source(read.source, read.graph), read.graph)
    cluster = discover("cores", runtime="torch")
    if cluster.n_devices < 2:
        pytest.skip("one core")
    cluster = replace(cluster, devices=cluster.devices[:2], links=())
    cluster = discover(",".join(cluster.device_names), runtime="torch")
    units = common_units(read.graph, [loaded.fused_groups(cluster.devices[0])])
    if n_together:
        labels = [max(n_together - 1, op) for op in range(read.graph.n_ops)]
        units = Grouping.from_labels(labels)
    problem = Problem(
        read.graph,
        cluster,
        CostTable(np.full((units.n_groups, 2), 1e-3), "measured"),
        units,
        objective="throughput",
        execution_model=MaxLoad(samples_in_flight=0),
        source=read.source,
        inner_tensors=True,
        op_working_bytes=loaded.op_working_bytes(cluster.devices[0]),
    )
    return plan_for(problem), loaded


def plan_for(problem: Problem, second: slice = slice(2, -2)) -> Plan:
    """A plan with these units of the topological order on the second core."""
    middle = np.zeros(problem.n_units, dtype=np.int64)
    middle[problem.unit_graph.topological_order[second]] = 1
    found = Solution(Placement.of(middle), 1.0, "feasible", 0.0)
    return plan_of(problem, found, PlacerRecord("manual", "1", 0, 1, 0.0), "torch")


def second_reader_apart(problem: Problem) -> Plan:
    """A plan with the unit of the second operator that has a weight on the second core."""
    graph, order = problem.graph, problem.unit_graph.topological_order.tolist()
    readers = [op for op in range(graph.n_ops) if len(graph.op_weights.row(op))]
    at = order.index(int(problem.units.group_of[readers[1]]))
    return plan_for(problem, slice(at, at + 1))


@pytest.mark.parametrize(("in_flight", "counted"), [(1, 0), (2, 0), (4, 0), (2, 1)])
def test_measured_peaks_are_within_three_percent(streamed, in_flight: int, counted: int) -> None:
    """Whether or not `max-load` counts the tensors of a sample for the search."""
    plan, loaded = streamed
    model = MaxLoad(samples_in_flight=counted)
    plan = plan_for(replace(plan.problem, execution_model=model))
    for predicted, measured in stream_memory(plan, loaded, in_flight).values():
        assert measured > 0
        assert abs(predicted / measured - 1.0) < 0.03


def test_what_operators_take_besides_is_measured() -> None:
    plan, loaded = split(Convolutions(), torch.zeros(1, 192, 14, 14))
    assert plan.problem.op_working_bytes is not None
    assert plan.problem.op_working_bytes.max() >= 4 * 9 * 192 * 192  # the weights of one
    for predicted, measured in stream_memory(plan, loaded, 2).values():
        assert abs(predicted / measured - 1.0) < 0.03
    unknown = plan_for(replace(plan.problem, op_working_bytes=None))
    for predicted, measured in stream_memory(unknown, loaded, 2).values():
        assert predicted < 0.9 * measured


class Towers(torch.nn.Module):
    """Two inputs through the same layers."""

    def __init__(self) -> None:
        super().__init__()
        made = [torch.nn.Linear(512, 512, bias=False) for _ in range(4)]
        self.layers = torch.nn.ModuleList(made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = []
        for value in (x, -x):
            for layer in self.layers:
                value = torch.relu(layer(value))
            ends.append(value)
        return ends[0] + ends[1]


def test_cores_hold_a_weight_that_both_read_once() -> None:
    """Three layers are read on both cores; the process has one copy of each of the four."""
    plan, loaded = split(Towers(), torch.zeros(16, 512))
    one_copy = 4.0 * 4 * 512 * 512
    apart = replace(plan.problem, cluster=replace(plan.problem.cluster, shares_weights=False))
    rows = stream_memory(plan, loaded, 1).values()
    for predicted, measured in rows:
        assert abs(predicted / measured - 1.0) < 0.03
    assert one_copy < sum(measured for _, measured in rows) < 1.2 * one_copy
    copies = stream_memory(plan_for(apart), loaded, 1).values()
    assert sum(predicted for predicted, _ in copies) > 1.2 * one_copy


class Branches(torch.nn.Module):
    """Two branches; the first reads the weight of the second, after it."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.nn.Linear(512, 512, bias=False)
        self.common = torch.nn.Linear(512, 512, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.relu(self.own(x))
        second = torch.relu(self.common(x))
        return torch.relu(self.common(first)) + second


def test_a_weight_counts_on_the_core_of_the_operator_that_reads_it_first() -> None:
    """Not on that of the first segment, which reads it with a later operator."""
    plan, loaded = split(Branches(), torch.zeros(16, 512))
    plan = second_reader_apart(plan.problem)
    weight = 4.0 * 512 * 512
    peaks = list(stream_memory(plan, loaded, 1).values())
    assert all(weight < measured < 1.2 * weight for _, measured in peaks)
    for predicted, measured in peaks:
        assert abs(predicted / measured - 1.0) < 0.03


class Parts(torch.nn.Module):
    """The last layer reads an eighth of what the first one makes."""

    def __init__(self, is_split: bool) -> None:
        super().__init__()
        self.is_split = is_split
        self.first = torch.nn.Linear(256, 2048, bias=False)
        self.middle = torch.nn.Linear(2048, 256, bias=False)
        self.last = torch.nn.Linear(256, 256, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.relu(self.first(x))
        if self.is_split:
            pieces = wide.split(256, 1)
            part, other = pieces[0], pieces[1]
        else:
            part, other = wide[:, :256], wide[:, 256:512]
        return torch.relu(self.last(part + torch.relu(self.middle(wide)))) + other


@pytest.mark.parametrize("is_split", [False, True])
def test_a_part_that_leaves_a_segment_does_not_keep_the_whole(is_split: bool) -> None:
    plan, loaded = split(Parts(is_split), torch.zeros(1024, 256), 4 - is_split)
    plan = second_reader_apart(plan.problem)
    for predicted, measured in stream_memory(plan, loaded, 4).values():
        assert measured <= predicted < 1.03 * measured


class Offsets(torch.nn.Module):
    """A slice whose memory is read from the start of the whole tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8, bias=False)
        self.last = torch.nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = torch.relu(self.first(x))[:, 4:]
        whole = part.as_strided((4, 4), (8, 1), 1)
        return torch.relu(self.last(part)) + whole


def test_a_slice_that_is_read_from_the_start_of_its_memory_is_not_copied() -> None:
    torch.manual_seed(0)
    model = Offsets().eval()
    plan, loaded = split(model, torch.zeros(4, 8), 4)
    plan = second_reader_apart(plan.problem)
    problem = replace(plan.problem, objective="latency", execution_model=EVENT)
    assert compare_outputs(problem, plan.placement, loaded).equal


def test_below_a_limit_fewer_samples_enter_and_measured_peaks_keep_it(streamed) -> None:
    plan, loaded = streamed
    simulator = Simulator(plan.problem)
    free = simulator.stream(plan.placement, samples=30, in_flight=6)
    least = simulator.stream(plan.placement, samples=30, in_flight=1)
    limits = (free.memory_peaks + least.memory_peaks) / 2
    devices = tuple(
        replace(device, memory_bytes=float(limit))
        for device, limit in zip(plan.problem.cluster.devices, limits, strict=True)
    )
    cluster = replace(plan.problem.cluster, devices=devices)
    tight = plan_for(replace(plan.problem, cluster=cluster))
    with pytest.raises(InfeasibleError, match="let fewer samples in"):
        Simulator(tight.problem).stream(tight.placement, samples=30, in_flight=6)
    chosen = Simulator(tight.problem).stream(tight.placement, samples=30).in_flight
    measured = [row[1] for row in stream_memory(tight, loaded, chosen).values()]
    assert all(one <= limit for one, limit in zip(measured, limits, strict=True))


def test_the_schedule_holds_every_segment_once_in_an_order_that_can_run(streamed) -> None:
    plan, _ = streamed
    stream = Simulator(plan.problem).stream(plan.placement, samples=9, in_flight=3)
    schedule = played_schedule(stream)
    n_segments = len(stream.segments)
    assert sorted(schedule) == [(s, i) for s in range(9) for i in range(-1, n_segments)]
    for sample in range(9):
        own = [index for number, index in schedule if number == sample]
        assert own == [*range(n_segments), -1]


def test_measuring_leaves_the_number_of_threads(streamed) -> None:
    plan, loaded = streamed
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        stream_memory(plan, loaded, 2)  # each segment sets one thread
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
