"""Cases whose times and bytes were worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.small_problems import graph_of, problem_of

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad, Placeto
from placewright.core.graph import BACKWARD
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.simulation.model import Simulator
from placewright.simulation.segments import segments_of

MICRO = 1e-6


def test_a_chain_pays_latency_and_bytes_over_bandwidth() -> None:
    graph = graph_of(2, [(0, [1])])
    problem = problem_of(graph, [[1, 9], [9, 2]], [Link("d0", "d1", 0.5, 2.0)])
    timeline = Simulator(problem).timeline(Placement.of([0, 1]))
    # 0..1 op0; 0.5 + 4 / 2 = 2.5 s of transfer; 2 s of op1
    assert timeline.start.tolist() == [0.0, 3.5]
    assert timeline.value == 5.5
    assert timeline.memory_peaks.tolist() == [4.0, 4.0]
    assert [(step.what, step.start, step.end) for step in timeline.critical_path] == [
        ("op0", 0.0, 1.0),
        ("transfer of op0", 1.0, 3.5),
        ("op1", 3.5, 5.5),
    ]
    assert timeline.waits == ("none", "input op0")


def test_a_fork_sends_one_tensor_once_per_device() -> None:
    graph = graph_of(3, [(0, [1, 2])])
    links = [Link("d0", "d1", 1.0, 4.0), Link("d0", "d2", 2.0, 4.0)]
    problem = problem_of(graph, [[1.0] * 3] * 3, links)
    simulator = Simulator(problem)
    apart, together = Placement.of([0, 1, 2]), Placement.of([0, 1, 1])
    assert simulator.value(apart) == 1 + (2 + 1) + 1
    assert simulator.value(together) == 1 + (1 + 1) + 1 + 1
    assert len(simulator.timeline(together).transfers) == 1


def test_a_shared_channel_is_first_come_first_served() -> None:
    graph = graph_of(3, [(0, [1]), (0, [2])])
    links = [Link("d0", "d1", 0.0, 2.0, "bus"), Link("d0", "d2", 0.0, 1.0, "bus")]
    problem = problem_of(graph, [[1.0] * 3] * 3, links)
    timeline = Simulator(problem).timeline(Placement.of([0, 1, 2]))
    assert timeline.start.tolist() == [0.0, 3.0, 7.0]
    assert timeline.value == 8.0


def test_without_a_link_a_tensor_goes_through_the_host() -> None:
    graph = graph_of(2, [(0, [1])])
    links = [Link("d0", "host", 0.25, 4.0), Link("host", "d1", 0.5, 4.0)]
    problem = problem_of(graph, [[1.0] * 2] * 2, links)
    simulator = Simulator(problem)
    assert simulator.value(Placement.of([0, 1])) == 1 + 1.25 + 1.5 + 1
    assert simulator.value(Placement.of([1, 0])) == np.inf
    violation = simulator.violation(Placement.of([1, 0]))
    assert violation is not None
    assert "op0" in violation.message


def test_memory_is_weights_and_live_tensors() -> None:
    builder = GraphBuilder()
    shared = builder.add_weight(10.0)
    builder.add_op("a", "Op", weights=[shared])
    first = builder.add_tensor(0, 3.0)
    builder.add_op("b", "Op", inputs=[first], weights=[shared])
    second = builder.add_tensor(1, 5.0)
    builder.add_op("c", "Op", inputs=[second])
    builder.add_tensor(2, 1.0)
    problem = problem_of(builder.build(), [[1.0]] * 3, [], memory_bytes=18.0)
    placement = Placement.of([0, 0, 0])
    # while b runs: the weight once, a's and b's tensors; a's is gone when c begins
    assert Simulator(problem).memory_peaks(placement).tolist() == [18.0]
    assert Simulator(problem).value(placement) == 3.0
    tight = problem_of(builder.build(), [[1.0]] * 3, [], memory_bytes=17.0)
    violation = Simulator(tight).violation(placement)
    assert violation is not None
    assert "d0" in violation.message
    assert Simulator(tight).value(placement) == np.inf


def test_segments_pay_dispatch_and_cuts_once() -> None:
    graph = graph_of(3, [(0, [1]), (1, [2])])
    links = [Link("d0", "d1"), Link("d1", "d0")]
    rates = {"dispatch_seconds": 0.5, "cut_seconds": 0.25, "cut_seconds_per_byte": 0.125}
    problem = problem_of(graph, [[1.0, 1.0]] * 3, links, **rates)
    simulator = Simulator(problem)
    whole, split = Placement.of([0, 0, 0]), Placement.of([0, 1, 0])
    assert simulator.value(whole) == 3.5
    assert simulator.value(split) == 3 * 1.5 + 2 * (0.25 + 4 * 0.125)
    parts = segments_of(problem, split, np.array([0, 1, 2]))
    assert [(part.device, part.units) for part in parts] == [(0, (0,)), (1, (1,)), (0, (2,))]
    assert [part.inputs for part in parts] == [(), (0,), (1,)]
    assert [part.outputs for part in parts] == [(0,), (1,), ()]


def test_a_cut_after_arithmetic_also_leaves_its_layout() -> None:
    """200 flops made the first tensor's 4 bytes, 10 the second's: only the first pays 1 + 4 / 2."""
    builder = GraphBuilder()
    first = builder.add_tensor(builder.add_op("conv", "Conv", flops=200.0), 4.0)
    pool = builder.add_op("pool", "Pool", inputs=[first], flops=10.0)
    second = builder.add_tensor(pool, 4.0)
    builder.add_op("end", "Op", inputs=[second])
    links = [Link("d0", "d1"), Link("d1", "d0")]
    rates = {"layout_seconds": 1.0, "layout_seconds_per_byte": 0.5}
    problem = problem_of(builder.build(), [[1.0, 1.0]] * 3, links, **rates)
    assert Simulator(problem).value(Placement.of([0, 0, 0])) == 3.0
    assert Simulator(problem).value(Placement.of([0, 1, 0])) == 3.0 + 3.0


def test_the_highest_rank_goes_first_and_an_order_overrides() -> None:
    graph = graph_of(3, [(1, [2])])
    problem = problem_of(graph, [[4.0, 9.0], [2.0, 9.0], [9.0, 8.0]], [Link("d0", "d1")])
    simulator = Simulator(problem)
    assert simulator.value(Placement.of([0, 0, 1])) == 10.0
    assert simulator.value(Placement.of([0, 0, 1], [0, 1, 2])) == 14.0


def test_placeto_keeps_devices_and_one_bus_per_source_busy_for_longer() -> None:
    graph = graph_of(3, [(0, [1]), (0, [2])], size=7600.0)
    problem = replace(
        problem_of(graph, [[10 * MICRO] * 3] * 3, []),
        execution_model=Placeto(),
    )
    simulator = Simulator(problem)
    # op0 ends at 10, its tensors arrive at 11 and, after 25 in which the bus is busy, at 37; op2
    # ends at 47, its device is free at 52.7, the bus at 62
    apart = Placement.of([0, 1, 2])
    assert simulator.value(apart) == pytest.approx(62.0 * MICRO, abs=1e-12)
    starts = simulator.explain(apart).starts
    assert starts is not None
    assert starts.tolist() == pytest.approx([0.0, 11 * MICRO, 37 * MICRO], abs=1e-12)
    assert simulator.value(Placement.of([0, 0, 0])) == pytest.approx(47.1 * MICRO, abs=1e-12)
    assert simulator.memory_peaks(apart).tolist() == [15200.0, 0.0, 0.0]


def test_placeto_waits_for_neither_overhead_on_the_way_to_another_device() -> None:
    graph = graph_of(2, [(0, [1])], size=7600.0)
    seconds = [[10 * MICRO] * 2, [100 * MICRO] * 2]
    simulator = Simulator(replace(problem_of(graph, seconds, []), execution_model=Placeto()))
    # 10, 1 on the bus, 100, and 5.7 until the device is free
    value = simulator.value(Placement.of([0, 1]))
    assert value == pytest.approx(116.7 * MICRO, abs=1e-12)
    assert simulator.value(Placement.of([0, 0])) == pytest.approx(121.4 * MICRO, abs=1e-12)


def test_placeto_counts_one_output_for_a_reader_of_several() -> None:
    builder = GraphBuilder()
    op = builder.add_op("op0", "Op")
    tensors = [builder.add_tensor(op, 76000.0), builder.add_tensor(op, 7600.0)]
    builder.add_op("op1", "Op", inputs=tensors)
    problem = problem_of(builder.build(), [[10 * MICRO] * 2] * 2, [])
    simulator = Simulator(replace(problem, execution_model=Placeto()))
    # 10, 1 for the second output; the bus is free at 36, after the device
    value = simulator.value(Placement.of([0, 1]))
    assert value == pytest.approx(36.0 * MICRO, abs=1e-12)


def test_placeto_keeps_bytes_until_just_before_the_end_of_their_last_reader() -> None:
    """And all outputs of an op as long as the longest; those that nobody reads only at its start.

    On one device, op0 starts at 0, op1 at 15.7, op2 at 31.4 and op3 at 47.1. Op2 reads 40 bytes
    of op0, which also makes 2 that op1 reads: until floor(31.4) + 10 - 1 = 40. Op1 makes 100 for
    nobody. Op3 makes 7 when op0's are free.
    """
    builder = GraphBuilder()
    builder.add_op("op0", "Op")
    long, short = builder.add_tensor(0, 40.0), builder.add_tensor(0, 2.0)
    builder.add_op("op1", "Op", inputs=[short])
    builder.add_tensor(1, 100.0)
    builder.add_op("op2", "Op", inputs=[long])
    kept = builder.add_tensor(2, 60.0)
    builder.add_op("op3", "Op", inputs=[kept])
    builder.add_tensor(3, 7.0)
    problem = problem_of(builder.build(), [[10 * MICRO] * 2] * 4, [])
    simulator = Simulator(replace(problem, execution_model=Placeto()))
    # 42 + 100 at the start of op1, 42 + 60 at that of op2, 60 + 7 at that of op3
    assert simulator.memory_peaks(Placement.of([0, 0, 0, 0])).tolist() == [142.0, 0.0]
    # op1 alone on the other device: 42 + 60
    assert simulator.memory_peaks(Placement.of([0, 1, 0, 0])).tolist() == [102.0, 100.0]


def test_placeto_sends_one_tensor_once_and_free_ops_cost_nothing() -> None:
    """The tensor arrives at 1 on both, whose devices are free at 16.7, and the bus at 26."""
    graph = graph_of(3, [(0, [1, 2])], size=7600.0)
    seconds = [[0.0] * 3, [10 * MICRO] * 3, [10 * MICRO] * 3]
    problem = replace(problem_of(graph, seconds, []), execution_model=Placeto())
    value = Simulator(problem).value(Placement.of([0, 1, 2]))
    assert value == pytest.approx(26 * MICRO, abs=1e-12)


def test_max_load_charges_each_tensor_once_per_device() -> None:
    graph = graph_of(4, [(0, [1, 2, 3])])
    links = [Link(f"d{a}", f"d{b}", 0.0, 4.0) for a in range(3) for b in range(3) if a != b]
    base = problem_of(graph, [[1.0] * 3] * 4, links)
    problem = replace(base, objective="throughput", execution_model=MaxLoad(samples_in_flight=0))
    # d0: 1 + one send; d1: two ops + one receive; d2: one op + one receive
    placement = Placement.of([0, 1, 1, 2])
    simulator = Simulator(problem)
    assert simulator.loads(placement.device_of)[0, :3].tolist() == [2.0, 3.0, 2.0]
    assert simulator.value(placement) == 3.0
    cluster = problem.cluster
    overlapping = tuple(replace(device, overlaps_transfers=True) for device in cluster.devices)
    overlap = replace(problem, cluster=replace(cluster, devices=overlapping))
    assert Simulator(overlap).value(placement) == 2.0


def test_max_load_of_split_phases_and_samples_in_flight() -> None:
    builder = GraphBuilder()
    builder.add_op("forward", "Op")
    tensor = builder.add_tensor(0, 4.0)
    builder.add_op("backward", "Op", inputs=[tensor], phase=BACKWARD)
    links = [Link("d0", "d1", 0.0, 4.0)]
    base = problem_of(builder.build(), [[3.0, 3.0], [5.0, 5.0]], links, memory_bytes=9.0)
    problem = replace(base, objective="throughput", execution_model=MaxLoad(samples_in_flight=0))
    apart = Placement.of([0, 1])
    # the forward phase pays the send and the receive of its tensor
    assert Simulator(problem).value(apart) == 6.0
    assert (
        Simulator(replace(problem, execution_model=MaxLoad(0, split_phases=True))).value(apart)
        == 4.0 + 5.0
    )
    flying = problem.with_samples_in_flight(2)
    assert Simulator(flying).memory_peaks(apart).tolist() == [8.0, 8.0]
    assert Simulator(problem.with_samples_in_flight(3)).value(apart) == np.inf


def test_what_waits_at_the_host_goes_on_after_what_was_sent_before() -> None:
    """A first hop ends at 5; until then the host's next op begins, ends and sends its tensor."""
    graph = graph_of(5, [(0, [3]), (1, [2]), (2, [4])])
    devices = tuple(Device(name) for name in ("host", "left", "right"))
    links = (Link("left", "host", 0.0, 1.0), Link("host", "right", 0.0, 1.0))
    costs = CostTable(frozen_floats(np.repeat([[1.0], [3.0], [1.0], [1.0], [1.0]], 3, axis=1)))
    problem = Problem.of_ops(graph, Cluster(devices, links, host="host"), costs)
    timeline = Simulator(problem).timeline(Placement.of([1, 0, 0, 2, 2]))
    # op0 0..1 and its first hop 1..5; op1 0..3, op2 3..4, its hop 4..8; op0's second hop 8..12
    assert timeline.start.tolist() == [0.0, 0.0, 3.0, 12.0, 8.0]
    assert timeline.value == 13.0
